package projector

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/store"
)

// The stream has an event under another subject, and that message is delivered before the publisher
// has the acknowledgement.
func TestAcknowledgedAfterDelivery(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first := r.append(r.event("1", nil))
	p, snap := r.newProjector(zap.NewNop())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(t.Context(), snap) }()
	r.reflects(p, first.Sequence)
	ev := r.event("2", first)
	at := first.Sequence + 1
	p.NoteSent(at)
	ack, err := r.js.PublishMsg(t.Context(), &nats.Msg{Subject: "flyte.apps.events.renamed.updated", Header: nats.Header{"ce-id": {"x"}}, Data: ev.Msg.Data})
	if err != nil || ack.Sequence != at {
		t.Fatal(ack, err)
	}
	r.reflects(p, at)
	p.NoteStored(at, ev)
	altered, ok := errors.AsType[*store.AlteredError](<-ended)
	if !ok || altered.Sequence != at {
		t.Errorf("got %v, want that of sequence %d", altered, at)
	}
}

// Most of the events of a gap are removed, and one is on another subject, as where a consumer does not
// deliver it.
func TestAlteredEventInAGap(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p, _ := r.newProjector(zap.NewNop())
	ev := r.event("1", nil)
	const n = store.ReadWindow + 10
	for at := uint64(1); at <= n; at++ {
		p.NoteSent(at)
		if ack, err := r.js.Publish(t.Context(), "flyte.apps.events.renamed.updated", nil); err != nil || ack.Sequence != at {
			t.Fatal(ack, err)
		}
		p.NoteStored(at, ev)
	}
	if err := r.stream.Purge(t.Context(), jetstream.WithPurgeSequence(n)); err != nil {
		t.Fatal(err)
	}
	if err := p.compareUndelivered(t.Context(), 1, n-1); err != nil {
		t.Errorf("of removed events: %v", err)
	}
	altered, ok := errors.AsType[*store.AlteredError](p.compareUndelivered(t.Context(), 1, n))
	if !ok || altered.Sequence != n {
		t.Errorf("got %v, want that of sequence %d", altered, n)
	}
}

// The acknowledgement comes while the message is being projected: behind the look for it, and before it
// is forgotten.
func TestAcknowledgedWhileProjected(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p, _ := r.newProjector(zap.NewNop())
	p.NoteSent(1)
	if _, ok := p.memory.deliver(1); ok {
		t.Fatal("it is acknowledged before")
	}
	p.NoteStored(1, r.event("1", nil))
	p.memory.forget(1)
	if late, ok := p.memory.oldestLate(); !ok || late.sequence != 1 {
		t.Errorf("got %+v, want that of sequence 1", late)
	}
}
