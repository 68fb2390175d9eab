package suite

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// FreePort is a port of 127.0.0.1 that stays free while its server is down: it is none of those
// that the system takes for connections.
func FreePort(tb testing.TB) int {
	tb.Helper()
	address, err := testenv.FreeAddress("")
	if err != nil {
		tb.Fatal(err)
	}
	listen, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		tb.Fatal(err)
	}
	return listen.Port
}

// NATS runs a NATS server in this process until the end of the test: at 127.0.0.1, at a free port
// unless opts has one. opts may be nil.
func NATS(tb testing.TB, opts *server.Options) *server.Server {
	tb.Helper()
	if opts == nil {
		opts = &server.Options{}
	}
	opts.Host, opts.NoSigs, opts.NoLog = "127.0.0.1", true, true
	if opts.Port == 0 {
		opts.Port = FreePort(tb)
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
	if !s.ReadyForConnections(Patience) {
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
