package e2e_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/bridge/audit"
	"github.com/appbridge/appbridge/subjects"
)

const (
	auditFound    = "the audit found a difference"
	auditRepaired = "the audit repaired a difference"
)

// audited is a configuration with rounds that follow one another quickly.
func (w *world) audited() bridge.Config {
	cfg := w.config()
	cfg.AuditInterval = time.Second
	return cfg
}

// findings are what the audit found, as "what kind side".
func (r *running) findings() []string {
	found := []string{}
	for _, e := range r.logs.FilterMessage(auditFound).All() {
		f := e.ContextMap()
		for _, field := range []string{"app", "key", "object"} {
			if name, ok := f[field].(string); ok {
				found = append(found, fmt.Sprintf("%s %v %v", strings.TrimPrefix(name, "vision/development/"), f["kind"], f["side"]))
			}
		}
	}
	return found
}

// rounds waits for so many more complete rounds.
func (r *running) rounds(n float64) {
	r.t.Helper()
	began := r.metric(completeRounds)
	eventually(r.t, "the audit goes round", func() error {
		if now := r.metric(completeRounds); now < began+n {
			return fmt.Errorf("%v rounds of %v", now-began, n)
		}
		return nil
	})
}

// completeRounds counts rounds that were interrupted too; see complete.
const completeRounds = "appbridge_audit_rounds_total"

// complete is how many rounds were not interrupted.
func (r *running) complete() float64 {
	r.t.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == completeRounds && m.GetLabel()[0].GetValue() == "complete" {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// completes waits for so many more rounds that are not interrupted.
func (r *running) completes(n float64) {
	r.t.Helper()
	began := r.complete()
	eventually(r.t, "the audit goes round", func() error {
		if now := r.complete(); now < began+n {
			return fmt.Errorf("%v complete rounds of %v; ready: %w", now-began, n, errors.Join(r.bridge.Ready(), errNotYet))
		}
		return nil
	})
}

var errNotYet = errors.New("not yet")

// foundNothing fails if the audit found anything.
func (r *running) foundNothing() {
	r.t.Helper()
	if found := r.findings(); len(found) > 0 {
		for _, e := range r.logs.FilterMessage(auditFound).All() {
			r.t.Log(e.ContextMap())
		}
		r.t.Errorf("the audit found %q where nothing is wrong", found)
	}
	for _, name := range []string{"appbridge_audit_findings_total", "appbridge_audit_unrepaired"} {
		if got := r.metric(name); got != 0 {
			r.t.Errorf("%s is %v", name, got)
		}
	}
}

// Nothing is found where nothing is wrong: at rest and under load, with every configuration that
// lets stream and bucket hold less than everything.
func TestAuditFindsNothing(t *testing.T) {
	t.Parallel()
	streamOf := func(change func(*jetstream.StreamConfig)) func(*world, *bridge.Config) {
		return func(w *world, cfg *bridge.Config) {
			stream := jetstream.StreamConfig{
				Name: cfg.Stream, Subjects: []string{"flyte.apps.events.>"}, Storage: jetstream.FileStorage, Duplicates: 2 * time.Second,
			}
			change(&stream)
			must[jetstream.Stream](w.t)(w.js.CreateStream(w.t.Context(), stream))
		}
	}
	for _, test := range []struct {
		name  string
		setUp func(*world, *bridge.Config)
	}{
		{"by default", func(*world, *bridge.Config) {}},
		{"markers removed", func(_ *world, cfg *bridge.Config) { cfg.MarkerMaxAge = time.Second }},
		{"events removed for their age", streamOf(func(c *jetstream.StreamConfig) { c.MaxAge = 5 * time.Second })},
		{"events removed for their number", streamOf(func(c *jetstream.StreamConfig) { c.MaxMsgs = 20 })},
		{"one event a subject", func(w *world, cfg *bridge.Config) {
			cfg.AllowUnsafeStream = true
			streamOf(func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 })(w, cfg)
		}},
		{"in protobuf", func(_ *world, cfg *bridge.Config) { cfg.Encoding = bridge.EncodingProtobuf }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			cfg := w.audited()
			test.setUp(w, &cfg)
			r := w.start(cfg)
			done := make(chan struct{})
			load := w.lives(done, 4)
			claimed := w.create(w.app("claimed"))
			conflict := w.app("claimed")
			conflict.ObjectName = "other"
			w.create(conflict)
			must[*servingv1.Service](t)(w.Ready(t.Context(), claimed, "claimed-00001", 2))
			r.completes(3)
			must[*jetstream.PubAck](t)(w.js.Publish(t.Context(), "flyte.apps.events.vision.development.claimed.updated", []byte("hello")))
			r.completes(3)
			close(done)
			must[any](t)(nil, load.Wait())
			r.waitReady()
			r.completes(3)
			r.foundNothing()
			if got := r.metric("appbridge_audit_repairs_total"); got != 0 {
				t.Errorf("%v repairs", got)
			}
		})
	}
}

// Nothing is found while NATS or the API server is cut, a session starts over, another bridge
// publishes, or verify repairs beside.
func TestAuditInTrouble(t *testing.T) {
	t.Parallel()
	t.Run("cuts", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		r := w.start(w.audited())
		done := make(chan struct{})
		load := w.lives(done, 3)
		for range 4 {
			r.rounds(1)
			port := w.port()
			w.downNATS()
			w.upNATS(port)
			r.waitReady()
		}
		close(done)
		must[any](t)(nil, load.Wait())
		r.waitReady()
		r.completes(3)
		r.foundNothing()
	})
	t.Run("two bridges", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		cfg := w.audited()
		first, second := w.start(cfg), w.start(cfg)
		done := make(chan struct{})
		load := w.lives(done, 3)
		first.rounds(5)
		second.rounds(2)
		for range 3 {
			_, err := w.verify(cfg, audit.Options{ConfirmFor: time.Second, Repair: true})
			t.Log("verify --repair:", err)
		}
		close(done)
		must[any](t)(nil, load.Wait())
		first.completes(2)
		second.completes(2)
		first.foundNothing()
		second.foundNothing()
	})
}

