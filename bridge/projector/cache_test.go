package projector

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// announced appends an event as the publisher of p's session does. stored is called in place of
// NoteStored if it is not nil.
func (r *rig) announced(p *Projector, ev *app.Event, stored func(uint64)) *app.Record {
	r.t.Helper()
	p.NoteSent(r.lastSequence() + 1)
	record := r.append(ev)
	if stored == nil {
		p.NoteStored(record.Sequence, ev)
	} else {
		stored(record.Sequence)
	}
	return record
}

// poisoned is an event that differs from ev in its record alone: an entry that is made from it shows.
func (r *rig) poisoned(ev *app.Event) *app.Event {
	r.t.Helper()
	record, msg := *ev.Record, *ev.Msg
	var err error
	if record.App, err = record.App.Without(subjects.TruncatedSpec); err != nil {
		r.t.Fatal(err)
	}
	msg.Header = maps.Clone(msg.Header)
	return &app.Event{ID: ev.ID, Msg: &msg, Fence: ev.Fence, Record: &record}
}

// Only an event that this session had acknowledged, and that equals what is delivered, is taken from
// memory. Everything else is fetched.
func TestBodiesFromMemory(t *testing.T) {
	t.Parallel()
	set := func(name string, values ...string) func(*Projector, *app.Event, uint64) {
		return func(p *Projector, ev *app.Event, at uint64) {
			if ev.Msg.Header[name] = values; values == nil {
				delete(ev.Msg.Header, name)
			}
			p.NoteStored(at, ev)
		}
	}
	type stored = func(p *Projector, ev *app.Event, at uint64)
	type test struct {
		name    string
		stored  stored
		fetched int
	}
	const altered = -1 // the stream has another message than it acknowledged: the projection ends
	const unanswered = "no acknowledgement"
	tests := []test{
		{"the same event", func(p *Projector, ev *app.Event, at uint64) { p.NoteStored(at, ev) }, 0},
		{"other headers of JetStream", set(subjects.HeaderExpectedLastSequence, "7"), 0},
		{"a header more", set(subjects.HeaderSynthesized, subjects.FlagTrue), altered},
		{"a header of CloudEvents more", set("ce-extension", "x"), altered},
		{"a value more", set(subjects.HeaderUID, "u1", "u2"), altered},
		{"another subject", func(p *Projector, ev *app.Event, at uint64) {
			ev.Msg.Subject = strings.Replace(ev.Msg.Subject, "updated", "created", 1)
			p.NoteStored(at, ev)
		}, altered},
		{"another size", func(p *Projector, ev *app.Event, at uint64) {
			ev.Msg.Data = append(slices.Clone(ev.Msg.Data), ' ')
			p.NoteStored(at, ev)
		}, altered},
		{"another sequence", func(p *Projector, ev *app.Event, at uint64) {
			p.NoteSent(at + 1)
			p.NoteStored(at+1, ev)
		}, 1},
		{"a duplicate, or found in the stream", func(p *Projector, _ *app.Event, at uint64) { p.NoteStored(at, nil) }, 1},
		{unanswered, func(*Projector, *app.Event, uint64) {}, 1},
		{"of another connection", func(p *Projector, ev *app.Event, at uint64) {
			before := p.connection()
			p.memory.mu.Lock()
			p.memory.connection = before + 1
			p.memory.mu.Unlock()
			p.NoteStored(at, ev)
		}, 1},
		{"sent before the connection was lost", func(p *Projector, ev *app.Event, at uint64) {
			p.memory.noteSent(at+1, p.connection()+1) // as the next append does
			p.NoteStored(at, ev)
		}, 1},
		{"no memory left", func(p *Projector, ev *app.Event, at uint64) {
			p.memory.limit = ev.Msg.Size() - 1
			p.NoteStored(at, ev)
		}, 1},
		{"just enough memory", func(p *Projector, ev *app.Event, at uint64) {
			p.memory.limit = ev.Msg.Size()
			p.NoteStored(at, ev)
		}, 0},
		{"another encoding than the bucket's", func(p *Projector, ev *app.Event, at uint64) {
			ev.Record.ContentType = subjects.ContentTypeProtobuf
			p.NoteStored(at, ev)
		}, 1},
	}
	r := newRig(t)
	for name := range r.event("2", &app.Record{Sequence: 1, Kind: subjects.Created, UID: "u1", Status: "PENDING"}).Msg.Header {
		if app.Carried(name) {
			tests = append(tests, test{"another " + name, set(name, "x"), altered}, test{"without " + name, set(name), altered})
		}
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			first := r.append(r.event("1", nil))
			p, snap := r.newProjector(zap.NewNop())
			p.memory.wait = suite.Patience
			if test.name == unanswered {
				p.memory.wait = 50 * time.Millisecond
			}
			if test.fetched == altered {
				ended := make(chan error, 1)
				go func() { ended <- p.Run(t.Context(), snap) }()
				r.reflects(p, first.Sequence)
				ev := r.event("2", first)
				last := r.announced(p, ev, func(at uint64) { test.stored(p, r.poisoned(ev), at) })
				err, ok := errors.AsType[*store.AlteredError](<-ended)
				if !ok || err.Sequence != last.Sequence {
					t.Errorf("got %v, want that of sequence %d", err, last.Sequence)
				}
				if at := p.Position(); at != first.Sequence {
					t.Errorf("the bucket reflects sequence %d, want %d", at, first.Sequence)
				}
				return
			}
			r.run(p, snap)
			r.reflects(p, first.Sequence)
			fetched := counted(t, r.metrics.fetched)
			ev := r.event("2", first)
			last := r.announced(p, ev, func(at uint64) { test.stored(p, r.poisoned(ev), at) })
			r.reflects(p, last.Sequence)
			if got := counted(t, r.metrics.fetched) - fetched; got != test.fetched {
				t.Errorf("%d bodies were fetched, want %d", got, test.fetched)
			}
			// What is taken from memory shows what was put there, what is fetched what the stream has.
			if _, differs := r.differs(testID); differs != (test.fetched == 0) {
				t.Errorf("the entry differs from the stream: %t", differs)
			}
			// It forgets an event after it has sent the write.
			r.poll("an event that is projected stays in memory", func() bool {
				p.memory.mu.Lock()
				defer p.memory.mu.Unlock()
				return !slices.ContainsFunc(p.memory.events, func(e remembered) bool { return e.sequence <= last.Sequence })
			})
		})
	}
}

