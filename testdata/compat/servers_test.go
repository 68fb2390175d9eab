// Package compat_test runs what depends on the storage of NATS on the versions of nats-server that
// docs/compatibility.md names.
package compat_test

import (
	"cmp"
	"os"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// newest is the word of COMPAT_SERVERS for the version that this module embeds.
const newest = "newest"

// onEach runs a test on each version that COMPAT_SERVERS has, on the newest without it. The version
// is one for testenv.NATSOptions.
func onEach(t *testing.T, test func(t *testing.T, version string)) {
	t.Helper()
	t.Parallel()
	for _, name := range strings.Fields(cmp.Or(os.Getenv("COMPAT_SERVERS"), newest)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, strings.TrimPrefix(name, newest))
		})
	}
}

// startNATS starts servers that end with the test.
func startNATS(t *testing.T, opts testenv.NATSOptions) *testenv.NATS {
	t.Helper()
	opts.Logf = t.Logf
	n, err := testenv.StartNATS(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// The servers are of the version that a test names, also as a cluster.
func TestServers(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		n := startNATS(t, testenv.NATSOptions{Servers: 3, Version: version})
		for i := range n.Size() {
			nc, err := nats.Connect(n.ServerURL(i))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(nc.Close)
			if got := nc.ConnectedServerVersion(); version != "" && got != version {
				t.Errorf("server %d is of version %s, want %s", i, got, version)
			}
		}
	})
}
