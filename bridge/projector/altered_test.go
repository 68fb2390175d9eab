package projector

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go"
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
