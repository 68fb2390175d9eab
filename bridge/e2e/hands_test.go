package e2e_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
)

// An operator's hands in the storage: what a stock command can do there must
// not stop the bridge, nor any app.

// A delete marker that was compacted away is not needed to bring the app back.
func TestMarkerCompacted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	svc := w.create(w.app("phoenix"))
	w.waitFor(0, "created phoenix")
	must[any](t)(nil, w.Client.Delete(t.Context(), svc))
	w.waitFor(0, "created phoenix", "deleted phoenix")
	w.create(w.app("later")) // so that the marker is not what shows how far the bucket is
	w.waitFor(0, "created phoenix", "deleted phoenix", "created later")
	must[any](t)(nil, r.stop())
	kv := must[jetstream.KeyValue](t)(w.js.KeyValue(t.Context(), cfg.Bucket))
	must[any](t)(nil, kv.PurgeDeletes(t.Context(), jetstream.DeleteMarkersOlderThan(-1)))
	if got := len(w.entries()); got != 1 {
		t.Fatalf("the bucket holds %d entries, want the marker gone", got)
	}

	r = w.start(cfg)
	w.create(w.app("phoenix"))
	events := w.waitFor(0, "created phoenix", "deleted phoenix", "created later", "created phoenix")
	w.checkHeaders(events)
	eventually(t, "bucket equals cluster", func() error { return w.bucketDrift(cfg.App, w.events(0)) })
	if got := r.metric("appbridge_resyncs_total"); got > 3 {
		t.Errorf("%v resyncs for one missing marker", got)
	}
}

// A delete marker that has become too old goes, is not missed, and does not come
// back at the next start.
func TestMarkerMaxAge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	cfg.MarkerMaxAge = time.Second
	r := w.start(cfg)
	svc := w.create(w.app("phoenix"))
	must[any](t)(nil, w.Client.Delete(t.Context(), svc))
	w.waitFor(0, "created phoenix", "deleted phoenix")
	w.create(w.app("later")) // the marker of the newest event would stay
	want := []string{"created phoenix", "deleted phoenix", "created later"}
	w.waitFor(0, want...)
	gone := func() error {
		entries := w.entries()
		for id := range entries {
			if id.Name == "later" && len(entries) == 1 {
				return nil
			}
		}
		return fmt.Errorf("the bucket holds %d entries, want the marker gone", len(entries))
	}
	eventually(t, "the marker goes", gone)
	w.findsNothing(cfg, 0)
	must[any](t)(nil, r.stop())

	r = w.start(cfg)
	must[any](t)(nil, gone())
	w.findsNothing(cfg, 0)
	if got := r.metric("appbridge_snapshot_restarts_total"); got > 0 {
		t.Errorf("the projection started over %v times", got)
	}
	w.create(w.app("phoenix"))
	events := w.waitFor(0, append(want, "created phoenix")...)
	w.checkHeaders(events)
	eventually(t, "bucket equals cluster", func() error { return w.bucketDrift(cfg.App, events) })
	if got := r.metric("appbridge_resyncs_total"); got != 1 {
		t.Errorf("%v resyncs, want one", got)
	}
}

// The delete marker of the newest event stays however old it is, also where another message of the
// bucket is newer: the bucket's position is that of the marker.
func TestMarkerOfTheNewestEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	cfg.MarkerMaxAge = time.Second
	r := w.start(cfg)
	w.create(w.app("other"))
	w.waitFor(0, "created other")
	early, last := w.create(w.app("early")), w.create(w.app("last"))
	must[any](t)(nil, w.Client.Delete(t.Context(), early))
	w.waitFor(0, "created other", "created early", "created last", "deleted early")
	must[any](t)(nil, w.Client.Delete(t.Context(), last))
	w.waitFor(0, "created other", "created early", "created last", "deleted early", "deleted last")
	eventually(t, "the bucket has the marker", func() error {
		if m := w.entries()[w.app("last").ID()]; m == nil || m.Header.Get(subjects.HeaderKVOperation) == "" {
			return errNotYet
		}
		return nil
	})
	planted := w.plant(subjects.BucketSubject(cfg.Bucket, "vision.development.other"), nil, `{"garbage`)
	eventually(t, "the entry is written again", func() error {
		if m := w.entries()[w.app("other").ID()]; m == nil || m.Sequence <= planted {
			return errNotYet
		}
		return nil
	})
	eventually(t, "the older marker goes", func() error {
		if len(w.entries()) > 2 {
			return errNotYet
		}
		return nil
	})
	// By then the other one is too old as well.
	rounds := 0
	eventually(t, "nothing else goes", func() error {
		m := w.entries()[w.app("last").ID()]
		if m == nil {
			return fmt.Errorf("%w: the marker of the newest event is gone", errFatal)
		}
		if rounds++; rounds < 60 { // the bridge looks for old markers every second
			return errNotYet
		}
		return nil
	})
	r.waitReady()
}

