package e2e_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	coordinationv1 "k8s.io/api/coordination/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/bridge/audit"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

const (
	baseDomain, otherDomain = "apps.example.com", "new.example.com"
	yields                  = "a bridge with other options began to lead later; this one publishes nothing"
	foundRival              = "another bridge publishes to this stream; run all bridges of a stream with --leader-elect and the same Lease, or stop this one or the other"
)

// reshaped is a configuration with another base domain.
func reshaped(cfg bridge.Config) bridge.Config {
	cfg.App.BaseDomain = otherDomain
	return cfg
}

// manyShaped creates apps and waits until a bridge has published them. It returns them with the end
// of the stream.
func (w *world) manyShaped(n int) (apps []*servingv1.Service, end uint64) {
	w.t.Helper()
	for i := range n {
		apps = append(apps, w.create(w.app(fmt.Sprint("a", i))))
	}
	w.endsAt(uint64(n))
	return apps, uint64(n)
}

// endsAt waits until the stream ends at a sequence. It fails if the stream is longer.
func (w *world) endsAt(want uint64) {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("the stream ends at %d", want), func() error {
		switch last := w.lastSequence(); {
		case last > want:
			return fmt.Errorf("%w: it ends at %d: %v", errFatal, last, w.events(0))
		case last < want:
			return fmt.Errorf("it ends at %d", last)
		}
		return nil
	})
}

// domainOf is the base domain of an event's App.
func domainOf(e stored) string {
	_, domain, _ := strings.Cut(strings.TrimPrefix(e.app().GetStatus().GetIngress().GetPublicUrl(), "https://"), ".")
	return domain
}

// domains fails unless all events have a base domain.
func domains(t *testing.T, events []stored, want string) {
	t.Helper()
	for _, e := range events {
		if got := domainOf(e); got != want {
			t.Errorf("%v: base domain %q, want %q", e, got, want)
		}
	}
}

// yielded waits until a bridge has stopped publishing for a newer shape.
func (r *running) yielded() map[string]any {
	r.t.Helper()
	eventually(r.t, "it yields", func() error {
		if got := r.logs.FilterMessage(yields).Len(); got != 1 {
			return fmt.Errorf("%d times, want once", got)
		}
		return nil
	})
	if got := r.metric("appbridge_leader"); got != 0 {
		r.t.Errorf("appbridge_leader is %v", got)
	}
	return r.logs.FilterMessage(yields).All()[0].ContextMap()
}

// Two bridges with different options and no leader election: the one that began last publishes what
// differs, once. The other one stops, names the option and both values, and is not ready until it is
// started again.
func TestTwoShapes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	older := w.start(w.config())
	apps, end := w.manyShaped(10)
	newer := w.start(reshaped(w.config()))
	older.yielded()
	end += 10
	w.endsAt(end)
	domains(t, w.events(end-10), otherDomain)
	err := older.bridge.Ready()
	says(t, err, "--base-domain", otherDomain, baseDomain, "start it again")

	// The newer one goes on alone.
	for _, app := range apps {
		must[*servingv1.Service](t)(w.Progressing(t.Context(), app))
	}
	end += 10
	w.endsAt(end)
	domains(t, w.events(end-10), otherDomain)
	must[any](t)(nil, newer.bridge.Ready())
	eventually(t, "bucket equals cluster", func() error { return w.bucketDrift(kservice.Config{BaseDomain: otherDomain}, w.events(0)) })
	if again := older.bridge.Ready(); again == nil || again.Error() != err.Error() {
		t.Errorf("the older one says %v, then %v", err, again)
	}

	// Started again by hand, the older one is the newer one.
	must[any](t)(nil, older.stop())
	older = w.start(w.config())
	newer.yielded()
	end += 10
	w.endsAt(end)
	domains(t, w.events(end-10), baseDomain)
	says(t, newer.bridge.Ready(), "--base-domain", otherDomain, baseDomain)
	w.checkHeaders(w.events(0))
	must[any](t)(nil, older.stop())
	must[any](t)(nil, newer.stop())
	w.endsAt(end)
}

