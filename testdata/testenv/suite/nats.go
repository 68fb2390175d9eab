package suite

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const natsTimeout = 60 * time.Second

// NATS runs a NATS server in this process until the end of the test: at 127.0.0.1, at a free port
// unless opts has one. opts may be nil.
func NATS(tb testing.TB, opts *server.Options) *server.Server {
	tb.Helper()
	if opts == nil {
		opts = &server.Options{}
	}
	opts.Host, opts.NoSigs, opts.NoLog = "127.0.0.1", true, true
	if opts.Port == 0 {
		opts.Port = server.RANDOM_PORT
	}
	s, err := server.NewServer(opts)
	if err != nil {
		tb.Fatal(err)
	}
	s.Start()
	tb.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(natsTimeout) {
		tb.Fatal("the NATS server does not accept connections")
	}
	return s
}

// NATSConfigured runs a NATS server like NATS, with a configuration file of this content.
func NATSConfigured(tb testing.TB, content string) *server.Server {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "nats.conf")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		tb.Fatal(err)
	}
	opts, err := server.ProcessConfigFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	return NATS(tb, opts)
}
