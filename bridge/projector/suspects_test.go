package projector

import (
	"context"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

// forge writes an entry with the headers of the one that is there and another body.
func (r *rig) forge(id subjects.AppID, change func(nats.Header, []byte) []byte) {
	r.t.Helper()
	subject, err := r.bucket.Subject(id)
	if err != nil {
		r.t.Fatal(err)
	}
	m, err := store.LastMessage(r.t.Context(), r.js, subjects.BucketStream(subjects.DefaultBucket), subject)
	if err != nil {
		r.t.Fatal(err)
	}
	h := maps.Clone(m.Header)
	h.Del(subjects.HeaderExpectedLastSequence)
	data := change(h, m.Data)
	if _, err := r.js.PublishMsg(r.t.Context(), &nats.Msg{Subject: subject, Header: h, Data: data}); err != nil {
		r.t.Fatal(err)
	}
}

func forgedBody(_ nats.Header, data []byte) []byte {
	return []byte(strings.Replace(string(data), "vision", "forged", 1))
}

// Whatever somebody writes to the bucket of a running bridge with the right headers is written over
// with what the stream says, whichever marker age is set; what is right stays as it is.
func TestForgedUnderRunningProjector(t *testing.T) {
	t.Parallel()
	a, gone, b := testID, otherApp("gone"), otherApp("b")
	for _, test := range []struct {
		name  string
		forge func(*testing.T, *rig)
		wrong int // entries that are written again
	}{
		{"a body", func(_ *testing.T, r *rig) { r.forge(a, forgedBody) }, 1},
		{"a status", func(_ *testing.T, r *rig) {
			r.forge(a, func(h nats.Header, data []byte) []byte {
				h.Set(subjects.HeaderAppStatus, "FAILED")
				return data
			})
		}, 1},
		{"a copy of what is there", func(_ *testing.T, r *rig) {
			r.forge(a, func(_ nats.Header, data []byte) []byte { return data })
		}, 0},
		{"an entry in the place of a marker", func(t *testing.T, r *rig) {
			entry := r.held(a)
			r.forge(gone, func(h nats.Header, _ []byte) []byte {
				clear(h)
				maps.Copy(h, entry.Header)
				h.Del(subjects.HeaderExpectedLastSequence)
				return []byte("{}")
			})
		}, 1},
		{"a marker in the place of an entry", func(t *testing.T, r *rig) {
			marker := r.held(gone)
			r.forge(a, func(h nats.Header, _ []byte) []byte {
				clear(h)
				maps.Copy(h, marker.Header)
				h.Del(subjects.HeaderExpectedLastSequence)
				return nil
			})
		}, 1},
		{"an older entry", func(t *testing.T, r *rig) {
			r.forge(a, func(h nats.Header, data []byte) []byte {
				h.Set(subjects.HeaderEventSequence, "1")
				return data
			})
		}, 1},
	} {
		for _, age := range []time.Duration{0, time.Hour} {
			t.Run(test.name+" with marker age "+age.String(), func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				r.bucket.MarkerMaxAge = age
				r.append(r.event("2", r.append(r.event("1", nil))))
				r.append(r.removalOn(gone, r.append(r.eventOn(gone, "3", nil))))
				first := r.append(r.eventOn(b, "8", nil)) // the bucket's position is none that is forged
				core, logs := observer.New(zap.WarnLevel)
				p, snap := r.newProjector(zap.New(core))
				r.run(p, snap)
				r.reflects(p, first.Sequence)
				test.forge(t, r)
				p.lookAgain(errForeignWrite)
				right := func() bool {
					for _, id := range []subjects.AppID{a, gone} {
						if _, differs := r.differs(id); differs {
							return false
						}
					}
					return true
				}
				r.poll("what was forged stays", right)
				last := r.append(r.eventOn(b, "9", first))
				r.reflects(p, last.Sequence)
				if !right() {
					t.Error("the bucket differs from the stream")
				}
				if got := logs.FilterMessage("restored a bucket entry that another client wrote").Len(); got != test.wrong {
					t.Errorf("%d entries were written again, want %d", got, test.wrong)
				}
				// Another look finds nothing to do.
				end := r.bucketEnd()
				r.startOver(p)
				if got := r.bucketEnd(); got != end {
					t.Errorf("the bucket's stream ends at %d, it had ended at %d", got, end)
				}
			})
		}
	}
}

// Two bridges project one stream. What the other one wrote is right, and is not written again.
func TestProjectionBesideAnother(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.append(r.event("1", nil))
	core, logs := observer.New(zap.WarnLevel)
	one, snap := r.newProjector(zap.New(core))
	r.run(one, snap)
	r.reflects(one, 1)
	two, snap := r.newProjector(zap.New(core))
	r.run(two, snap)
	r.reflects(two, 1)
	records := map[int]*app.Record{}
	var last *app.Record
	for i := range 300 {
		id := otherApp(string(rune('a' + i%20)))
		if i%7 == 6 && records[i%20].Exists() {
			last = r.append(r.removalOn(id, records[i%20]))
		} else {
			last = r.append(r.eventOn(id, "1"+strings.Repeat("0", i/100)+string(rune('0'+i%10)), records[i%20]))
		}
		records[i%20] = last
	}
	r.reflects(one, last.Sequence)
	r.reflects(two, last.Sequence)
	for i := range 20 {
		if d, differs := r.differs(otherApp(string(rune('a' + i)))); differs {
			t.Error(d)
		}
	}
	if got := logs.FilterMessage("restored a bucket entry that another client wrote").Len(); got > 0 {
		t.Errorf("%d entries were written again", got)
	}
	if got := r.bucketEnd(); got != last.Sequence {
		t.Errorf("the bucket took %d writes for %d events", got, last.Sequence)
	}
}

// A message of somebody else takes the place of a write: that is refused, and the one behind it is
// not. The entry that is missing is written.
func TestDisplacedWrite(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"an entry", "a new entry", "a marker"} {
		t.Run(first, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			a, b := otherApp("a"), otherApp("b")
			var had *app.Record
			if first != "a new entry" {
				had = r.append(r.eventOn(a, "1", nil))
			}
			p, snap := r.newProjector(zap.NewNop())
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- p.Run(ctx, snap) }()
			r.reflects(p, had.Previous())
			cancel()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			// As when both writes were sent, and somebody's message came between.
			displaced := r.eventOn(a, "2", had)
			if first == "a marker" {
				displaced = r.removalOn(a, had)
			}
			r.append(displaced)
			last := r.append(r.eventOn(b, "3", nil))
			end := r.bucketEnd()
			if _, err := r.js.Publish(t.Context(), subjects.BucketSubject(subjects.DefaultBucket, "hand"), []byte("x")); err != nil {
				t.Fatal(err)
			}
			msg, err := r.bucket.Entry(b, last, r.eventOn(b, "3", nil).Msg.Header)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.js.PublishMsg(t.Context(), msg); err != nil {
				t.Fatal(err)
			}
			p.fly(end+1, flying{a, last.Sequence - 1})
			p.fly(end+2, flying{b, last.Sequence})
			p.followed.Store(last.Sequence)
			r.run(p, nil)
			r.poll("the write that was displaced is not made good", func() bool {
				_, differs := r.differs(a)
				return !differs
			})
		})
	}
}
