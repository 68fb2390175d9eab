package natsconn_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/testdata/testenv/configtest"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// A limit on the subscriptions of a connection that a reload lowers and a later one raises again: the
// server refuses subscriptions when the client reconnects, and the client does not subscribe again.
func TestSubscriptionsLimited(t *testing.T) {
	t.Parallel()
	settings := func(limits string) string {
		return fmt.Sprintf(`accounts {
  A {
    users: [{user: any, password: any}, {user: bridge, password: right}]
    %s
  }
}
authorization {timeout: 300}
no_auth_user: any
`, limits)
	}
	s := suite.NATSReloadable(t, settings(""))
	other, err := nats.Connect(s.ClientURL(), nats.Timeout(suite.Patience), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	if _, err := other.Subscribe("asked", func(m *nats.Msg) { _ = m.Respond([]byte("yes")) }); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	configtest.ReplaceFiles(t, dir, map[string]string{"password": "right"})
	conn := connect(t, s, natsconn.Config{User: "bridge", PasswordFile: filepath.Join(dir, "password")}, zap.NewNop())
	eventually(t, "the connection", func() error { return connected(conn) })
	for i := range 5 {
		if _, err := conn.NATS.Subscribe(fmt.Sprintf("served.%d", i), func(m *nats.Msg) { _ = m.Respond([]byte("yes")) }); err != nil {
			t.Fatal(err)
		}
	}
	answered := func() error {
		_, err := conn.NATS.Request("asked", nil, 300*time.Millisecond)
		for i := range 5 {
			if _, served := other.Request(fmt.Sprintf("served.%d", i), nil, 300*time.Millisecond); served != nil {
				err = errors.Join(err, fmt.Errorf("served.%d: %w", i, served))
			}
		}
		return err
	}
	eventually(t, "answers at first", answered)
	s.Reload(t, settings("limits {max_subs: 3}"))
	eventually(t, "no answers with the lower limit", func() error {
		if err := connected(conn); err != nil {
			return err
		}
		if answered() == nil || !errors.Is(conn.NATS.LastError(), nats.ErrMaxSubscriptionsExceeded) {
			return fmt.Errorf("answered, or %w", conn.NATS.LastError())
		}
		return nil
	})
	s.Reload(t, settings(""))
	eventually(t, "answers with the limit raised", answered)
}
