package appwatch_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// restartable is a server that can be stopped and started again with its storage.
type restartable struct {
	t   *testing.T
	dir string
	*server.Server
	port int
}

func newRestartable(t *testing.T) *restartable {
	s := &restartable{t: t, dir: t.TempDir(), port: suite.FreePort(t)}
	s.start()
	return s
}

func (s *restartable) start() {
	s.t.Helper()
	s.Server = suite.NATS(s.t, &server.Options{JetStream: true, StoreDir: s.dir, Port: s.port})
}

func (s *restartable) stop() {
	s.Shutdown()
	s.WaitForShutdown()
}

// restart stops the server, has its files changed, starts it again and waits until the writer is
// connected to it. A message written to the old connection before its end is noticed would be lost.
func (s *restartable) restart(w *writer, change func()) {
	s.t.Helper()
	s.stop()
	change()
	s.start()
	suite.Eventually(s.t, patience, "the writer connects", func() error {
		ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
		defer cancel()
		return w.nc.FlushWithContext(ctx)
	})
}

// A reader goes on after a restart of the server where it was, and reports both.
func TestServerRestart(t *testing.T) {
	t.Parallel()
	for _, latest := range []bool{false, true} {
		t.Run(fmt.Sprintf("latest %v", latest), func(t *testing.T) {
			t.Parallel()
			s := newRestartable(t)
			w := newWriter(t, s.ClientURL())
			w.event("shop/production/a", subjects.Created, "ACTIVE")
			_, js := dial(t, s.ClientURL())
			r := watch(t, js, appwatch.Options{Latest: latest})
			r.expect("state shop/production/a created 1", "mark 1")
			next := uint64(2)
			for range 5 {
				s.restart(w, func() {})
				back := time.Now()
				w.event("shop/production/a", subjects.Updated, "ACTIVE")
				r.expect(fmt.Sprintf("event shop/production/a updated %d", next))
				t.Logf("the event arrived %v after the server was back", time.Since(back).Round(time.Millisecond))
				next++
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			if len(r.reason) < 2 || r.reason[0] == nil || r.reason[len(r.reason)-1] != nil {
				t.Errorf("got the retries %v", r.reason)
			}
		})
	}
}

// The connection of a reader is cut again and again while events are appended.
func TestReconnects(t *testing.T) {
	t.Parallel()
	const events = 3000
	s := jetStream(t)
	w := newWriter(t, s.ClientURL())
	nc, js := dial(t, s.ClientURL())
	r := watch(t, js, appwatch.Options{})
	r.expect("mark 0")
	for i := range events {
		w.event("shop/production/a", map[bool]subjects.EventKind{true: subjects.Created, false: subjects.Updated}[i == 0], "ACTIVE")
		if i%100 == 50 {
			if err := nc.ForceReconnect(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, it := range r.next(events) {
		if it.Type != appwatch.Event || it.Sequence != uint64(i+1) {
			t.Fatalf("item %d is %q", i, line(it))
		}
	}
	r.stop()
	suite.Eventually(t, patience, "the consumers are removed", func() error {
		stream, err := w.js.Stream(t.Context(), w.stream)
		if err != nil {
			return err
		}
		info, err := stream.Info(t.Context())
		if err == nil && info.State.Consumers > 0 {
			err = fmt.Errorf("%d are left", info.State.Consumers)
		}
		return err
	})
}

// copyStore is what a crash would leave of the storage of a server that is stopped.
func copyStore(t *testing.T, from, to string) {
	t.Helper()
	if err := errors.Join(os.RemoveAll(to), os.CopyFS(to, os.DirFS(from))); err != nil {
		t.Fatal(err)
	}
}

// A stream that comes back with less than was read. With a notice the reader goes on; without one,
// the sequences are given to other events, which the snapshot then has.
func TestRolledBack(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"notice", "in place", "beyond"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newRestartable(t)
			w := newWriter(t, s.ClientURL())
			w.event("shop/production/a", subjects.Created, "ACTIVE")
			saved := filepath.Join(t.TempDir(), "saved")
			s.restart(w, func() { copyStore(t, s.dir, saved) })
			_, js := dial(t, s.ClientURL())
			r := watch(t, js, appwatch.Options{})
			r.expect("state shop/production/a created 1", "mark 1")
			w.event("shop/production/a", subjects.Updated, "FAILED")
			w.event("shop/production/b", subjects.Created, "ACTIVE")
			r.expect("event shop/production/a updated 2", "event shop/production/b created 3")
			s.restart(w, func() { copyStore(t, saved, s.dir) })
			w.last = map[subjects.AppID]uint64{id("shop/production/a"): 1}
			switch name {
			case "notice":
				for range 2 {
					w.publish(&nats.Msg{Subject: w.names.Lost()})
				}
				w.purge(w.stream, jetstream.WithPurgeSubject(w.names.Lost()))
				w.notice(2, 3)
				r.expect("loss: "+noticed+" 2-3", "restart: "+noticed+" 2-3", "state shop/production/a created 1 changed",
					"state shop/production/b deleted 0 changed", "mark 4")
			case "in place":
				w.event("shop/production/a", subjects.Updated, "STOPPED")
				if got := r.next(1)[0]; got.Type != appwatch.Restart || !errors.Is(got.Reason, appwatch.ErrRolledBack) {
					t.Errorf("got %q", line(got))
				}
				// The snapshot may be older than the event, which then follows.
				last := map[subjects.AppID]appwatch.Item{}
				for last[id("shop/production/a")].Sequence != 2 || last[id("shop/production/b")].Kind != subjects.Deleted {
					it := r.next(1)[0]
					last[it.ID] = it
				}
			case "beyond":
				for range 5 {
					w.event("shop/production/c", subjects.Created, "ACTIVE")
				}
				got := r.next(1)
				if got[0].Type != appwatch.Restart || !errors.Is(got[0].Reason, appwatch.ErrRolledBack) {
					t.Errorf("got %q", line(got[0]))
				}
			}
		})
	}
}

// The stream comes back with less than it held when the reader began, and with all that it had read. The
// Mark is at the new end.
func TestMarkOfShorterStream(t *testing.T) {
	t.Parallel()
	s := newRestartable(t)
	w := newWriter(t, s.ClientURL())
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	for range 150 { // more than is delivered ahead at first
		w.event("shop/production/a", subjects.Updated, "ACTIVE")
	}
	saved := filepath.Join(t.TempDir(), "saved")
	s.restart(w, func() { copyStore(t, s.dir, saved) })
	w.event("shop/production/a", subjects.Updated, "FAILED")
	_, js := dial(t, s.ClientURL())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	put := false
	for it, err := range appwatch.Watch(ctx, js, appwatch.Options{From: appwatch.Position{StreamID: streamID, Sequence: 1}}) {
		if err != nil {
			t.Fatal(err)
		}
		if !put {
			s.restart(w, func() { copyStore(t, saved, s.dir) })
			put = true
		}
		if it.Type == appwatch.Mark {
			if it.Position.Sequence != 151 {
				t.Errorf("got %q", line(it))
			}
			return
		}
		if it.Type != appwatch.Event {
			t.Errorf("got %q", line(it))
		}
	}
	t.Error("there is no mark")
}

// The end of the context ends the sequence without an error, also while there is no server; a
// connection that is closed ends it with one.
func TestEnds(t *testing.T) {
	t.Parallel()
	s := newRestartable(t)
	w := newWriter(t, s.ClientURL())
	nc, js := dial(t, s.ClientURL())
	for _, latest := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for it, err := range appwatch.Watch(ctx, js, appwatch.Options{Latest: latest}) {
			if err != nil || it.Type != appwatch.Mark {
				t.Errorf("got %v, %v", line(it), err)
			}
			cancel()
		}
		for it, err := range appwatch.Watch(t.Context(), js, appwatch.Options{Latest: latest}) {
			if err != nil || it.Type == appwatch.Mark {
				break
			}
		}
	}
	closed := watch(t, js, appwatch.Options{})
	closed.expect("mark 0")
	s.stop()
	ctx, cancel := context.WithCancel(t.Context())
	for it, err := range appwatch.Watch(ctx, w.js, appwatch.Options{OnRetry: func(error) { cancel() }}) {
		t.Errorf("without a server there is %s, %v", line(it), err)
	}
	nc.Close()
	<-closed.done
	if !errors.Is(closed.err, appwatch.ErrClosed) {
		t.Errorf("got %v", closed.err)
	}
}

// A stream and a bucket that are missing are waited for.
func TestMissingStream(t *testing.T) {
	t.Parallel()
	s := jetStream(t)
	_, js := dial(t, s.ClientURL())
	r := watch(t, js, appwatch.Options{})
	suite.Eventually(t, patience, "the reader reports it", func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, err := range r.reason {
			if errors.Is(err, jetstream.ErrStreamNotFound) {
				return nil
			}
		}
		return fmt.Errorf("got %v", r.reason)
	})
	w := newWriter(t, s.ClientURL())
	r.expect("mark 0")
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	r.expect("event shop/production/a created 1")
}
