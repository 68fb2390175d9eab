package suite

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

// ReloadableNATS is a server with a configuration file.
type ReloadableNATS struct {
	*server.Server

	file, listen string
}

// NATSReloadable runs a NATS server like NATS, at a free port, with these settings in its file.
func NATSReloadable(tb testing.TB, settings string) *ReloadableNATS {
	tb.Helper()
	s := &ReloadableNATS{file: filepath.Join(tb.TempDir(), "nats.conf"), listen: fmt.Sprintf("listen: \"127.0.0.1:%d\"\n", FreePort(tb))}
	s.write(tb, settings)
	opts, err := server.ProcessConfigFile(s.file)
	if err != nil {
		tb.Fatal(err)
	}
	s.Server = NATS(tb, opts)
	return s
}

func (s *ReloadableNATS) write(tb testing.TB, settings string) {
	tb.Helper()
	if err := os.WriteFile(s.file, []byte(s.listen+settings), 0o600); err != nil {
		tb.Fatal(err)
	}
}

// Reload does what `nats-server --signal reload` does, with other settings in the file.
func (s *ReloadableNATS) Reload(tb testing.TB, settings string) {
	tb.Helper()
	s.write(tb, settings)
	// For direct gets the server reads its options without a lock. To look at all connections takes the
	// locks that their goroutines take, so that no earlier read races with the reload.
	if _, err := s.Connz(&server.ConnzOptions{}); err != nil {
		tb.Fatal(err)
	}
	if err := s.Server.Reload(); err != nil {
		tb.Fatal(err)
	}
}

// Accepted is how many connections the server has accepted so far, whatever became of them.
func (s *ReloadableNATS) Accepted(tb testing.TB) uint64 {
	tb.Helper()
	state, err := s.Varz(nil)
	if err != nil {
		tb.Fatal(err)
	}
	return state.TotalConnections
}
