package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/subjects"
)

const (
	lostEvents    = "the stream lost acknowledged events"
	lostSequences = "appbridge_lost_sequences_total"
)

// named are the ranges that the stream's notices of loss name, in their order. No filler may be left.
func (w *world) named() (ranges []subjects.LostRange) {
	w.t.Helper()
	names := must[subjects.Subjects](w.t)(subjects.New(subjects.DefaultPrefix))
	stream := w.stream(subjects.DefaultStream)
	for from := uint64(1); ; {
		msg, err := stream.GetMsg(w.t.Context(), from, jetstream.WithGetMsgSubject(names.Notice()))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			break
		}
		must[any](w.t)(nil, err)
		ranges = append(ranges, must[subjects.LostRange](w.t)(subjects.ParseNotice(msg.Header.Get(subjects.HeaderLostFrom), msg.Header.Get(subjects.HeaderLostTo))))
		from = msg.Sequence + 1
	}
	if msg, err := stream.GetLastMsgForSubject(w.t.Context(), names.Lost()); !errors.Is(err, jetstream.ErrMsgNotFound) {
		w.t.Errorf("the stream still has a filler: %+v, %v", msg, err)
	}
	return ranges
}

// failsAgain publishes n updates of an app through a running bridge.
func (w *world) failsAgain(svc *servingv1.Service, n int) {
	w.t.Helper()
	for i := range n {
		before := w.lastSequence()
		must[*servingv1.Service](w.t)(w.Failed(w.t.Context(), svc, "Broken", fmt.Sprint(before, " try ", i)))
		eventually(w.t, "an event", func() error {
			if now := w.lastSequence(); now <= before {
				return fmt.Errorf("the stream ends at %d", now)
			}
			return nil
		})
	}
}

// Two bridges without a common checkpoint know different ends of a stream that was rolled back. The
// one that knows less comes first, and publishes in the place of events that only the other one knows.
// The other one names the whole range from the end that was seen first, and overwrites nothing.
func TestTwoHealers(t *testing.T) {
	t.Parallel()
	for _, beyond := range []bool{false, true} {
		t.Run(fmt.Sprintf("the first publishes beyond what the second knows: %v", beyond), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			healer := func(name string) bridge.Config {
				cfg := w.elected(name)
				cfg.LeaseName = name
				return cfg
			}
			const end, less, more = 5, 10, 20
			svc := w.create(w.app("one"))
			rare := w.create(w.app("rare"))
			port := w.port()
			a := w.start(healer("a"))
			w.failsAgain(svc, end-2)
			must[any](t)(nil, a.stop())
			w.downNATS()
			copied := w.copyStorage()
			w.upNATS(port)
			a = w.start(healer("a"))
			w.failsAgain(svc, less-end)
			must[any](t)(nil, a.stop())
			b := w.start(healer("b"))
			w.failsAgain(svc, more-less)
			must[any](t)(nil, b.stop())
			if got := w.lastSequence(); got != more {
				t.Fatalf("the stream ends at %d, want %d", got, more)
			}

			w.downNATS()
			w.restore(copied, subjects.DefaultStream, subjects.BucketStream(subjects.DefaultBucket))
			w.upNATS(port)
			a = w.start(healer("a"))
			w.failsAgain(rare, 1) // its last event lies in the range that the second one names
			if beyond {
				w.failsAgain(svc, more-less)
			}
			must[any](t)(nil, a.stop())
			before := w.messages(subjects.DefaultStream)
			if got, want := w.named(), []subjects.LostRange{{From: end + 1, To: less}}; !slices.Equal(got, want) {
				t.Fatalf("the first bridge named %v, want %v", got, want)
			}
			t.Logf("the first bridge left the stream at %d", w.lastSequence())

			b = w.start(healer("b"))
			if got, want := w.named(), []subjects.LostRange{{From: end + 1, To: less}, {From: end + 1, To: more}}; !slices.Equal(got, want) {
				t.Errorf("both bridges named %v, want %v", got, want)
			}
			after := w.messages(subjects.DefaultStream)
			for sequence, msg := range before {
				if after[sequence] == nil || !sameMessage(msg, after[sequence]) {
					t.Errorf("sequence %d was %s, and is %v", sequence, msg.Subject, after[sequence])
				}
			}
			if now := w.lastSequence(); now <= more {
				t.Errorf("the stream ends at %d, %d was used", now, more)
			}
			w.failsAgain(svc, 1)
			w.findsNothing(healer("b"), time.Second)
			// Either of them finds nothing more.
			must[any](t)(nil, b.stop())
			for _, name := range []string{"a", "b"} {
				last, entries := w.lastSequence(), w.streamState(subjects.BucketStream(subjects.DefaultBucket)).LastSeq
				r := w.start(healer(name))
				must[any](t)(nil, r.stop())
				if now := w.streamState(subjects.BucketStream(subjects.DefaultBucket)).LastSeq; now != entries {
					t.Errorf("%s starts again and writes the bucket up to %d, it was at %d", name, now, entries)
				}
				if now := w.lastSequence(); now != last || r.metric(lostSequences) > 0 {
					t.Errorf("%s starts again and finds %v lost sequences; the stream ends at %d, it ended at %d", name, r.metric(lostSequences), now, last)
				}
			}
		})
	}
}