// A foreign message on an app's own subject moves that app's fence, no more.
func TestForeignMessage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	svc := w.create(w.app("one"))
	w.waitFor(0, "created one")
	must[*jetstream.PubAck](t)(w.js.Publish(t.Context(), "flyte.apps.events.vision.development.one.updated", []byte("hello")))
	must[*servingv1.Service](t)(w.Progressing(t.Context(), svc))
	w.create(w.app("two"))
	stream := must[jetstream.Stream](t)(w.js.Stream(t.Context(), cfg.Stream))
	eventually(t, "both apps go on", func() error {
		info := must[*jetstream.StreamInfo](t)(stream.Info(t.Context()))
		if info.State.LastSeq != 4 {
			return fmt.Errorf("the stream ends at %d, want 4", info.State.LastSeq)
		}
		return nil
	})
	update := must[*jetstream.RawStreamMsg](t)(stream.GetLastMsgForSubject(t.Context(), "flyte.apps.events.vision.development.one.updated"))
	if got := update.Header.Get(subjects.HeaderPreviousSequence); got != "1" {
		t.Errorf("the update's previous event is %q, want the create at 1", got)
	}
	r.waitReady()
	// And after a restart, when only the stream knows of the foreign message.
	must[*jetstream.PubAck](t)(w.js.Publish(t.Context(), "flyte.apps.events.vision.development.one.updated", []byte("hello again")))
	w.create(w.app("three"))
	eventually(t, "three is there", func() error {
		if got := must[*jetstream.StreamInfo](t)(stream.Info(t.Context())).State.LastSeq; got != 6 {
			return fmt.Errorf("the stream ends at %d, want 6", got)
		}
		return nil
	})
	must[any](t)(nil, r.stop())
	r = w.start(cfg)
	must[*servingv1.Service](t)(w.Failed(t.Context(), svc, "Broken", "it is"))
	eventually(t, "one goes on", func() error {
		last := must[*jetstream.RawStreamMsg](t)(stream.GetLastMsgForSubject(t.Context(), "flyte.apps.events.vision.development.one.updated"))
		if last.Sequence != 7 || !strings.Contains(string(last.Data), "it is") {
			return fmt.Errorf("its last message is %d", last.Sequence)
		}
		return nil
	})
	if got := r.metric("appbridge_resyncs_total"); got > 3 {
		t.Errorf("%v resyncs for one foreign message", got)
	}
}

// The stream purged and the bucket deleted, within the duplicate window: the
// server then takes the first tries for duplicates of what is gone.
func TestStartAfresh(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	must[jetstream.Stream](t)(w.js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: cfg.Stream, Subjects: []string{"flyte.apps.events.>"}, Storage: jetstream.FileStorage, Duplicates: 3 * time.Second,
	}))
	r := w.start(cfg)
	w.create(w.app("one"))
	w.waitFor(0, "created one")
	must[any](t)(nil, r.stop())
	stream := must[jetstream.Stream](t)(w.js.Stream(t.Context(), cfg.Stream))
	must[any](t)(nil, stream.Purge(t.Context()))
	must[any](t)(nil, w.js.DeleteKeyValue(t.Context(), cfg.Bucket))
	w.start(cfg)
	events := w.waitFor(1, "created one")
	eventually(t, "bucket equals cluster", func() error { return w.bucketDrift(cfg.App, events) })
}

// slow delays everything that the API server answers.
type slow struct {
	http.RoundTripper
	by time.Duration
}

