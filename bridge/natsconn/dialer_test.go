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
		{"refused for too long", func(d *dialer) { d.accept(); refusedFor(d, 0) }, false},
		{"refused since then", func(d *dialer) { d.accept(); refusedFor(d, 0); d.refuse() }, false},
		{"accepted again", func(d *dialer) { refusedFor(d, 0); d.accept() }, true},
		{"no server since then", func(d *dialer) { d.accept(); refusedFor(d, 2*refusalGap) }, true},
		{"refused after that", func(d *dialer) { d.accept(); refusedFor(d, 2*refusalGap); d.refuse() }, true},
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

// refusedFor makes d refused for as long as that is tried again, the last time so long ago.
func refusedFor(d *dialer, ago time.Duration) {
	d.refusedSince, d.refusedLast = time.Now().Add(-refusalLimit), time.Now().Add(-ago)
}
