//go:build unix && !solaris && !aix

package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// flock takes an exclusive lock that ends when file is closed.
func flock(file *os.File) error {
	err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errors.New("another process keeps its streams there; want a folder of its own")
	}
	if err != nil {
		return fmt.Errorf("lock the folder: %w", err)
	}
	return nil
}
