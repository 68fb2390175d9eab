package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"
	"go.uber.org/zap/zaptest/observer"

	"github.com/appbridge/appbridge/cmd/appbridge/config"
	"github.com/appbridge/appbridge/testdata/testenv/configtest"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// startNATS runs a server of its own for a test.
func startNATS(t *testing.T, options server.Options) *server.Server {
	t.Helper()
	return suite.NATS(t, &options)
}

func TestServeEndsWhenNATSRefusesTheClient(t *testing.T) {
	t.Parallel()
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := user.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	s := startNATS(t, server.Options{
		Users: []*server.User{{Username: "u", Password: "right"}},
		Nkeys: []*server.NkeyUser{{Nkey: public}},
	})
	addr := s.Addr().String()
	seed := configtest.NewSeed(t)
	dir := t.TempDir()
	for _, test := range []struct {
		name string
		cfg  func(*config.Config)
	}{
		{"no credentials", func(c *config.Config) { c.NATS.URLs = []string{"nats://" + addr} }},
		{"wrong password", func(c *config.Config) { c.NATS.URLs = []string{"nats://u:hunter2@" + addr} }},
		{"wrong password in a file", func(c *config.Config) {
			c.NATS.URLs, c.NATS.User = []string{"nats://" + addr}, "u"
			c.NATS.PasswordFile = configtest.WriteFile(t, dir, "password", "hunter2\n")
		}},
		{"token", func(c *config.Config) {
			c.NATS.URLs, c.NATS.TokenFile = []string{"nats://" + addr}, configtest.WriteFile(t, dir, "token", "hunter2\n")
		}},
		{"unknown nkey", func(c *config.Config) {
			c.NATS.URLs, c.NATS.NKey = []string{"nats://" + addr}, configtest.WriteFile(t, dir, "user.nk", seed)
		}},
		{"unknown user", func(c *config.Config) {
			c.NATS.URLs, c.NATS.Creds = []string{"nats://" + addr}, configtest.WriteCreds(t, dir, seed)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := testConfig(t)
			cfg.NATSEmbedded = false
			test.cfg(&cfg)
			core, logs := observer.New(zapcore.DebugLevel)
			// The bridge's own error comes second to the reason.
			b := fakeBridge{run: func(ctx context.Context) error {
				<-ctx.Done()
				return errors.New("nats: connection closed")
			}}
			err := startServing(t, cfg, b, zap.New(core)).wait(t)
			if err == nil {
				t.Fatal("got no error")
			}
			want := "NATS at nats://" + addr + " refuses this client: nats: Authorization Violation; check nats-creds, nats-nkey, nats-user, nats-token-file or the user in nats-url"
			if got := err.Error(); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			for _, entry := range logs.All() {
				if text, _ := json.Marshal(entry.ContextMap()); strings.Contains(string(text)+entry.Message, "hunter2") {
					t.Errorf("the password is in the log: %s %s", entry.Message, text)
				}
			}
		})
	}
}

func TestServeWaitsForNATS(t *testing.T) {
	t.Parallel()
	first := startNATS(t, server.Options{})
	addr, ok := first.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("got address %v, want one of TCP", first.Addr())
	}
	first.Shutdown()
	first.WaitForShutdown()

	cfg := testConfig(t)
	cfg.NATSEmbedded, cfg.NATS.URLs = false, []string{"nats://" + addr.String()}
	core, logs := observer.New(zapcore.InfoLevel)
	s := startServing(t, cfg, fakeBridge{run: untilDone}, zap.New(core))
	waitFor(t, "a line that says what is waited for", func() bool { return logs.FilterMessage("waiting for NATS").Len() > 0 })
	if got := logs.FilterMessage("waiting for NATS").All()[0].ContextMap()["error"]; !strings.Contains(got.(string), "connection refused") {
		t.Errorf("got reason %q, want a refused connection", got)
	}
	startNATS(t, server.Options{Port: addr.Port})
	waitFor(t, "the connection", s.nc.IsConnected)
	// One of the bridge, two of the log service and one of the app operations.
	waitFor(t, "four lines that report it", func() bool { return logs.FilterMessage("NATS connected").Len() == 4 })
	s.stop()
	if err := s.wait(t); err != nil {
		t.Error(err)
	}
}

// TestServeReportsWhyAConnectionFails: the client reports these reasons to no
// handler once its first try is over.
func TestServeReportsWhyAConnectionFails(t *testing.T) {
	t.Parallel()
	free := startNATS(t, server.Options{})
	addr, ok := free.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("got address %v, want one of TCP", free.Addr())
	}
	free.Shutdown()
	free.WaitForShutdown()
	cfg := testConfig(t)
	cfg.NATSEmbedded, cfg.NATS.URLs = false, []string{"nats://" + addr.String()}
	cfg.NATS.NKey = configtest.WriteFile(t, t.TempDir(), "user.nk", configtest.NewSeed(t))
	core, logs := observer.New(zapcore.InfoLevel)
	startServing(t, cfg, fakeBridge{run: untilDone}, zap.New(core))
	startNATS(t, server.Options{Port: addr.Port})
	waitFor(t, "a line about nkeys", func() bool {
		for _, entry := range logs.FilterMessage("waiting for NATS").All() {
			if entry.ContextMap()["error"] == nats.ErrNkeysNotSupported.Error() {
				return true
			}
		}
		return false
	})
}

func TestServeStopsWithoutNATS(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.NATSEmbedded, cfg.NATS.URLs = false, []string{"nats://127.0.0.1:1"}
	s := startServing(t, cfg, fakeBridge{run: untilDone}, zaptest.NewLogger(t))
	s.stop()
	if err := s.wait(t); err != nil {
		t.Errorf("got %v after a clean stop", err)
	}
}

func TestServeWithTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certificate, key := configtest.WriteKeyPair(t, dir, "server")
	other, _ := configtest.WriteKeyPair(t, dir, "other")
	clientCertificate, clientKey := configtest.WriteKeyPair(t, dir, "client")
	tlsConfig, err := server.GenTLSConfig(&server.TLSConfigOpts{CertFile: certificate, KeyFile: key, CaFile: clientCertificate, Verify: true, Timeout: 2})
	if err != nil {
		t.Fatal(err)
	}
	natsServer := startNATS(t, server.Options{TLSConfig: tlsConfig, TLSVerify: true, TLSTimeout: 2})
	cfg := testConfig(t)
	cfg.NATSEmbedded, cfg.NATS.URLs = false, []string{"tls://" + natsServer.Addr().String()}
	cfg.NATS.TLSCA, cfg.NATS.TLSCert, cfg.NATS.TLSKey = certificate, clientCertificate, clientKey

	s := startServing(t, cfg, fakeBridge{run: untilDone}, zaptest.NewLogger(t))
	waitFor(t, "the connection", s.nc.IsConnected)

	cfg.NATS.TLSCA = other
	core, logs := observer.New(zapcore.InfoLevel)
	startServing(t, cfg, fakeBridge{run: untilDone}, zap.New(core))
	waitFor(t, "a line about the unknown authority", func() bool {
		for _, entry := range logs.FilterMessage("waiting for NATS").All() {
			if strings.Contains(entry.ContextMap()["error"].(string), "certificate") {
				return true
			}
		}
		return false
	})
}