// unready notes whether a bridge says that it is not ready for what its audit found.
func (r *running) unready() func() bool {
	seen, stop, stopped := false, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			if err := r.bridge.Ready(); err != nil && strings.HasPrefix(err.Error(), "the audit found ") {
				seen = true
			}
			select {
			case <-time.After(5 * time.Millisecond):
			case <-stop:
				return
			}
		}
	}()
	return func() bool {
		close(stop)
		<-stopped
		return seen
	}
}

// What a hand does to stream and bucket under a running bridge is found, makes it not ready, and is
// healed. Nothing is published but what a removed event owes.
func TestAuditHeals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.audited()
	one := w.create(w.app("one"))
	w.create(w.app("two"))
	w.create(w.app("three"))
	gone := w.create(w.app("gone"))
	r := w.start(cfg)
	must[*servingv1.Service](t)(w.Progressing(t.Context(), one))
	must[any](t)(nil, w.Client.Delete(t.Context(), gone))
	eventually(t, "everything is published", func() error {
		if got := w.lastSequence(); got != 6 {
			return fmt.Errorf("the stream ends at %d", got)
		}
		return w.bucketDrift(cfg.App, w.events(0))
	})
	r.completes(2)
	r.foundNothing()
	key := func(name string) string { return subjects.BucketSubject(cfg.Bucket, "vision.development."+name) }
	entry := func(name string) *jetstream.RawStreamMsg {
		return must[*jetstream.RawStreamMsg](t)(w.stream(subjects.BucketStream(cfg.Bucket)).GetLastMsgForSubject(t.Context(), key(name)))
	}
	before := entry("one")
	must[*servingv1.Service](t)(w.Failed(t.Context(), one, "Broken", "it is"))
	r.completes(1)
	for _, test := range []struct {
		name string
		hand func()
		// found is what the audit finds; alone is true if nothing else would.
		found     string
		alone     bool
		published []string
	}{
		{"deletes an entry", func() {
			kv := must[jetstream.KeyValue](t)(w.js.KeyValue(t.Context(), cfg.Bucket))
			must[any](t)(nil, kv.Delete(t.Context(), "vision.development.three"))
		}, "three marker_for_entry bucket", false, nil},
		{"purges a key", func() {
			must[any](t)(nil, w.stream(subjects.BucketStream(cfg.Bucket)).Purge(t.Context(), jetstream.WithPurgeSubject(key("three"))))
		}, "three missing_entry bucket", false, nil},
		{"edits a body under its right headers", func() {
			e := entry("three")
			w.plantEntry(cfg, "vision.development.three", e.Header, bytes.Replace(e.Data, []byte("example.com"), []byte("example.org"), 1))
		}, "three bucket_other_app bucket", false, nil},
		{"forges an entry of an app that never was", func() {
			e := entry("three")
			w.plantEntry(cfg, "vision.development.ghost", e.Header, e.Data)
		}, "ghost ghost_entry bucket", false, nil},
		{"puts an old entry back", func() { w.plantEntry(cfg, "vision.development.one", before.Header, before.Data) }, "one bucket_behind bucket", false, nil},
		{"removes the last event of an app", func() {
			must[any](t)(nil, w.stream(cfg.Stream).DeleteMsg(t.Context(), w.lastOf("one")))
		}, "one removed_event stream", true, []string{"updated one"}},
		{"removes the only event of an app", func() {
			must[any](t)(nil, w.stream(cfg.Stream).DeleteMsg(t.Context(), w.lastOf("three")))
		}, "three removed_event stream", true, []string{"created three"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := *w
			w.t, r.t = t, t
			end, known := w.lastSequence(), len(r.findings())
			unready := r.unready()
			test.hand()
			heals := func() error {
				report, err := w.verify(cfg, audit.Options{})
				if err != nil || len(report.Differences) > 0 {
					return fmt.Errorf("%v, %w", report.Differences, errors.Join(err, errNotYet))
				}
				return nil
			}
			found := func() []string { return r.findings()[known:] }
			if test.alone {
				eventually(t, "the audit finds it", func() error {
					if got := found(); !slices.Equal(got, []string{test.found}) {
						return fmt.Errorf("found %q, want %q", got, test.found)
					}
					return nil
				})
			}
			eventually(t, "it is healed", heals)
			eventually(t, "what was found is repaired", func() error {
				f, d := r.logs.FilterMessage(auditFound).Len(), r.logs.FilterMessage(auditRepaired).Len()
				if f != d {
					return fmt.Errorf("%d of %d", d, f)
				}
				return r.bridge.Ready()
			})
			r.completes(2)
			if got := found(); len(got) > 0 && !slices.Equal(got, []string{test.found}) {
				t.Errorf("found %q, want %q", got, test.found)
			}
			if seen := unready(); test.alone && !seen {
				t.Error("it was ready all the time")
			}
			published := []string{}
			for _, e := range w.events(end) {
				published = append(published, fmt.Sprintf("%s %s", e.kind, e.id.Name))
			}
			if !slices.Equal(published, test.published) && len(published)+len(test.published) > 0 {
				t.Errorf("published %q, want %q", published, test.published)
			}
			t.Logf("found %q by the audit", found())
		})
	}
	r.t = t
	must[any](t)(nil, r.stop())
}
