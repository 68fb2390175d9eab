package e2e_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/configtest"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// identity is what a bridge and its server are configured with.
type identity struct {
	option, file string
	next         func() (content, settings string) // of another one, which alone is accepted
	observer     func() nats.Option                // of this test's own connection
}

func newCredsIdentity(t *testing.T) identity {
	issuer, own, used := configtest.NewIssuer(t), configtest.NewSeed(t), ""
	return identity{
		option: "--nats-creds", file: "user.creds",
		next: func() (content, settings string) {
			if used != "" {
				issuer.Revoke(used)
			}
			used = configtest.NewSeed(t)
			return issuer.Issue(used, time.Time{}), "authorization {timeout: 300}\n" + issuer.Settings()
		},
		observer: func() nats.Option {
			return nats.UserCredentials(configtest.WriteFile(t, t.TempDir(), "observer.creds", issuer.Issue(own, time.Time{})))
		},
	}
}

func newNKeyIdentity(t *testing.T) identity {
	return identity{
		option: "--nats-nkey", file: "user.nk",
		next: func() (content, settings string) {
			seed := configtest.NewSeed(t)
			return seed, fmt.Sprintf("authorization {timeout: 300, users: [{nkey: %s}, {user: observer, password: pw}]}\n", configtest.PublicKey(t, seed))
		},
		observer: func() nats.Option { return nats.UserInfo("observer", "pw") },
	}
}

// Credentials, authorities and client certificate of a bridge are replaced ten times while apps
// change, in turns the files first and the server first. The server refuses the ones before. The
// process goes on: each state is in the stream once and in order.
func TestRotation(t *testing.T) {
	t.Parallel()
	for name, newIdentity := range map[string]func(*testing.T) identity{"creds": newCredsIdentity, "nkey": newNKeyIdentity} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRotationRig(t, newIdentity(t))
			recorder := must[*testenv.Recorder](t)(r.Record(t.Context(), r.namespace))
			bridge := r.serve(r.program, append(r.options, "--watch-buffer-size", "10000")...) // no merging: every state is counted
			// Of the bridge, the app operations, the log service (two) and the test.
			const connections = 5
			eventually(t, "all are connected", func() error {
				if n := r.server.NumClients(); n != connections {
					return fmt.Errorf("%d of %d", n, connections)
				}
				return nil
			})
			done := make(chan struct{})
			load := r.lives(done, 3)
			for i := range 10 {
				r.rotate(bridge, i%2 == 0)
				eventually(t, fmt.Sprintf("all connections are back after rotation %d", i+1), func() error {
					if n := r.server.NumClients(); n != connections {
						return fmt.Errorf("%d of %d", n, connections)
					}
					return nil
				})
				published := bridge.Metric(t, "appbridge_events_published_total")
				eventually(t, "events flow", func() error {
					if now := bridge.Metric(t, "appbridge_events_published_total"); now < published+10 {
						return fmt.Errorf("%v since", now-published)
					}
					return nil
				})
			}
			close(done)
			must[any](t)(nil, load.Wait())
			observations := r.finish(recorder)
			r.holdsAll(observations)
			eventually(t, "verify finds no difference", func() error { return r.verifies(r.program, r.options) })
			select {
			case <-bridge.Done():
				t.Fatalf("the process ended: %v", bridge.Exit())
			default:
			}
			must[any](t)(nil, bridge.Stop(patience))
			events := r.events(0)
			r.checkOrder(r.truth(observations), events)
			r.checkHeaders(events)
			r.converged(events)
			t.Logf("%d events", len(events))
		})
	}
}

// rotationRig is a world whose NATS server wants an identity and a client certificate.
type rotationRig struct {
	*world
	identity

	server  *suite.ReloadableNATS
	program program
	options []string
	dir     string // of the bridge's files
	storage string
}

func newRotationRig(t *testing.T, i identity) *rotationRig {
	t.Helper()
	w := &world{Cluster: cluster.Get(t), t: t, namespace: fmt.Sprintf("ns-%d", namespaces.Add(1))}
	must[any](t)(nil, w.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}))
	r := &rotationRig{world: w, identity: i, dir: t.TempDir(), storage: t.TempDir()}
	files, settings := r.another()
	configtest.ReplaceFiles(t, r.dir, files)
	r.server = suite.NATSReloadable(t, settings)
	address := r.server.Addr().(*net.TCPAddr).String()
	// In process it needs no certificate.
	w.nc = must[*nats.Conn](t)(nats.Connect("nats://"+address, nats.InProcessServer(r.server), nats.Timeout(patience), i.observer()))
	t.Cleanup(w.nc.Close)
	w.js = must[jetstream.JetStream](t)(jetstream.New(w.nc, jetstream.WithDefaultTimeout(store.JetStreamTimeout)))
	_, r.program = w.programs()
	path := func(name string) string { return filepath.Join(r.dir, name) }
	r.options = append(w.options("tls://"+address), i.option, path(i.file),
		"--nats-tls-ca", path("ca.pem"), "--nats-tls-cert", path("client.crt"), "--nats-tls-key", path("client.key"))
	return r
}

// another makes everything new: the files of the bridge and the settings of the server.
func (r *rotationRig) another() (files map[string]string, settings string) {
	r.t.Helper()
	dir := r.t.TempDir()
	serverCert, serverKey := configtest.WriteKeyPair(r.t, dir, "server")
	clientCert, clientKey := configtest.WriteKeyPair(r.t, dir, "client")
	content, settings := r.next()
	read := func(path string) string { return string(must[[]byte](r.t)(os.ReadFile(path))) }
	files = map[string]string{r.file: content, "ca.pem": read(serverCert), "client.crt": read(clientCert), "client.key": read(clientKey)}
	return files, fmt.Sprintf("jetstream {store_dir: %q}\ntls {cert_file: %q, key_file: %q, ca_file: %q, verify: true, timeout: 300}\n%s",
		r.storage, serverCert, serverKey, clientCert, settings)
}

// rotate replaces everything. If the server comes first, the bridge is refused, finds files that it
// cannot use, and at last the right ones.
func (r *rotationRig) rotate(bridge *replica, filesFirst bool) {
	r.t.Helper()
	files, settings := r.another()
	if filesFirst {
		configtest.ReplaceFiles(r.t, r.dir, files)
		r.server.Reload(r.t, settings)
		return
	}
	accepted := r.server.Accepted(r.t)
	r.server.Reload(r.t, settings)
	eventually(r.t, "the server refuses the old ones", func() error {
		if n := r.server.Accepted(r.t) - accepted; n < 8 {
			return fmt.Errorf("%d tries since then", n)
		}
		return nil
	})
	broken := filepath.Join(r.dir, r.file)
	named := func() int {
		return strings.Count(string(must[[]byte](r.t)(os.ReadFile(bridge.LogPath()))), broken+": ")
	}
	before := named()
	must[any](r.t)(nil, os.WriteFile(broken, []byte(files[r.file][:20]), 0o600))
	must[any](r.t)(nil, os.Remove(filepath.Join(r.dir, "ca.pem")))
	eventually(r.t, "the log names the half-written file", func() error {
		if named() == before {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	configtest.ReplaceFiles(r.t, r.dir, files)
}
