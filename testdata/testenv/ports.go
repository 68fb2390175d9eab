package testenv

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

const loopback = "127.0.0.1"

// Fixed ports are chosen from below the range that systems take for outgoing
// connections: a port that is free while its server is down could otherwise be
// another's when it comes back, or be met by a client that dials it from itself.
const (
	lowestPort  = 15000
	highestPort = 32000
)

// freeAddress is a loopback address that nobody listens on at the moment.
func freeAddress() (string, error) {
	listener, err := listenFixed()
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

// listenFixed listens on a port that will be free for the same use later, too.
func listenFixed() (net.Listener, error) {
	const tries = 100
	var last error
	for range tries {
		port := lowestPort + rand.IntN(highestPort-lowestPort)
		listener, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(port)))
		if err == nil {
			return listener, nil
		}
		last = err
	}
	return nil, fmt.Errorf("find a free port: %w", last)
}
