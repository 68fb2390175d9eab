package docs_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// natsOf gives a site a JetStream server, and the options of a bridge that can start.
func natsOf(t *testing.T, s *site, opts *server.Options) *server.Server {
	t.Helper()
	if opts == nil {
		opts = &server.Options{JetStream: true}
	}
	opts.StoreDir = t.TempDir()
	n := suite.NATS(t, opts)
	s.options = map[string]string{
		"kubeconfig": filepath.Join(s.dir, "kubeconfig"), "nats-url": n.ClientURL(), "cluster-name": "production",
		"http-listen": "127.0.0.1:0", "log-format": "console",
	}
	s.env = append(s.env, "NATS_URL="+n.ClientURL())
	return n
}

// natsFaults are causes that a NATS server has.
func natsFaults() []fault {
	const none = "The log service does not answer"
	return []fault{
		{
			name: "password", section: "NATS refuses the client", code: 1, repairs: true,
			cause: func(t *testing.T, s *site) {
				n := natsOf(t, s, &server.Options{JetStream: true, Users: []*server.User{{Username: "bridge", Password: "right"}}})
				address := strings.TrimPrefix(n.ClientURL(), "nats://")
				s.options["nats-url"] = "nats://bridge:wrong@" + address
				s.env = append(s.env, "NATS_URL=nats://bridge:right@"+address)
			},
		},
		{
			name: "version", section: "NATS server too old", code: 1,
			cause: func(t *testing.T, s *site) {
				n := natsOf(t, s, nil)
				s.options["nats-url"] = "nats://" + reporting(t, n.Addr().String(), "2.10.29")
			},
		},
		{
			name: "namespace", section: "A comparison failed", code: 1, args: []string{"verify", "--namespaces", "nope"}, repairs: true,
			cause: func(t *testing.T, s *site) {
				natsOf(t, s, nil)
				delete(s.options, "http-listen")
				delete(s.options, "log-format")
			},
		},
		{name: "nowhere", section: none, alone: true, code: 1, args: []string{"logs", "--nats-url", "nats://127.0.0.1:1", "a/b/c"}},
		{
			name: "no service", section: none, code: 1, args: []string{"logs", "a/b/c"}, repairs: true,
			cause: func(t *testing.T, s *site) { natsOf(t, s, nil) },
			repair: func(t *testing.T, s *site) {
				s.command(t, fault{}).untilReady()
				suite.Eventually(t, suite.Patience, "the services listen", func() error {
					if c := s.start(t, "nats micro ls"); c.wait() != 0 {
						return errors.New(c.output())
					}
					return nil
				})
			},
		},
		{name: "no app", section: none, alone: true, code: 2, args: []string{"logs"}},
		{name: "half an app", section: none, alone: true, code: 2, args: []string{"logs", "shop/production"}},
		{name: "two apps", section: none, alone: true, code: 2, args: []string{"logs", "a/b/c", "b/c/d"}},
	}
}

// reporting stands before a NATS server and rewrites the version in its INFO.
func reporting(t *testing.T, target, version string) (address string) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		running.Wait()
	})
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // closed at the end of the test
			}
			running.Go(func() {
				defer func() { _ = client.Close() }()
				up, err := new(net.Dialer).Dial("tcp", target)
				if err != nil {
					return // the client sees its connection close
				}
				defer func() { _ = up.Close() }()
				from := bufio.NewReader(up)
				info, err := from.ReadBytes('\n')
				if err != nil {
					return
				}
				info = bytes.Replace(info, []byte(`"version":"`+server.VERSION+`"`), []byte(`"version":"`+version+`"`), 1)
				if _, err := client.Write(info); err != nil {
					return
				}
				go func() {
					_, _ = io.Copy(up, client)
					_ = up.Close()
				}()
				_, _ = io.Copy(client, from)
			})
		}
	})
	return listener.Addr().String()
}
