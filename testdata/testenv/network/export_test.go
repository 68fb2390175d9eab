package network

import (
	"errors"
	"syscall"
)

// LockPort reserves a port for this process as ReserveAddress does, whether or not it is free.
func LockPort(port int) error {
	reserved.mu.Lock()
	defer reserved.mu.Unlock()
	return errors.Join(reserved.open(), reserved.lock(port, syscall.F_WRLCK))
}
