package e2e_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
)

// steady waits until a count has not changed for a while, and returns it.
func (w *world) steady(what string, count func() int64) int64 {
	w.t.Helper()
	last, same := int64(0), 0
	eventually(w.t, what, func() error {
		if now := count(); now != last || now == 0 {
			last, same = now, 0
		} else if same++; same >= 20 {
			return nil
		}
		return errNotYet
	})
	return last
}

// Another client appends to the stream, again and again, before the bridge's appends arrive, which are
// all refused. The bridge sends fewer at one time each time, not all that may be unacknowledged.
func TestAppendsInVain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const apps = 300
	gate := w.natsGate()
	r := w.startAt(gate, w.config())
	w.create(w.app("first"))
	w.converged(w.waitFor(0, "created first"))
	const foreign = "flyte.apps.events.foreign" // no event
	var sent atomic.Int64                       // appends of the bridge, refused or not
	sub := must[*nats.Subscription](t)(w.nc.Subscribe("flyte.apps.events.vision.>", func(*nats.Msg) { sent.Add(1) }))
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	must[any](t)(nil, w.nc.Flush())

	plant := func() {
		for range apps { // else they take the places of the first appends, and the others are stored
			w.plant(foreign, nil, "")
		}
	}

	gate.deafen()
	plant()
	w.manyApps(apps)
	var inVain []int64
	for round := range 3 {
		inVain = append(inVain, w.steady("it waits for answers", sent.Load))
		if round == 2 {
			break
		}
		again := gate.holdAt("PUB flyte.apps.events.vision.")
		gate.hear()
		reached(t, "it appends again", again)
		plant()
		sent.Store(0)
		gate.deafen()
		gate.release()
	}
	gate.hear()
	t.Logf("%v appends were refused", inVain)
	if inVain[0] < apps/2 || inVain[1] > inVain[0]/2 || inVain[2] > max(inVain[1]/2, 1) {
		t.Errorf("%v appends were refused, want many, and at most half as many each time", inVain)
	}
	eventually(t, "every app is in the stream", func() error {
		if got := r.metric("appbridge_events_published_total"); got < apps+1 {
			return errors.Join(errNotYet, r.bridge.Ready())
		}
		return nil
	})
	r.waitReady()
	seen := map[string]bool{}
	for _, m := range w.messages(subjects.DefaultStream) {
		if m.Subject == foreign {
			continue
		}
		if !strings.HasSuffix(m.Subject, ".created") || seen[m.Subject] {
			t.Errorf("sequence %d: %s", m.Sequence, m.Subject)
		}
		seen[m.Subject] = true
	}
	if len(seen) != apps+1 {
		t.Errorf("the stream has %d apps, want %d", len(seen), apps+1)
	}
}
