package natsconn

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// TestRefusalIsTriedAgain: nats.go closes a connection after two refusals unless its option says
// otherwise.
func TestRefusalIsTriedAgain(t *testing.T) {
	for _, test := range []struct {
		name    string
		happens func(*dialer)
		want    bool
	}{
		{"at the start", func(*dialer) {}, false},
		{"refused at the start", (*dialer).refuse, false},
		{"accepted", (*dialer).accept, true},
		{"refused later", func(d *dialer) { d.accept(); d.refuse() }, true},
		{"refused for too long", func(d *dialer) { d.accept(); d.refusedSince = time.Now().Add(-refusalLimit) }, false},
		{"refused since then", func(d *dialer) { d.accept(); d.refusedSince = time.Now().Add(-refusalLimit); d.refuse() }, false},
		{"accepted again", func(d *dialer) { d.refusedSince = time.Now().Add(-refusalLimit); d.accept() }, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := &dialer{client: &nats.Conn{}}
			test.happens(d)
			if err := d.identify(); err != nil {
				t.Fatal(err)
			}
			if got := d.client.Opts.IgnoreAuthErrorAbort; got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}