// What another session had acknowledged, and what was acknowledged before the projection started
// over, is fetched.
func TestMemoryOfAnotherSession(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	other, snap := r.newProjector(zap.NewNop())
	first := r.event("1", nil)
	r.announced(other, first, func(at uint64) { other.NoteStored(at, r.poisoned(first)) })
	p, _ := r.newProjector(zap.NewNop())
	r.run(p, snap)
	r.reflects(p, first.Record.Sequence)
	if got := counted(t, r.metrics.fetched); got != 1 {
		t.Errorf("%d bodies were fetched, want 1", got)
	}
	// As the other session starts it has a memory, and starts over.
	_, snap = r.newProjector(zap.NewNop())
	snap.Position = 0
	r.run(other, snap)
	r.poll("it does not read the stream again", func() bool { return counted(t, r.metrics.fetched) == 2 })
	r.reflects(other, first.Record.Sequence)
	if d, differs := r.differs(testID); differs {
		t.Error(d)
	}
}

// Entries are the same, byte for byte, whether their event was in memory or was fetched.
func TestEntriesOfMemoryAndStream(t *testing.T) {
	t.Parallel()
	for _, form := range []string{subjects.ContentTypeJSON, subjects.ContentTypeProtobuf} {
		for cuts, truncated := range []string{"", "old_app", "old_app,spec"} {
			t.Run(form+" without "+truncated, func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				r.encoder.Form, r.bucket.ContentType = form, form
				p, snap := r.newProjector(zap.NewNop())
				p.memory.wait = suite.Patience
				// A projection forgets what was acknowledged before it begins.
				before := r.append(r.removalOn(testID, r.append(r.event("0", nil))))
				r.run(p, snap)
				r.reflects(p, before.Sequence)
				fetched := counted(t, r.metrics.fetched)
				created := r.sameEntry(p, r.event("1", before))
				update := r.event("2", created)
				for range cuts {
					limit := update.Msg.Size() - 1
					r.encoder.MaxSize = func() int { return limit }
					update = r.event("2", created)
				}
				if update.Record.Truncated != truncated {
					t.Fatalf("the update lacks %q, want %q", update.Record.Truncated, truncated)
				}
				r.sameEntry(p, r.removalOn(testID, r.sameEntry(p, update)))
				if got := counted(t, r.metrics.fetched) - fetched; got != 0 {
					t.Errorf("%d bodies were fetched, want none", got)
				}
			})
		}
	}
}