// A bridge that fills a lost range ends, and so does the one that knew of the loss. The next bridge
// knows nothing of it but what is in the stream, and names the range as it was.
func TestInterruptedByAnEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	svc := w.create(w.app("one"))
	r := w.start(w.elected("me"))
	w.failsAgain(svc, 1)
	must[any](t)(nil, r.stop())
	const to = 50_000
	w.editLease(func(m map[string]any) { m["stream"] = to })
	r = w.launch(w.elected("me"), nil)
	eventually(t, "the range is being filled", func() error {
		if now := w.lastSequence(); now < 5_000 {
			return fmt.Errorf("the stream ends at %d: %w", now, r.bridge.Ready())
		}
		return nil
	})
	_ = r.stop()
	if now := w.lastSequence(); now >= to {
		t.Fatalf("the stream ends at %d already: this test tests nothing", now)
	}
	r = w.start(w.config()) // without the Lease
	w.failsAgain(svc, 1)
	if got, want := w.named(), []subjects.LostRange{{From: 3, To: to}}; !slices.Equal(got, want) {
		t.Errorf("the stream names %v, want %v", got, want)
	}
	if got := r.metricOf(lostSequences, "storage", "stream"); got != to-2 {
		t.Errorf("the metric counts %v lost sequences, want %v", got, to-2)
	}
}

// A session that heals a loss writes no configuration: the server compares nothing, so that an
// operator's edit could be undone.
func TestHealingWritesNoConfiguration(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	svc := w.create(w.app("one"))
	r := w.start(w.elected("me"))
	w.failsAgain(svc, 1)
	must[any](t)(nil, r.stop())
	w.editLease(func(m map[string]any) { m["stream"] = 50 })
	updates := must[*nats.Subscription](t)(w.nc.SubscribeSync("$JS.API.STREAM.UPDATE.>"))
	must[any](t)(nil, w.nc.Flush())
	w.start(w.elected("me"))
	if got, want := w.named(), []subjects.LostRange{{From: 3, To: 50}}; !slices.Equal(got, want) {
		t.Errorf("the stream names %v, want %v", got, want)
	}
	must[any](t)(nil, w.nc.Flush())
	if n, _, err := updates.Pending(); err != nil || n > 0 {
		msg, _ := updates.NextMsg(patience)
		t.Errorf("the configuration was written %d times (%v): %s", n, err, msg.Data)
	}
}

// cutOff answers STREAM.INFO of the event stream as a leader does that was cut off from its group: it
// lacks the newest messages and does not know it.
type cutOff struct {
	lacks   atomic.Int64
	answers atomic.Int64 // that lacked messages
}