func (s slow) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-time.After(s.by):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	return s.RoundTripper.RoundTrip(r)
}

// A second bridge that comes and goes while apps change, with an API server
// that is slow to it: no version ever steps back, no state is told twice.
func TestTakeOverUnderFire(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	first := w.start(cfg)
	g := w.begin(30, 4, 12, recreateEvery(3))
	kube := rest.CopyConfig(w.Config)
	kube.QPS = -1
	kube.Wrap(func(rt http.RoundTripper) http.RoundTripper { return slow{rt, 20 * time.Millisecond} })
	for range 6 {
		second := w.launch(cfg, kube)
		second.waitReady()
		if err := second.stop(); err != nil {
			t.Log("second:", err) // stopped while it compared anew
		}
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	first.waitReady()
	eventually(t, "bucket equals cluster", func() error { return w.bucketDrift(cfg.App, w.events(0)) })
	if err := first.stop(); err != nil {
		t.Error(err)
	}
	events := w.events(0)
	w.checkHeaders(events)
	newest := map[string]int{}
	for _, e := range events {
		uid := e.header(subjects.HeaderUID)
		version := must[int](t)(strconv.Atoi(e.header(subjects.HeaderResourceVersion)))
		if version < newest[uid] {
			t.Errorf("sequence %d: %s steps back from version %d", e.sequence, e, newest[uid])
		}
		newest[uid] = version
	}
	noStateTwice(t, events)
}

// An accepted reset is accepted once: the next start needs no flag.
func TestResetIsAcceptedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	gone := w.create(w.app("gone"))
	stays := w.create(w.app("stays"))
	w.waitFor(0, "created gone", "created stays")
	must[any](t)(nil, w.Client.Delete(t.Context(), gone))
	w.waitFor(0, "created gone", "created stays", "deleted gone")
	must[any](t)(nil, r.stop())
	// As if all of it had been published at versions that are now ahead.
	for _, entry := range w.entries() {
		h := entry.Header
		h.Del(subjects.HeaderExpectedLastSequence)
		h.Set(subjects.HeaderResourceVersion, "99999999998")
		if h.Get(subjects.HeaderDeletedResourceVersion) != "" {
			h.Set(subjects.HeaderDeletedResourceVersion, "99999999999")
		}
		must[*jetstream.PubAck](t)(w.js.PublishMsg(t.Context(), &nats.Msg{Subject: entry.Subject, Header: h, Data: entry.Data}))
	}
	must[any](t)(nil, w.Client.Delete(t.Context(), stays))
	if err := w.launch(cfg, nil).ended(); err == nil || !strings.Contains(err.Error(), "--accept-reset") {
		t.Fatalf("got %v", err)
	}
	cfg.AcceptReset = true
	must[any](t)(nil, w.start(cfg).stop())
	w.waitFor(3, "deleted stays")
	cfg.AcceptReset = false
	must[any](t)(nil, w.start(cfg).stop())
	w.waitFor(3, "deleted stays")
}

