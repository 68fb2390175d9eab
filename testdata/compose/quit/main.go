// Command quit sends SIGQUIT to process 1. In the process namespace of a container it ends that
// container's Go program as a crash does: with exit code 2, and without the engine having asked for it.
package main

import (
	"log"
	"syscall"
)

func main() {
	if err := syscall.Kill(1, syscall.SIGQUIT); err != nil {
		log.Fatal(err)
	}
}
