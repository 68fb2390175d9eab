package suite

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/testdata/testenv/network"
)

// FreePort is a port of 127.0.0.1 that is reserved until the end of the test, also while its server
// is down: no other test takes it, and the system takes it for no connection.
func FreePort(tb testing.TB) int {
	tb.Helper()
	address, release, err := network.ReserveAddress()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(release)
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
	if opts.AuthTimeout == 0 {
		opts.AuthTimeout = Patience.Seconds() // else a client that the machine holds up is refused
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

// Leafnode runs two NATS servers like NATS: a hub, and a leafnode that lets messages of so many bytes
// through. intact is nil as long as the leafnode's first connection to the hub has lasted.
func Leafnode(tb testing.TB, maxPayload int32) (hub, leaf *server.Server, intact func() error) {
	tb.Helper()
	port := FreePort(tb)
	hub = NATS(tb, &server.Options{ServerName: "hub", LeafNode: server.LeafNodeOpts{Host: "127.0.0.1", Port: port}})
	remote := &server.RemoteLeafOpts{URLs: []*url.URL{{Scheme: "nats-leaf", Host: fmt.Sprintf("127.0.0.1:%d", port)}}}
	leaf = NATS(tb, &server.Options{
		ServerName: "leaf", MaxPayload: maxPayload, LeafNode: server.LeafNodeOpts{Remotes: []*server.RemoteLeafOpts{remote}},
	})
	connection := func() (id uint64, err error) {
		leafs, err := hub.Leafz(nil)
		if err == nil && len(leafs.Leafs) != 1 {
			err = fmt.Errorf("%d leafnodes are connected", len(leafs.Leafs))
		}
		if err != nil {
			return 0, err
		}
		return leafs.Leafs[0].ID, nil
	}
	var first uint64
	Eventually(tb, Patience, "the leafnode is connected", func() (err error) {
		first, err = connection()
		return err
	})
	return hub, leaf, func() error {
		now, err := connection()
		if err == nil && now != first {
			err = errors.New("the leafnode's connection was closed")
		}
		return err
	}
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

// Recreate makes a stream again that was deleted. The server may still remove what the old one left:
// then it refuses, or makes a stream that ends where the old one did.
func Recreate(tb testing.TB, js jetstream.JetStream, cfg jetstream.StreamConfig) {
	tb.Helper()
	Eventually(tb, Patience, "stream "+cfg.Name+" is made again", func() error {
		stream, err := js.CreateStream(tb.Context(), cfg)
		if err != nil {
			return err
		}
		last := stream.CachedInfo().State.LastSeq
		if cfg.Mirror != nil || len(cfg.Sources) > 0 || last == max(cfg.FirstSeq, 1)-1 {
			return nil
		}
		return errors.Join(fmt.Errorf("it ends at %d", last), js.DeleteStream(tb.Context(), cfg.Name))
	})
}