// holder is the identity that holds a Lease.
func (w *world) holder(lease string) string {
	w.t.Helper()
	var l coordinationv1.Lease
	must[any](w.t)(nil, w.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: lease}, &l))
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// Two bridges with different options and Leases of their own: the older one gives its Lease back and
// stands by, ready. Later it competes again, and is the one that began last.
func TestTwoShapesElected(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.elected("older")
	cfg.StandAside = 20 * time.Second // longer than a Lease
	older := w.start(cfg)
	_, end := w.manyShaped(10)
	cfg = reshaped(w.elected("newer"))
	cfg.LeaseName = "another"
	newer := w.start(cfg)
	log := older.yielded()
	until, _ := log["standingByUntil"].(time.Time)
	if options := fmt.Sprint(log["options"]); !strings.Contains(options, "--base-domain") || !strings.Contains(options, otherDomain) || until.IsZero() {
		t.Errorf("the older one logs %v", log)
	}
	must[any](t)(nil, older.bridge.Ready())
	if got := w.holder("appbridge"); got != "" {
		t.Errorf("%q holds the Lease that was given back", got)
	}
	end += 10
	w.endsAt(end)
	domains(t, w.events(end-10), otherDomain)
	w.create(w.app("meanwhile"))
	end++
	w.endsAt(end)
	domains(t, w.events(end-1), otherDomain)

	eventually(t, "the older one stands by until "+until.String(), func() error {
		if time.Now().After(until.Add(-time.Second)) {
			return nil
		}
		if err := older.bridge.Ready(); err != nil || older.metric("appbridge_leader") != 0 {
			return fmt.Errorf("%w: it is not ready, or leads: %w", errFatal, errors.Join(err))
		}
		return errNotYet
	})
	newer.yielded()
	older.waitReady()
	end += 11
	w.endsAt(end)
	domains(t, w.events(end-11), baseDomain)
	must[any](t)(nil, newer.bridge.Ready())
	if got := [2]string{w.holder("appbridge"), w.holder("another")}; got != [2]string{"older", ""} {
		t.Errorf("the Leases are held by %q", got)
	}
	w.checkHeaders(w.events(0))
}

// Replicas of one Lease whose options change one by one: each is ready all the time. What differs is
// published when a leader has other options than the one before.
func TestShapeRollout(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, second := w.start(w.elected("first")), w.start(w.elected("second"))
	_, end := w.manyShaped(10)
	third := w.start(reshaped(w.elected("third")))
	w.handLease("third")
	third.waitReady()
	eventually(t, "the third leads", func() error {
		if third.metric("appbridge_leader") != 1 || first.metric("appbridge_leader") != 0 {
			return errNotYet
		}
		return nil
	})
	end += 10
	w.endsAt(end)
	domains(t, w.events(end-10), otherDomain)
	must[any](t)(nil, first.stop())
	must[any](t)(nil, second.bridge.Ready())
	w.create(w.app("new"))
	end++
	w.endsAt(end)
	// The newer one goes: one of the older options leads.
	must[any](t)(nil, third.stop())
	eventually(t, "the second leads", func() error {
		if second.metric("appbridge_leader") != 1 {
			return errNotYet
		}
		return nil
	})
	end += 11
	w.endsAt(end)
	domains(t, w.events(end-11), baseDomain)
	second.waitReady()
	for name, r := range map[string]*running{"second": second, "third": third} {
		if got := r.logs.FilterMessage(foundRival).Len() + r.logs.FilterMessage(yields).Len(); got != 0 {
			t.Errorf("the %s yielded, or warned of another bridge", name)
		}
	}
	w.checkHeaders(w.events(0))
}

// shapeOf is what the metadata of the stream have of a shape.
func (w *world) shapeOf() [2]string {
	w.t.Helper()
	metadata := w.stream(subjects.DefaultStream).CachedInfo().Config.Metadata
	return [2]string{metadata[subjects.MetadataShape], metadata[subjects.MetadataShapeOf]}
}

// Two bridges with the same options and no leader election go on, and each warns, once.
func TestSameShape(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.start(w.config())
	_, end := w.manyShaped(3)
	for range 2 {
		before := w.shapeOf()
		second := w.start(w.config())
		if after := w.shapeOf(); after[0] != before[0] || after[1] == before[1] {
			t.Errorf("the shape went from %q to %q", before, after)
		}
		for name, r := range map[string]*running{"first": first, "second": second} {
			eventually(t, "the "+name+" warns", func() error {
				if got := r.logs.FilterMessage(foundRival).Len(); got != 1 {
					return fmt.Errorf("%d warnings", got)
				}
				return nil
			})
		}
		// Nothing more is written.
		answered := w.shapeOf()
		first.checked()
		second.checked()
		if after := w.shapeOf(); after != answered {
			t.Errorf("the shape went from %q to %q", answered, after)
		}
		must[any](t)(nil, second.stop())
	}
	must[any](t)(nil, first.bridge.Ready())
	w.endsAt(end)
}