// newCutOff serves the API of a JetStream domain, and returns the bridge's configuration for it.
func (w *world) newCutOff(domain string) *cutOff {
	w.t.Helper()
	c := &cutOff{}
	prefix := subjects.JetStreamAPI(domain)
	must[*nats.Subscription](w.t)(w.nc.Subscribe(prefix+">", func(msg *nats.Msg) {
		rest := strings.TrimPrefix(msg.Subject, prefix)
		to := &nats.Msg{Subject: subjects.JetStreamAPI("") + rest, Reply: msg.Reply, Header: msg.Header, Data: msg.Data}
		switch lacks := c.lacks.Load(); {
		case strings.HasPrefix(rest, "$KV."):
			to.Subject = rest
		case lacks > 0 && rest == "STREAM.INFO."+subjects.DefaultStream:
			go func() {
				if reply, err := w.nc.Request(to.Subject, msg.Data, patience); err == nil {
					_ = msg.Respond(c.short(w.t, reply.Data, lacks))
				}
			}()
			return
		}
		_ = w.nc.PublishMsg(to)
	}))
	must[any](w.t)(nil, w.nc.Flush())
	return c
}

func (c *cutOff) short(t *testing.T, data []byte, lacks int64) []byte {
	var info map[string]any
	if err := json.Unmarshal(data, &info); err != nil {
		t.Error(err)
		return data
	}
	state, ok := info["state"].(map[string]any)
	if !ok {
		return data
	}
	state["last_seq"] = state["last_seq"].(float64) - float64(lacks)
	data, err := json.Marshal(info)
	if err != nil {
		t.Error(err)
	}
	c.answers.Add(1)
	return data
}

// A leader that was cut off from its group still answers STREAM.INFO. What it lacks is not lost, and
// nothing reports it as lost.
func TestLeaderCutOff(t *testing.T) {
	t.Parallel()
	for _, up := range []bool{false, true} {
		t.Run(fmt.Sprintf("the bridge runs meanwhile: %v", up), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			cfg := w.config()
			cfg.JetStreamDomain = "cutoff"
			c := w.newCutOff(cfg.JetStreamDomain)
			svc := w.create(w.app("one"))
			r := w.start(cfg)
			w.failsAgain(svc, 4)
			w.findsNothing(w.config(), time.Second)
			if !up {
				must[any](t)(nil, r.stop())
			}
			c.lacks.Store(2)
			if !up {
				r = w.launch(cfg, nil)
			}
			eventually(t, "the bridge looks at the stream again and again", func() error {
				if n := c.answers.Load(); n < 30 {
					return fmt.Errorf("%d times", n)
				}
				return nil
			})
			if r.bridge.Ready() == nil {
				t.Error("ready over a stream that seems to end before what it acknowledged")
			}
			c.lacks.Store(0)
			r.waitReady()
			w.failsAgain(svc, 1)
			if got := w.named(); len(got) > 0 || r.metric(lostSequences) > 0 || r.logs.FilterMessage(lostEvents).Len() > 0 {
				t.Errorf("nothing was lost, and the bridge names %v and counts %v sequences", got, r.metric(lostSequences))
			}
			if now := w.lastSequence(); now != 6 {
				t.Errorf("the stream ends at %d, want 6", now)
			}
		})
	}
}