// Rights are checked before anything depends on them.
func TestRights(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	grant := func(user string, rules ...rbacv1.PolicyRule) *rest.Config {
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"get"}})
		meta := metav1.ObjectMeta{Name: w.namespace + "-" + user}
		must[any](t)(nil, w.Client.Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}))
		must[any](t)(nil, w.Client.Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: meta,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
		}))
		return must[*rest.Config](t)(w.User(user))
	}
	serving := func(verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{"serving.knative.dev"}, Resources: []string{"services", "revisions"}, Verbs: verbs}
	}
	t.Run("all that is needed", func(t *testing.T) {
		r := w.launch(w.config(), grant("enough", serving("list", "watch")))
		r.waitReady()
		must[any](t)(nil, r.stop())
	})
	t.Run("no watch", func(t *testing.T) {
		err := w.launch(w.config(), grant("lister", serving("list"))).ended()
		if err == nil || !strings.Contains(err.Error(), "watch on services.serving.knative.dev in namespace "+w.namespace) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no Lease", func(t *testing.T) {
		cfg := w.config()
		cfg.LeaderElect, cfg.LeaseNamespace, cfg.LeaseName, cfg.Identity = true, w.namespace, "appbridge", "me"
		err := w.launch(cfg, grant("leaseless", serving("list", "watch"))).ended()
		if err == nil || !strings.Contains(err.Error(), " on leases.coordination.k8s.io in namespace "+w.namespace) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("replicas of a single server", func(t *testing.T) {
		cfg := w.config()
		cfg.StreamReplicas = 3
		cfg.Stream, cfg.Bucket, cfg.Prefix = "R3", "r3", "r3"
		err := w.launch(cfg, nil).ended()
		if err == nil || !strings.Contains(err.Error(), `stream-replicas "3"`) {
			t.Errorf("got %v", err)
		}
	})
}

// Entries of several apps purged from the bucket are written anew, without an
// event, and the apps go on.
func TestEntriesPurged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	var services []*servingv1.Service
	for _, name := range []string{"a", "b", "c"} {
		services = append(services, w.create(w.app(name)))
		must[*servingv1.Service](t)(w.Progressing(t.Context(), services[len(services)-1]))
	}
	w.waitFor(0, "created a", "updated a", "created b", "updated b", "created c", "updated c")
	must[any](t)(nil, r.stop())
	kv := must[jetstream.Stream](t)(w.js.Stream(t.Context(), subjects.BucketStream(cfg.Bucket)))
	for _, name := range []string{"a", "b"} {
		subject := subjects.BucketSubject(cfg.Bucket, "vision.development."+name)
		must[any](t)(nil, kv.Purge(t.Context(), jetstream.WithPurgeSubject(subject)))
	}
	r = w.start(cfg)
	eventually(t, "bucket equals cluster", func() error { return w.bucketDrift(cfg.App, w.events(0)) })
	if got := w.lastSequence(); got != 6 {
		t.Errorf("%v were published for entries that were lost", w.events(6))
	}
	for _, svc := range services {
		must[*servingv1.Service](t)(w.Failed(t.Context(), svc, "Broken", "it is"))
	}
	w.waitFor(6, "updated a", "updated b", "updated c")
	if got := r.metric("appbridge_resyncs_total"); got > 3 {
		t.Errorf("%v resyncs", got)
	}
}

// An event that another writer appends after the comparison, with the right
// fence, does not stay.
func TestLateEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	w.start(cfg)
	w.create(w.app("one"))
	created := w.waitFor(0, "created one")[0]
	late := &nats.Msg{Subject: strings.Replace(created.msg.Subject, ".created", ".deleted", 1), Data: []byte(`{"deleteEvent":{"app":{}}}`), Header: nats.Header{}}
	for name, values := range created.msg.Header {
		if strings.HasPrefix(name, "Flyte-") || strings.HasPrefix(name, "ce-") {
			late.Header[name] = values
		}
	}
	late.Header.Set(subjects.CEType, subjects.Deleted.Type())
	must[*jetstream.PubAck](t)(w.js.PublishMsg(t.Context(), late, jetstream.WithExpectLastSequenceForSubject(1, "flyte.apps.events.vision.development.one.*")))
	w.waitFor(0, "created one", "deleted one", "created one")
	eventually(t, "bucket equals cluster", func() error { return w.bucketDrift(cfg.App, w.events(0)) })
}

// A start with far more to publish than may wait live does not overflow.
func TestSmallBudgetAtStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	cfg.PendingBytes = 1 << 10
	var want []string
	for i := range 60 {
		name := fmt.Sprintf("app-%02d", i)
		w.create(w.app(name))
		want = append(want, "created "+name)
	}
	r := w.start(cfg)
	w.waitFor(0, want...)
	if got := r.metric("appbridge_resyncs_total"); got != 1 {
		t.Errorf("%v resyncs, want 1", got)
	}
}

// A bucket that is another stream's is refused, before anything is made.
func TestBucketOfAnotherStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	w.create(w.app("one"))
	w.waitFor(0, "created one")
	must[any](t)(nil, r.stop())
	cfg.Stream, cfg.Prefix = "S2", "p2"
	if err := w.launch(cfg, nil).ended(); err == nil || !strings.Contains(err.Error(), "the snapshot of stream FLYTE_APPS, not of S2") {
		t.Errorf("got %v", err)
	}
	if _, err := w.js.Stream(t.Context(), "S2"); err == nil {
		t.Error("the refused start made a stream")
	}
}
