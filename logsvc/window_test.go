package logsvc

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
)

// Silence counts from when something is there to be acknowledged.
func TestWindowWaiting(t *testing.T) {
	t.Parallel()
	w := newWindow(2, &memoryUse{})
	now := time.Now()
	if d := w.waiting(now.Add(time.Hour)); d != 0 {
		t.Errorf("got %s with nothing open", d)
	}
	for seq := range uint64(2) {
		if !w.tryEnter(seq, &nats.Msg{Data: make([]byte, 10)}, nil) {
			t.Fatal("the window is full")
		}
	}
	if w.tryEnter(2, &nats.Msg{}, nil) {
		t.Error("a third message may be sent")
	}
	if d := w.waiting(time.Now().Add(time.Minute)); d < time.Minute || d > 2*time.Minute {
		t.Errorf("got %s", d)
	}
	if got := len(w.overdue(time.Now())); got != 0 {
		t.Errorf("%d are overdue at once", got)
	}
	if got := len(w.overdue(time.Now().Add(resendAfter))); got != 2 {
		t.Errorf("%d are overdue", got)
	}
	w.acknowledge(0)
	w.acknowledge(0)
	w.acknowledge(1)
	if d := w.waiting(time.Now().Add(time.Hour)); d != 0 || w.bytes != 0 {
		t.Errorf("got %s and %d bytes with nothing open", d, w.bytes)
	}
}

// A window is bounded by bytes, too.
func TestWindowBytes(t *testing.T) {
	t.Parallel()
	w := newWindow(maxWindow, &memoryUse{})
	n := 0
	for uint64(n) < maxWindow && w.tryEnter(uint64(n), &nats.Msg{Data: make([]byte, 256<<10)}, nil) {
		n++
	}
	if n*256<<10 != windowBytes {
		t.Errorf("%d messages of 256 KiB are open", n)
	}
}

// What was lost comes again although the reader acknowledges what came after it.
func TestWindowLost(t *testing.T) {
	t.Parallel()
	w := newWindow(8, &memoryUse{})
	for seq := range uint64(5) {
		if !w.tryEnter(seq, &nats.Msg{Data: []byte{byte(seq)}}, nil) {
			t.Fatal("the window is full")
		}
	}
	w.acknowledge(0)
	w.acknowledge(2)
	w.acknowledge(3)
	later := time.Now().Add(resendAfter)
	w.acknowledge(4)
	if got := w.overdue(later); len(got) != 1 || got[0].Data[0] != 1 {
		t.Errorf("got %v", got)
	}
	w.acknowledge(1)
	if !w.tryEnter(5, &nats.Msg{}, nil) {
		t.Error("the window is full")
	}
	w.acknowledge(5)
	if err := w.drain(t.Context()); err != nil {
		t.Error(err)
	}
}

// Lines that were not matched are counted after those that came before them.
func TestOutboxMissed(t *testing.T) {
	t.Parallel()
	lines := []Line{{Text: []byte("a")}, {Text: []byte("b")}}
	o := newOutbox(&logRequest{format: subjects.LogFormatText}, nil, &memoryUse{}, testMetrics())
	missed := 0
	o.filter = func(_ context.Context, _ string, lines []Line, _ bool) ([]Line, []int, int, error) {
		return lines[:len(lines)-missed], nil, missed, nil
	}
	for range 3 {
		if err := o.Lines(t.Context(), "r", lines, true, ""); err != nil {
			t.Fatal(err)
		}
		missed = 2
	}
	if len(o.ready) != 2 || o.ready[0].batch == nil || o.ready[1].dropped != 4 {
		t.Errorf("got %+v", o.ready)
	}
}
