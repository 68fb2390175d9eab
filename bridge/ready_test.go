package bridge

import (
	"sync"
	"testing"
)

// A bridge is not ready while one session ends and the next one begins, also when Ready reads a part
// of its state before that and a part after it.
func TestReadyBetweenSessions(t *testing.T) {
	t.Parallel()
	l := newLively(t, testServer(t))
	b, s := l.bridge, l.session
	poll(t, "the bridge is ready", b.Ready)
	reconnects := b.nc.Stats().Reconnects
	b.memory.checked.Store(reconnects + 1) // as after a reconnect
	if b.Ready() == nil {
		t.Fatal("ready before stream and bucket are checked")
	}

	var sessions sync.WaitGroup
	defer sessions.Wait()
	stop := make(chan struct{})
	defer close(stop)
	sessions.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			// As session and start do it, and without publishing: the stream was never checked.
			b.status.set("not publishing")
			b.publishing.Store(nil)
			b.status.set("waiting for JetStream")
			b.memory.checked.Store(reconnects)
			b.memory.checked.Store(reconnects + 1)
			next := b.newSession(s.kube)
			next.queue, next.publisher, next.projector = s.queue, s.publisher, s.projector
			b.publishing.Store(next)
			b.status.set("")
		}
	})
	for range 100_000 {
		if b.Ready() == nil {
			t.Fatal("ready between two sessions")
		}
	}
}
