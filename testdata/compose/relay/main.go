// Command relay accepts TCP connections and carries each to a Unix socket:
//
//	relay <listen address> <socket file>
//
// It stands for the API server on a container network, while the server itself
// listens on the host's loopback; the socket file is mounted from the host.
package main

import (
	"io"
	"log"
	"net"
	"os"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatalf("usage: relay <listen address> <socket file>, got %q", os.Args[1:])
	}
	log.Fatal(serve(os.Args[1], os.Args[2]))
}

// serve returns only when it cannot listen or accept any longer.
func serve(address, socket string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for {
		client, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			if err := carry(client, socket); err != nil {
				log.Print(err)
			}
		}()
	}
}

// carry returns when either side has closed; the other is then closed as well.
func carry(client net.Conn, socket string) error {
	defer func() { _ = client.Close() }() // closing is all that is left to do with it
	server, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	done := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{server, client}, {client, server}} {
		go func() {
			_, _ = io.Copy(way[0], way[1]) // a broken connection is the clients' to report
			done <- struct{}{}
		}()
	}
	<-done
	_, _ = server.Close(), client.Close()
	<-done
	return nil
}
