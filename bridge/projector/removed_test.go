package projector

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/appbridge/appbridge/subjects"
)

// What is taken out of the stream before it is projected is no longer known to
// anybody but the cluster.
func TestRemovedBeforeProjection(t *testing.T) {
	t.Parallel()
	const never = 1 << 40
	for _, test := range []struct {
		name    string
		between func(*testing.T, *rig, *Projector) // 2 and 3 are in the stream, the bucket is at 1
		again   bool                               // by the projector that projected 1
		until   uint64
		removed int
		ends    bool
	}{
		{"nothing", func(*testing.T, *rig, *Projector) {}, true, 3, 0, false},
		{"one event", removeAt(2), true, never, 1, true},
		{"all of them, and nothing follows", func(t *testing.T, r *rig, _ *Projector) {
			if err := r.stream.Purge(t.Context()); err != nil {
				t.Fatal(err)
			}
		}, true, never, 2, true},
		{"the last one, and nothing follows", removeAt(3), true, never, 1, true},
		{"one event that is known to be lost", func(t *testing.T, r *rig, p *Projector) {
			removeAt(2)(t, r, p)
			p.lost = []subjects.LostRange{{From: 2, To: 2}}
		}, true, 3, 0, false},
		{"one event, before the session started", removeAt(2), false, 3, 1, false},
		{"one event, after the session read it and before it was written", func(t *testing.T, r *rig, p *Projector) {
			removeAt(2)(t, r, p)
			p.end = 3
			p.followed.Store(2)
		}, true, never, 1, true},
		{"one event, after it was projected", func(t *testing.T, r *rig, p *Projector) {
			removeAt(2)(t, r, p)
			p.followed.Store(2)
			p.reflected.Store(2)
		}, true, 3, 0, false},
		{"one event that a later one supersedes, as it is configured", func(t *testing.T, r *rig, p *Projector) {
			cfg := r.stream.CachedInfo().Config
			cfg.MaxMsgsPerSubject = 1
			if _, err := r.js.UpdateStream(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
		}, true, 3, 1, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			core, logs := observer.New(zap.ErrorLevel)
			p, snap := r.newProjector(zap.New(core))
			first := r.append(r.event("1", nil))
			if err := r.runUntil(p, snap, 1); err != nil {
				t.Fatal(err)
			}
			r.append(r.event("3", r.append(r.event("2", first))))
			test.between(t, r, p)
			snap = nil
			if !test.again {
				p, snap = r.newProjector(zap.New(core))
			}
			err := r.runUntil(p, snap, test.until)
			if got := errors.Is(err, ErrRemoved); got != test.ends || (err != nil && !got) {
				t.Errorf("got %v", err)
			}
			if got := counted(t, p.metrics.removedSequences); got != test.removed {
				t.Errorf("%d sequences count as removed, want %d", got, test.removed)
			}
			if got := logs.FilterMessage(logRemoved).Len(); got > 1 || (got == 1) != (test.removed > 0 && !p.supersedes) {
				t.Errorf("it is logged %d times", got)
			}
			if test.ends {
				return
			}
			// Another start of the projection finds nothing new.
			p.reflected.Store(1)
			if err := r.runUntil(p, nil, 3); err != nil {
				t.Errorf("when it starts over: %v", err)
			}
			if got := counted(t, p.metrics.removedSequences); got != test.removed && !p.supersedes {
				t.Errorf("%d sequences count as removed after it started over, want %d", got, test.removed)
			}
		})
	}
}

// That events were removed ends the session, whatever else goes wrong in that moment: it is found once.
func TestRemovedAmongOtherErrors(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var p *Projector
	core, _ := observer.New(zap.ErrorLevel)
	p, snap := r.newProjector(zap.New(core, zap.Hooks(func(e zapcore.Entry) error {
		if e.Message == logRemoved {
			p.lookAgain(errDistrusted)
			r.poll("it does not take note", func() bool { return len(p.restart) == 0 })
			<-time.After(50 * time.Millisecond)
		}
		return nil
	})))
	first := r.append(r.event("1", nil))
	if err := r.runUntil(p, snap, first.Sequence); err != nil {
		t.Fatal(err)
	}
	second := r.append(r.event("2", first))
	third := r.append(r.event("3", second))
	removeAt(second.Sequence)(t, r, p)
	if err := r.runUntil(p, nil, third.Sequence); !errors.Is(err, ErrRemoved) {
		t.Errorf("got %v, want %v", err, ErrRemoved)
	}
}

func removeAt(sequence uint64) func(*testing.T, *rig, *Projector) {
	return func(t *testing.T, r *rig, _ *Projector) {
		t.Helper()
		if err := r.stream.DeleteMsg(t.Context(), sequence); err != nil {
			t.Fatal(err)
		}
	}
}

// Fillers and notices of loss belong to no app and are nobody's mistake.
func TestNoticeOfLoss(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.encoder.Subjects
	core, logs := observer.New(zap.InfoLevel)
	p, snap := r.newProjector(zap.New(core))
	r.append(r.event("1", nil))
	for _, m := range []*nats.Msg{
		{Subject: s.Lost()},
		{Subject: s.Notice(), Header: nats.Header{subjects.HeaderLostFrom: {"1"}, subjects.HeaderLostTo: {"2"}}},
	} {
		if _, err := r.js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.runUntil(p, snap, 3); err != nil {
		t.Fatal(err)
	}
	if got := counted(t, p.metrics.foreignMessages); got != 0 {
		t.Errorf("%d count as foreign", got)
	}
	if got := logs.FilterMessage("the stream holds a notice of loss").Len(); got != 1 {
		t.Errorf("the notice is logged %d times", got)
	}
	if got := len(taken(p)); got != 1 {
		t.Errorf("%d apps have records", got)
	}
}
