package main

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain is the reader as well, so that a test can start it as a process.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "reader" {
		os.Exit(run())
	}
	// A stopped server waits for the answer to its last try to copy a stream, until that times out.
	const server = "github.com/nats-io/nats-server/v2/server.(*stream)."
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(server+"setupMirrorConsumer.func3"),
		goleak.IgnoreAnyFunction(server+"trySetupSourceConsumer.func3"))
}
