package suite

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

// NATSCluster is a JetStream cluster of three servers in this process.
type NATSCluster struct {
	tb      testing.TB
	opts    []*server.Options
	Servers []*server.Server
}

// NewNATSCluster runs the servers until the end of the test.
func NewNATSCluster(tb testing.TB) *NATSCluster {
	tb.Helper()
	Slow(tb, "uses three servers")
	c := &NATSCluster{tb: tb}
	store := tb.TempDir() // its removal comes last: servers that run write to it
	var ports []int
	for range 6 {
		ports = append(ports, FreePort(tb))
	}
	var routes []*url.URL
	for _, port := range ports[:3] {
		routes = append(routes, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", port)})
	}
	tb.Cleanup(func() {
		for _, s := range c.Servers {
			s.Shutdown()
			s.WaitForShutdown()
		}
	})
	tb.Cleanup(func() {
		for i := range c.Servers {
			c.recovered(i)
		}
	})
	for i := range 3 {
		c.opts = append(c.opts, &server.Options{
			ServerName: fmt.Sprint("s", i), Host: "127.0.0.1", Port: ports[3+i], NoSigs: true, NoLog: true,
			JetStream: true, StoreDir: filepath.Join(store, fmt.Sprint(i)),
			Cluster: server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: ports[i]}, Routes: routes,
		})
		c.Servers = append(c.Servers, nil)
		c.Start(i)
	}
	return c
}

// Start starts a server, also again.
func (c *NATSCluster) Start(i int) {
	c.tb.Helper()
	s, err := server.NewServer(c.opts[i].Clone())
	if err != nil {
		c.tb.Fatal(err)
	}
	c.Servers[i] = s
	s.Start()
	if !s.ReadyForConnections(Patience) {
		c.tb.Fatal("the NATS server does not accept connections")
	}
}

// Stop stops a server.
func (c *NATSCluster) Stop(i int) {
	c.recovered(i)
	c.Servers[i].Shutdown()
	c.Servers[i].WaitForShutdown()
}

// recovered waits until a server has the streams that are assigned to it. One that is shut down while
// it starts their Raft groups does not close their stores.
func (c *NATSCluster) recovered(i int) {
	s := c.Servers[i]
	if c.tb.Failed() || !s.Running() {
		return
	}
	eventually(context.Background(), c.tb, Patience, fmt.Sprintf("server %d is healthy", i), func() error {
		answer := httptest.NewRecorder()
		s.HandleHealthz(answer, httptest.NewRequest(http.MethodGet, "/healthz", http.NoBody))
		if answer.Code != http.StatusOK {
			return errors.New(answer.Body.String())
		}
		return nil
	})
}

// Poll tries op until it succeeds.
func (c *NATSCluster) Poll(what string, op func() error) {
	c.tb.Helper()
	Eventually(c.tb, Patience, what, op)
}

// URL is the address of all servers.
func (c *NATSCluster) URL() string {
	var urls []string
	for _, s := range c.Servers {
		urls = append(urls, s.ClientURL())
	}
	return strings.Join(urls, ",")
}

// Index is the place of a server in Servers.
func (c *NATSCluster) Index(name string) int {
	c.tb.Helper()
	i := slices.IndexFunc(c.opts, func(o *server.Options) bool { return o.ServerName == name })
	if i < 0 {
		c.tb.Fatalf("no server is called %q", name)
	}
	return i
}
