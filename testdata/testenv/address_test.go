package testenv_test

import (
	"net"
	"net/url"
	"strconv"
	"testing"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// taken is an address that a program uses without reserving it.
func taken(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}

// Servers that find an address in use start again with others.
func TestAddressInUse(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{1, 3} {
		n := startNATS(t, testenv.NATSOptions{Servers: servers}.WithTakenAddress(taken(t)))
		healthy(t, n)
	}
	c := start(t, testenv.Options{NoCRDs: true}.WithTakenAddress(taken(t)))
	if err := c.RestartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	at, err := url.Parse(c.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	if port, err := strconv.Atoi(at.Port()); err != nil || port >= 32000 {
		t.Errorf("the API server is at %s, a port that the system takes for connections", c.Config.Host)
	}
}
