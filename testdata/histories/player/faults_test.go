package player

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/testdata/histories/model"
)

// An app that the stream deleted in a range that it lost, and whose entry is of that range, is owed a
// delete: else its entry stays for ever.
func TestHealOwesDelete(t *testing.T) {
	t.Parallel()
	h, err := New(t.Context(), 1, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	w, id := h.writer, h.writer.cluster.ids[0]
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	update := func() { do(w.append(t.Context(), change{id: id, to: w.cluster.change(id)})) }
	update()
	do(w.project(t.Context(), -1))
	do(w.remove(t.Context(), func(*model.Message) bool { return true }, func(s jetstream.Stream) error { return s.Purge(t.Context()) }))
	s, err := w.save("early")
	do(err)
	update()
	do(w.project(t.Context(), -1))
	w.cluster.remove(id)
	do(w.append(t.Context(), change{id: id}))
	do(w.rollback(s, true, false))
	do(w.heal(t.Context(), func() error { return nil }, false))
	do(w.project(t.Context(), -1))
	if e, has := w.bucket.entries[id]; !has || !e.marker() || w.published[id].exists {
		t.Errorf("the bucket shows %s as of %v, want a marker", id, e.event)
	}
}