// Bridges with leader election that have the same options write no shape when they take over.
func TestSameShapeElected(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, second := w.start(w.elected("first")), w.start(w.elected("second"))
	w.manyShaped(1)
	before := w.shapeOf()
	if want := "base-domain=apps.example.com;encoding=json;ingress-port=0;pod-conditions=false;scheme=https"; before[0] != want {
		t.Errorf("the shape is %q, want %q", before[0], want)
	}
	must[any](t)(nil, first.stop())
	eventually(t, "the second leads", func() error {
		if second.metric("appbridge_leader") != 1 {
			return errNotYet
		}
		return second.bridge.Ready()
	})
	if after := w.shapeOf(); after != before {
		t.Errorf("the shape went from %q to %q", before, after)
	}
}

// Two bridges with the same options, each with a Lease of its own: they run into each other's events.
// Each finds that another bridge leads as well, and warns, once, with its own Lease.
func TestSameShapeOnTwoLeases(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.start(w.elected("first"))
	apps, _ := w.manyShaped(20)
	cfg := w.elected("second")
	cfg.LeaseName = "another"
	second := w.start(cfg)
	for i := 0; first.logs.FilterMessage(foundRival).Len() == 0 || second.logs.FilterMessage(foundRival).Len() == 0; i++ {
		if i == 200 {
			t.Fatalf("other_writer ended %v and %v sessions, and %d and %d warnings name another bridge",
				first.metricOf("appbridge_resyncs_total", "cause", "other_writer"), second.metricOf("appbridge_resyncs_total", "cause", "other_writer"),
				first.logs.FilterMessage(foundRival).Len(), second.logs.FilterMessage(foundRival).Len())
		}
		for _, app := range apps {
			must[*servingv1.Service](t)(w.Failed(t.Context(), app, "Broken", fmt.Sprint("round ", i)))
		}
	}
	for lease, r := range map[string]*running{"appbridge": first, "another": second} {
		warnings := r.logs.FilterMessage(foundRival).All()
		if got := fmt.Sprint(warnings[0].ContextMap()["lease"]); len(warnings) != 1 || got != w.namespace+"/"+lease {
			t.Errorf("%d warnings, the first names Lease %q, want one that names %s", len(warnings), got, lease)
		}
	}
	w.checkHeaders(w.events(0))
	eventually(t, "bucket equals cluster", func() error { return w.bucketDrift(w.config().App, w.events(0)) })
}

// The leader of the only Lease runs into events of another writer, again and again: of a former leader,
// or planted. No other bridge leads, so it warns of none, and neither does its replica.
func TestOtherWriterThatIsNoBridge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, second := w.start(w.elected("first")), w.start(w.elected("second"))
	w.manyShaped(1)
	like := w.events(0)[0]
	stored := w.shapeOf()
	resyncs := func(r *running) float64 { return r.metricOf("appbridge_resyncs_total", "cause", "other_writer") }
	plant := func(r *running, times int) {
		t.Helper()
		for range times {
			before := resyncs(r)
			w.plant(like.msg.Subject, told(like.msg.Header, subjects.HeaderGeneration, fmt.Sprint(before)), string(like.msg.Data))
			eventually(t, "the leader finds the event", func() error {
				if resyncs(r) == before {
					return errNotYet
				}
				return r.bridge.Ready()
			})
		}
	}
	plant(first, 3)
	asked := w.shapeOf()
	if asked[0] != stored[0] || asked[1] == stored[1] {
		t.Errorf("the shape went from %q to %q: it did not ask for another bridge", stored, asked)
	}
	w.handLease("second")
	eventually(t, "the second leads", func() error {
		if second.metric("appbridge_leader") != 1 || first.metric("appbridge_leader") != 0 {
			return errNotYet
		}
		return second.bridge.Ready()
	})
	plant(second, 3)
	first.waitReady()
	first.checked()
	second.checked()
	for name, r := range map[string]*running{"first": first, "second": second} {
		if got := r.logs.FilterMessage(foundRival).Len(); got != 0 {
			t.Errorf("the %s warned of another bridge", name)
		}
	}
}