// sameEntry appends an event and compares its entry with one that is made from the stream.
func (r *rig) sameEntry(p *Projector, ev *app.Event) *app.Record {
	r.t.Helper()
	record := r.announced(p, ev, nil)
	r.reflects(p, record.Sequence)
	last, err := store.NewReader(r.js, subjects.DefaultStream, r.encoder.Subjects).LastEvent(r.t.Context(), ev.ID, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	want, err := r.bucket.Entry(ev.ID, last.Record, last.Header)
	if err != nil {
		r.t.Fatal(err)
	}
	got, err := r.bucket.Last(r.t.Context(), ev.ID)
	if err != nil {
		r.t.Fatal(err)
	}
	got.Header.Del(subjects.HeaderExpectedLastSequence)
	if !bytes.Equal(got.Data, want.Data) || !maps.EqualFunc(got.Header, want.Header, slices.Equal) {
		r.t.Errorf("%s: got\n%v\n%s\nwant\n%v\n%s", record.Kind, got.Header, got.Data, want.Header, want.Data)
	}
	return record
}

// A message that is removed after its headers were delivered counts as removed.
func TestRemovedBeforeFetch(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first := r.append(r.event("1", nil))
	p, snap := r.newProjector(zap.NewNop())
	p.memory.wait = suite.Patience
	done := make(chan error, 1)
	go func() { done <- p.Run(t.Context(), snap) }()
	r.reflects(p, first.Sequence)
	r.announced(p, r.event("2", first), func(at uint64) {
		r.poll("the message is not delivered", func() bool {
			p.memory.mu.Lock()
			defer p.memory.mu.Unlock()
			return p.memory.changed != nil
		})
		if err := r.stream.DeleteMsg(t.Context(), at); err != nil {
			t.Error(err)
		}
		p.NoteStored(at, nil)
	})
	if err := <-done; !errors.Is(err, ErrRemoved) {
		t.Errorf("got %v, want %v", err, ErrRemoved)
	}
	if got := counted(t, r.metrics.removedSequences); got != 1 {
		t.Errorf("%d sequences count as removed, want 1", got)
	}
}

// A leader that ends before a message that was delivered does not show that it was removed.
func TestFetchPastTheEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p, _ := r.newProjector(zap.NewNop())
	last := r.append(r.event("1", nil))
	if _, err := p.fetch(t.Context(), last.Sequence+1); err == nil || errors.Is(err, store.ErrNoMessage) {
		t.Errorf("got %v, want an error that is not %v", err, store.ErrNoMessage)
	}
	if err := r.stream.DeleteMsg(t.Context(), last.Sequence); err != nil {
		t.Fatal(err)
	}
	if _, err := p.fetch(t.Context(), last.Sequence); !errors.Is(err, store.ErrNoMessage) {
		t.Errorf("got %v, want %v", err, store.ErrNoMessage)
	}
}

// Many bodies are fetched side by side and written in the order of the stream. Own events between
// them come from memory. Of messages that are no events, the headers decide where they can.
func TestFetchesInOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.append(r.event("1", nil))
	r.project() // else only the last message of each subject is read
	fetched := counted(t, r.metrics.fetched)
	p, snap := r.newProjector(zap.NewNop())
	p.memory.wait = suite.Patience
	own := 0
	var last *app.Record
	for i := range 300 {
		last = r.append(r.eventOn(otherApp(fmt.Sprint("a", i)), fmt.Sprint(i+1), nil))
	}
	hostile := func(h nats.Header, data string) {
		t.Helper()
		subject := r.eventOn(otherApp("a1"), "1", nil).Msg.Subject
		if _, err := r.js.PublishMsg(t.Context(), &nats.Msg{Subject: subject, Header: h, Data: []byte(data)}); err != nil {
			t.Fatal(err)
		}
	}
	hostile(nil, "x")
	hostile(nats.Header{subjects.HeaderMessageSize: {"1"}}, "x")
	r.run(p, snap)
	r.reflects(p, last.Sequence+2)
	if got, want := counted(t, r.metrics.fetched)-fetched, 300; got != want {
		t.Errorf("%d bodies were fetched, want %d", got, want)
	}
	// A body that has to be read to see that it is no event, and a forged size.
	h := maps.Clone(r.eventOn(otherApp("a1"), "1", nil).Msg.Header)
	maps.DeleteFunc(h, func(name string, _ []string) bool { return !app.Carried(name) })
	hostile(h, "{")
	h[subjects.HeaderMessageSize] = []string{"1"}
	hostile(h, "{")
	for i := range 300 {
		ev := r.eventOn(otherApp(fmt.Sprint("b", i)), fmt.Sprint(i+1), nil)
		if i%3 == 0 {
			last = r.announced(p, ev, nil)
			own++
		} else {
			last = r.append(ev)
		}
	}
	r.reflects(p, last.Sequence)
	if got, want := counted(t, r.metrics.fetched)-fetched, 300+2+300-own; got != want {
		t.Errorf("%d bodies were fetched, want %d", got, want)
	}
	if got := counted(t, r.metrics.foreignMessages); got != 4 {
		t.Errorf("%d messages are no events, want 4", got)
	}
	var before uint64
	for _, name := range []string{"a", "b"} {
		for i := range 300 {
			held := r.held(otherApp(fmt.Sprint(name, i)))
			if held == nil || held.Stored <= before {
				t.Fatalf("app %s%d is missing or not in its order: %+v", name, i, held)
			}
			before = held.Stored
		}
	}
}
