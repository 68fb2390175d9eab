package natsconn_test

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/testdata/testenv/configtest"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

const rotations = 10

// TestRotation replaces each kind of identity ten times, on the server and in the files of the
// client, in turns the file first and the server first. A server that comes first refuses the
// client, which then finds a file that it cannot use, and at last the right one. The old identity
// is worth nothing then.
func TestRotation(t *testing.T) {
	t.Parallel()
	for name, newKind := range map[string]func(*testing.T) kind{
		"password": newPasswords, "token": newTokens, "nkey": newNKeys, "creds": newCreds, "TLS": newCertificates,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKind(t)
			s := suite.NATSReloadable(t, k.next())
			current := t.TempDir()
			configtest.ReplaceFiles(t, current, k.files())
			core, logs := observer.New(zapcore.DebugLevel)
			conn := connect(t, s, k.config(current), zap.New(core))
			eventually(t, "the connection", func() error { return connected(conn) })
			for i := range rotations {
				before, old, refused := conn.NATS.Stats().Reconnects, t.TempDir(), k.files()
				configtest.ReplaceFiles(t, old, refused)
				settings := k.next()
				if i%2 == 0 {
					configtest.ReplaceFiles(t, current, k.files())
					s.Reload(t, settings)
					kick(s, conn)
				} else {
					s.Reload(t, settings)
					kick(s, conn)
					tries := s.Accepted(t)
					eventually(t, "the server refuses the old one", func() error {
						if n := s.Accepted(t) - tries; n < 4 {
							return fmt.Errorf("%d tries since then: %w", n, cmp.Or(conn.Err(), reason(conn, "")))
						}
						return reason(conn, "")
					})
					for file, content := range k.broken() {
						breakFile(t, filepath.Join(current, file), content)
						eventually(t, file+" is named", func() error { return reason(conn, filepath.Join(current, file)+": ") })
						configtest.ReplaceFiles(t, current, refused)
					}
					configtest.ReplaceFiles(t, current, k.files())
				}
				eventually(t, fmt.Sprintf("connection %d", i+2), func() error {
					if conn.NATS.Stats().Reconnects == before {
						return errors.New("still the one before")
					}
					return connected(conn)
				})
				stale := connect(t, s, k.config(old), zap.NewNop())
				eventually(t, "the old identity is refused", func() error {
					if stale.NATS.IsConnected() {
						return fmt.Errorf("it is accepted: %w", suite.ErrFatal)
					}
					return reason(stale, "")
				})
				stale.Cut()
			}
			if err := conn.Err(); err != nil {
				t.Error(err)
			}
			for _, entry := range logs.All() {
				for _, secret := range k.secrets() {
					if text := fmt.Sprint(entry.Message, entry.ContextMap()); strings.Contains(text, secret) {
						t.Fatalf("a secret is in the log: %s", text)
					}
				}
			}
		})
	}
}

// TestRefusedAtTheStart: without an accepted connection a refusal is for good.
func TestRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	s := suite.NATSReloadable(t, passwordSettings("right"))
	dir := t.TempDir()
	configtest.ReplaceFiles(t, dir, map[string]string{"password": "wrong"})
	conn := connect(t, s, natsconn.Config{User: "bridge", PasswordFile: filepath.Join(dir, "password")}, zap.NewNop())
	select {
	case <-conn.Closed():
	case <-time.After(suite.Patience):
		t.Fatal("the connection is not closed")
	}
	if err := conn.Err(); !errors.Is(err, nats.ErrAuthorization) || !strings.Contains(err.Error(), "nats-user") {
		t.Errorf("got %v, want a refusal that names nats-user", err)
	}
}

// TestFileMissingAtTheStart: a file that is being replaced at that moment is waited for.
func TestFileMissingAtTheStart(t *testing.T) {
	t.Parallel()
	for name, newKind := range map[string]func(*testing.T) kind{"password": newPasswords, "nkey": newNKeys} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKind(t)
			s := suite.NATSReloadable(t, k.next())
			dir := t.TempDir()
			conn := connect(t, s, k.config(dir), zap.NewNop())
			eventually(t, "the file is named", func() error { return reason(conn, dir) })
			configtest.ReplaceFiles(t, dir, k.files())
			eventually(t, "the connection", func() error { return connected(conn) })
		})
	}
}

// kick ends the client's connection, which a reload of certificates does not do.
func kick(s *suite.ReloadableNATS, conn *natsconn.Conn) {
	if id, err := conn.NATS.GetClientID(); err == nil {
		_ = s.DisconnectClientByID(id) // it may be gone
	}
}

func connect(t *testing.T, s *suite.ReloadableNATS, cfg natsconn.Config, log *zap.Logger) *natsconn.Conn {
	t.Helper()
	cfg.URLs = []string{"nats://" + s.Addr().String()}
	conn, err := natsconn.Connect(t.Context(), cfg, "test", log,
		nats.ReconnectWait(20*time.Millisecond), nats.ReconnectJitter(0, 0), nats.Timeout(suite.Patience))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(false) })
	return conn
}

func connected(conn *natsconn.Conn) error {
	if err := conn.Err(); err != nil {
		return fmt.Errorf("%w: %w", suite.ErrFatal, err)
	}
	if !conn.NATS.IsConnected() {
		return fmt.Errorf("not connected: %s", conn.Reason())
	}
	return conn.NATS.FlushTimeout(suite.Patience)
}

// reason reports whether the client has said why it does not connect, with a text in it.
func reason(conn *natsconn.Conn, text string) error {
	if got := conn.Reason(); got == "" || !strings.Contains(got, text) {
		return fmt.Errorf("got reason %q, want one with %q", got, text)
	}
	return nil
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	suite.Eventually(t, suite.Patience, what, check)
}

// missing stands for a file that is not there.
const missing = "(missing)"

func breakFile(t *testing.T, path, content string) {
	t.Helper()
	var err error
	if content == missing {
		err = os.Remove(path)
	} else {
		err = os.WriteFile(path, []byte(content), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