// A stream that is full refuses the fillers, so that no append can prove the loss. The bridge names it
// all the same, and heals it when there is room.
func TestLossOfAFullStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	svc := w.create(w.app("one"))
	r := w.start(w.elected("me"))
	w.failsAgain(svc, 4)
	must[any](t)(nil, r.stop())
	limit := func(n int64) {
		w.changeStream(subjects.DefaultStream, func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = n, jetstream.DiscardNew })
	}
	limit(5)
	w.editLease(func(m map[string]any) { m["stream"] = 30 })
	r = w.launch(w.elected("me"), nil)
	eventually(t, "the loss is named", func() error {
		if r.logs.FilterMessage(lostEvents).Len() == 0 {
			return r.bridge.Ready()
		}
		return nil
	})
	if err := r.bridge.Ready(); err == nil || !strings.Contains(err.Error(), "maximum messages exceeded") {
		t.Errorf("ready says %v, want that the stream is full", err)
	}
	limit(100)
	r.waitReady()
	if got, want := w.named(), []subjects.LostRange{{From: 6, To: 30}}; !slices.Equal(got, want) {
		t.Errorf("the stream names %v, want %v", got, want)
	}
	if got := r.metricOf(lostSequences, "storage", "stream"); got != 25 {
		t.Errorf("the metric counts %v lost sequences, want 25", got)
	}
}

// A stream has room for two messages, and ten times as many are lost. The fillers take the place of no
// event, whether a full stream refuses a message or drops its oldest one.
func TestFillersTakeNoEventsPlace(t *testing.T) {
	t.Parallel()
	for _, discard := range []jetstream.DiscardPolicy{jetstream.DiscardNew, jetstream.DiscardOld} {
		t.Run(discard.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			svc := w.create(w.app("one"))
			r := w.start(w.elected("me"))
			w.failsAgain(svc, 4)
			must[any](t)(nil, r.stop())
			w.changeStream(subjects.DefaultStream, func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 7, discard })
			w.editLease(func(m map[string]any) { m["stream"] = 30 })
			w.start(w.elected("me"))
			if got, want := w.named(), []subjects.LostRange{{From: 6, To: 30}}; !slices.Equal(got, want) {
				t.Errorf("the stream names %v, want %v", got, want)
			}
			for sequence := uint64(1); sequence <= 5; sequence++ {
				if w.messages(subjects.DefaultStream)[sequence] == nil {
					t.Errorf("event %d is gone", sequence)
				}
			}
			w.changeStream(subjects.DefaultStream, func(c *jetstream.StreamConfig) { c.MaxMsgs = -1 })
			w.failsAgain(svc, 1)
			w.findsNothing(w.elected("me"), quick)
		})
	}
}

// A bridge of an older version wrote that it fills a range, and the range exists: what it had seen was
// the end of a member that lagged behind.
func TestPendingRangeThatExists(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		pending string
		want    []subjects.LostRange
	}{
		{"2-4", nil},
		{"6-9", []subjects.LostRange{{From: 6, To: 9}}},
		{"nonsense", nil},
	} {
		t.Run(tc.pending, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			svc := w.create(w.app("one"))
			r := w.start(w.config())
			w.failsAgain(svc, 4)
			must[any](t)(nil, r.stop())
			w.changeStream(subjects.DefaultStream, func(c *jetstream.StreamConfig) { c.Metadata[subjects.MetadataLostPending] = tc.pending })
			r = w.start(w.config())
			if got := w.named(); !slices.Equal(got, tc.want) {
				t.Errorf("the stream names %v, want %v", got, tc.want)
			}
			if got := w.stream(subjects.DefaultStream).CachedInfo().Config.Metadata[subjects.MetadataLostPending]; got != "" {
				t.Errorf("the metadata still name the range %s", got)
			}
			w.failsAgain(svc, 1)
			w.findsNothing(w.config(), time.Second)
			r.waitReady()
		})
	}
}

// waitsFor waits until the bridge is not ready, for reasons that contain words.
func (r *running) waitsFor(words ...string) {
	r.t.Helper()
	eventually(r.t, "the bridge is not ready", func() error {
		select {
		case err := <-r.done:
			r.done <- err
			return fmt.Errorf("it ended: %w", errors.Join(errFatal, err))
		default:
		}
		err := r.bridge.Ready()
		if err == nil {
			return errors.New("it is ready")
		}
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				return fmt.Errorf("it is not ready, and does not say %q: %w", word, err)
			}
		}
		return nil
	})
}
