// Package network reserves addresses of the loopback interface, and breaks connections.
package network

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
)

const loopback = "127.0.0.1"

// Fixed ports are chosen from below the range that systems take for outgoing
// connections: a port that is free while its server is down could otherwise be
// another's when it comes back, or be met by a client that dials it from itself.
const (
	lowestPort  = 15000
	highestPort = 32000
)

// ReserveAddress returns a loopback address that no other caller gets, in this process or another
// of the same user, until release or the end of the process.
func ReserveAddress() (address string, release func(), err error) {
	port, err := reserved.add()
	if err != nil {
		return "", nil, fmt.Errorf("reserve a port: %w", err)
	}
	return net.JoinHostPort(loopback, strconv.Itoa(port)), sync.OnceFunc(func() { reserved.remove(port) }), nil
}

// FreeAddress is the wanted address (empty: any), or one with another port of
// the loopback interface when somebody listens there. It is reserved until the
// process ends.
func FreeAddress(wanted string) (string, error) {
	if wanted != "" {
		if listener, err := net.Listen("tcp", wanted); err == nil {
			return wanted, listener.Close()
		}
	}
	address, _, err := ReserveAddress()
	return address, err
}

// reservations are the ports that this process has reserved. For each it locks a byte of a file
// that all processes of a user share: so a port stays reserved while its server has not started yet,
// or is down. The system drops the locks of a process that ends.
type reservations struct {
	mu    sync.Mutex
	file  *os.File // stays open: closing it would drop the locks
	ports map[int]bool
}

var reserved reservations

func (r *reservations) add() (int, error) {
	const tries = 1000
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.open(); err != nil {
		return 0, err
	}
	last := errors.New("all are reserved")
	for range tries {
		port := lowestPort + rand.IntN(highestPort-lowestPort)
		if r.ports[port] {
			continue
		}
		err := r.lock(port, syscall.F_WRLCK)
		if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) {
			continue // another process has it
		}
		if err != nil {
			return 0, fmt.Errorf("lock %s: %w", r.file.Name(), err)
		}
		listener, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(port)))
		if err == nil {
			r.ports[port] = true
			return port, listener.Close()
		}
		last = errors.Join(err, r.lock(port, syscall.F_UNLCK))
	}
	return 0, last
}

func (r *reservations) remove(port int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.ports, port)
	_ = r.lock(port, syscall.F_UNLCK) // after an error the port stays locked until the process ends
}

// open opens the file. mu must be held.
func (r *reservations) open() (err error) {
	if r.file == nil {
		name := filepath.Join(os.TempDir(), fmt.Sprintf("appbridge-ports-%d", os.Getuid()))
		r.file, err = os.OpenFile(name, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
		r.ports = map[int]bool{}
	}
	return err
}

// lock changes the lock of a port. mu must be held.
func (r *reservations) lock(port int, kind int16) error {
	return syscall.FcntlFlock(r.file.Fd(), syscall.F_SETLK, &syscall.Flock_t{Type: kind, Whence: io.SeekStart, Start: int64(port), Len: 1})
}
