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

// rightsOf are the settings of a server whose user "bridge" has these permissions. Clients without a
// user have all.
func rightsOf(permissions string) string {
	return fmt.Sprintf(`authorization {timeout: 300, users: [{user: any, password: any}, {user: bridge, password: right, permissions: {%s}}]}
no_auth_user: any
`, permissions)
}

// A right to subscribe that a reload takes away and a later one gives back: the client is answered
// again, and so are its own requesters, without another process and without a restart of the server.
func TestRightGivenBack(t *testing.T) {
	t.Parallel()
	const all = `publish: ">", subscribe: ">"`
	for name, test := range map[string]struct {
		first, denied, back string
		asks, serves        bool // whether it is answered, and serves, while the right is missing
	}{
		"inbox":               {all, `publish: ">", subscribe: {allow: ">", deny: "_INBOX.>"}`, "", false, true},
		"inbox at first":      {`publish: ">", subscribe: {allow: ">", deny: "_INBOX.>"}`, `publish: ">", subscribe: {allow: ">", deny: "_INBOX.>"}`, "", false, true},
		"inbox and other":     {all, `publish: ">", subscribe: {deny: ["_INBOX.>", "served"]}`, "", false, false},
		"one after the other": {all, `publish: ">", subscribe: {deny: ["_INBOX.>", "served"]}`, `publish: ">", subscribe: {deny: "served"}`, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := suite.NATSReloadable(t, rightsOf(test.first))
			other, err := nats.Connect(s.ClientURL(), nats.Timeout(suite.Patience))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(other.Close)
			answer := func(m *nats.Msg) { _ = m.Respond([]byte("yes")) }
			if _, err := other.Subscribe("asked", answer); err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			configtest.ReplaceFiles(t, dir, map[string]string{"password": "right"})
			conn := connect(t, s, natsconn.Config{User: "bridge", PasswordFile: filepath.Join(dir, "password")}, zap.NewNop())
			eventually(t, "the connection", func() error { return connected(conn) })
			if _, err := conn.NATS.QueueSubscribe("served", "q", answer); err != nil {
				t.Fatal(err)
			}
			ask := func(nc *nats.Conn, subject string, want bool) {
				t.Helper()
				eventually(t, subject, func() error {
					_, err := nc.Request(subject, nil, 300*time.Millisecond)
					if (err == nil) != want {
						return errors.Join(fmt.Errorf("answered: %t", !want), err)
					}
					return nil
				})
			}
			if test.first == all {
				ask(conn.NATS, "asked", true)
				ask(other, "served", true)
				s.Reload(t, rightsOf(test.denied))
			}
			ask(conn.NATS, "asked", test.asks)
			ask(other, "served", test.serves)
			reconnects := conn.NATS.Stats().Reconnects
			ask(conn.NATS, "asked", test.asks)
			if got := conn.NATS.Stats().Reconnects; got != reconnects {
				t.Errorf("reconnected %d times while the right is missing", got-reconnects)
			}
			back := func() {
				t.Helper()
				reconnects++
				ask(conn.NATS, "asked", true)
				ask(other, "served", test.back == "" || test.back == all)
				if got := conn.NATS.Stats().Reconnects; got != reconnects {
					t.Errorf("reconnected %d times, want once", got+1-reconnects)
				}
			}
			if test.back != "" { // the inbox first
				s.Reload(t, rightsOf(test.back))
				back()
				test.back = all
			}
			s.Reload(t, rightsOf(all))
			back()
		})
	}
}