// Metadata that an operator removed, or put back to those of an earlier bridge, are no newer shape:
// the bridge goes on, and writes its own when it starts.
func TestShapeEdited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	earlier := reshaped(w.config())
	must[any](t)(nil, w.start(earlier).stop())
	past := maps.Clone(w.stream(subjects.DefaultStream).CachedInfo().Config.Metadata)
	r := w.start(w.config())
	_, end := w.manyShaped(3)
	for name, change := range map[string]func(*jetstream.StreamConfig){
		"replaced":   func(c *jetstream.StreamConfig) { c.Metadata = past },
		"unreadable": func(c *jetstream.StreamConfig) { c.Metadata[subjects.MetadataShape] = "; DROP" },
		"removed": func(c *jetstream.StreamConfig) {
			delete(c.Metadata, subjects.MetadataShape)
			delete(c.Metadata, subjects.MetadataShapeOf)
		},
	} {
		w.changeStream(subjects.DefaultStream, change)
		r.checked()
		must[any](t)(nil, r.bridge.Ready())
		w.create(w.app(name))
		end++
		w.endsAt(end)
	}
	must[any](t)(nil, r.stop())
	must[any](t)(nil, w.start(w.config()).stop())
	if got := w.shapeOf()[0]; !strings.Contains(got, baseDomain) {
		t.Errorf("the shape is %q", got)
	}
	w.endsAt(end)
}

// checked waits until the bridge has looked at the stream since this call: it looks right after each
// reconnect, and is not ready before.
func (r *running) checked() {
	r.t.Helper()
	if err := r.nc.ForceReconnect(); err != nil {
		r.t.Fatal(err)
	}
	r.waitReady()
}

// A stream that lost its end has the metadata of an earlier time: those of the bridge that lost
// nothing are no newer ones.
func TestShapeRolledBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	must[any](t)(nil, w.start(reshaped(w.config())).stop())
	port := w.port()
	w.downNATS()
	past := w.copyStorage()
	w.upNATS(port)
	r := w.start(w.config())
	w.manyShaped(5)
	w.converged(w.events(0))
	w.downNATS()
	w.restore(past, subjects.DefaultStream)
	w.upNATS(port)
	eventually(t, "the range is filled", func() error {
		if r.logs.FilterMessage("the lost range is filled").Len() != 1 {
			return errNotYet
		}
		return r.bridge.Ready()
	})
	if got := w.shapeOf()[0]; !strings.Contains(got, baseDomain) {
		t.Errorf("the shape is %q", got)
	}
	if got := r.logs.FilterMessage(yields).Len(); got != 0 {
		t.Error("the only bridge yielded")
	}
}

// Each option that shapes an App is a difference of verify, by name and with both values. A repair
// changes nothing then, and one with the same options writes no shape.
func TestVerifyShape(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	w.manyShaped(2)
	w.findsNothing(cfg, 0)
	for option, test := range map[string]struct {
		change      func(*bridge.Config)
		here, there string
	}{
		"base-domain":    {func(c *bridge.Config) { c.App.BaseDomain = otherDomain }, otherDomain, baseDomain},
		"scheme":         {func(c *bridge.Config) { c.App.Scheme = "http" }, "http", "https"},
		"ingress-port":   {func(c *bridge.Config) { c.App.Port = 8443 }, "8443", "0"},
		"encoding":       {func(c *bridge.Config) { c.Encoding = bridge.EncodingProtobuf }, "protobuf", "json"},
		"pod-conditions": {func(c *bridge.Config) { c.PodConditions = true }, "true", "false"},
	} {
		other := cfg
		test.change(&other)
		report := w.finds(other, "other_shape")
		if got, want := fmt.Sprint(report.Differences), fmt.Sprintf("--%s is %q here and %q there", option, test.here, test.there); !strings.Contains(got, want) || strings.Count(got, "--") != 1 {
			t.Errorf("got %s, want %s", got, want)
		}
		before := w.holdings(cfg)
		report, err := w.verify(other, audit.Options{ConfirmFor: quick, Repair: true})
		says(t, err, "nothing is repaired", "--"+option)
		if len(report.Differences) != 1 {
			t.Errorf("got %v", report.Differences)
		}
		if after := w.holdings(cfg); !maps.Equal(before, after) {
			t.Errorf("the refused repair changed something: from %v\nto %v", before, after)
		}
	}
	must[any](t)(nil, r.bridge.Ready())
	must[any](t)(nil, r.stop())
	w.create(w.app("new"))
	before := w.shapeOf()
	if got := w.repair(cfg, "vision.development.new"); !slices.Equal(got, []string{"created new"}) {
		t.Errorf("published %q", got)
	}
	if after := w.shapeOf(); after != before {
		t.Errorf("the repair changed the shape from %q to %q", before, after)
	}
}
