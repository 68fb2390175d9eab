package compose

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

const eventSubject = "flyte.apps.events.shop.development.cart.created"

// checkUsers checks that users of deploy/nats/accounts.conf work here with the passwords that
// init.sh made, and that nobody else does.
func (p *project) checkUsers(t *testing.T) {
	t.Helper()
	for _, login := range [][]string{nil, {"--user", "auditor", "--password", "wrong"}} {
		if out, err := p.nats(t, login, "pub", eventSubject, "x"); err == nil || !strings.Contains(err.Error(), "Authorization Violation") {
			t.Errorf("publish with %q: got %q, %v, want an authorization violation", login, out, err)
		}
	}

	p.prints(t, "audit-admin", []string{"FLYTE_APPS"},
		"stream", "add", "--config", filepath.Join(p.dir, "deploy/nats/audit-events.json"))
	p.prints(t, "auditor", []string{"ce-type: org.flyte.app.created.v1", "ce-subject: shop.development.cart", `"createEvent":`},
		"sub", "--stream", subjects.DefaultStream, "--all", "--count=1", eventSubject)
	p.prints(t, "app-operator", []string{`"name":"cart"`},
		"--inbox-prefix", "_INBOX.app-operator", "req", "--replies=1", "--timeout=30s", "flyte.apps.api.get.shop.development.cart", "")
}

// prints checks what the stock CLI prints for a user.
func (p *project) prints(t *testing.T, user string, want []string, args ...string) {
	t.Helper()
	out, err := p.nats(t, []string{"--user", user, "--password", p.password(t, user)}, args...)
	if err != nil {
		t.Errorf("%s: %v", user, err)
		return
	}
	for _, text := range want {
		if !strings.Contains(out, text) {
			t.Errorf("%s: nats %q: got\n%s\nwant %q in it", user, args, out, text)
		}
	}
}

// nats runs the stock CLI against the published port.
func (p *project) nats(t *testing.T, login []string, args ...string) (string, error) {
	t.Helper()
	cli, err := testenv.NATSCLI()
	if err != nil {
		t.Fatal(err)
	}
	all := append([]string{"--server", "nats://" + p.address(t, "nats", "4222")}, login...)
	return output(t.Context(), nil, cli, append(all, args...)...)
}

// jetstream is a client of the profile's only server.
func (p *project) jetstream(t *testing.T, user string) jetstream.JetStream {
	t.Helper()
	return p.connect(t, user, []string{"nats://" + p.address(t, "nats", "4222")})
}

// connect is a client of some servers. The user bridge is the only one with a right on the stream in
// its own account.
func (p *project) connect(t *testing.T, user string, urls []string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(strings.Join(urls, ","), nats.UserInfo(user, p.password(t, user)),
		nats.MaxReconnects(-1), nats.ReconnectWait(time.Second),
		nats.PingInterval(2*time.Second), nats.MaxPingsOutstanding(2)) // a cut network shows in no other way
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}
