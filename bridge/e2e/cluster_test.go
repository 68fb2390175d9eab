package e2e_test

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/network"
)

// What happens to a cluster as a whole. It is one of its own, so that no other
// test is disturbed.
func TestClusterHistory(t *testing.T) {
	t.Parallel()
	own := must[*testenv.Cluster](t)(testenv.Start(t.Context(), testenv.Options{}))
	t.Cleanup(func() {
		if err := own.Stop(); err != nil {
			t.Error(err)
		}
	})
	on := func(t *testing.T) *world {
		t.Helper()
		w := newWorld(t)
		w.Cluster = own
		must[any](t)(nil, own.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}))
		return w
	}
	t.Run("compacted while the API server was away", func(t *testing.T) { compacted(on(t)) })
	t.Run("restored from a backup", func(t *testing.T) { restored(on(t)) })
	t.Run("without its last writes", func(t *testing.T) { rewound(on(t), false) })
	t.Run("without its last writes, seen late", func(t *testing.T) { rewound(on(t), true) })
	t.Run("another at the same address", func(t *testing.T) {
		w := newWorld(t)
		must[any](t)(nil, own.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}))
		otherAtTheSameAddress(w, own)
	})
}

// The API server comes back without a memory of what happened: the watch is
// refused, and the list that follows shows the net difference.
func compacted(w *world) {
	t, ctx := w.t, w.t.Context()
	service := must[*servingv1.Service](t)
	server := must[*url.URL](t)(url.Parse(w.Config.Host))
	proxy := must[*network.Proxy](t)(network.NewProxy(server.Host))
	defer func() {
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
	}()
	kube := rest.CopyConfig(w.Config)
	kube.Host, kube.QPS = "https://"+proxy.Addr(), -1

	w.create(w.app("stays"))
	changed, gone, again := w.create(w.app("changed")), w.create(w.app("gone")), w.create(w.app("again"))
	unlabelled, scaled := w.create(w.app("unlabelled")), w.create(w.app("scaled"))
	scaled = service(w.Ready(ctx, scaled, "", 1))
	r := w.launch(w.config(), kube)
	r.waitReady()
	w.converged(w.events(0))
	before := w.lastSequence()
	if before != 6 {
		t.Fatalf("the first start published %v", w.events(0))
	}

	must[any](t)(nil, proxy.Cut())
	service(w.Progressing(ctx, changed))
	service(w.Failed(ctx, changed, "Broken", "twice changed is once told"))
	must[any](t)(nil, w.Client.Delete(ctx, gone))
	must[any](t)(nil, w.Client.Delete(ctx, again))
	again = w.create(w.app("again"))
	service(w.SetLabel(ctx, unlabelled, "flyte.org/app-managed", ""))
	must[*servingv1.Revision](t)(w.Scale(ctx, scaled, 4))
	must[any](t)(nil, w.Client.Delete(ctx, w.create(w.app("came-and-went"))))
	w.create(w.app("born"))
	must[any](t)(nil, w.Compact(ctx, nil))
	must[any](t)(nil, w.RestartAPIServer(ctx))
	must[any](t)(nil, proxy.Heal())

	events := w.waitFor(before, "updated changed", "deleted gone", "deleted again", "created again",
		"deleted unlabelled", "updated scaled", "created born")
	allSynthesized(t, events, true)
	for _, e := range events {
		if got, want := e.header(subjects.HeaderFinalStateUnknown) != "", e.kind == subjects.Deleted; got != want {
			t.Errorf("%s %s: final state unknown is %v", e.kind, e.id, got)
		}
		switch {
		case e.id.Name == "scaled" && e.app().GetStatus().GetCurrentReplicas() != 4:
			t.Errorf("scaled has %d replicas, want 4", e.app().GetStatus().GetCurrentReplicas())
		case e.id.Name == "again" && e.kind == subjects.Created && e.header(subjects.HeaderUID) != string(again.UID):
			t.Errorf("again came back as %s, want %s", e.header(subjects.HeaderUID), again.UID)
		}
	}
	service(w.Progressing(ctx, changed))
	events = w.waitFor(before, "updated changed", "deleted gone", "deleted again", "created again",
		"deleted unlabelled", "updated scaled", "created born", "updated changed")
	allSynthesized(t, events[7:], false)
	all := w.events(0)
	w.checkHeaders(all)
	w.converged(all)
	must[any](t)(nil, r.stop())
	must[any](t)(nil, w.start(w.config()).stop())
	if n := w.lastSequence(); n != 14 {
		t.Errorf("a restart published %v", w.events(14))
	}
}

// etcd restored to an older state, with a bridge running and with one that is
// started again: both end, say why and what to do, and publish nothing of it.
// Told to accept it, the bridge goes on from what the cluster is now.
func restored(w *world) {
	t, ctx := w.t, w.t.Context()
	service := must[*servingv1.Service](t)
	w.create(w.app("kept"))
	changed, gone := w.create(w.app("changed")), w.create(w.app("gone"))
	backup := must[*testenv.EtcdCopy](t)(w.SaveEtcd(ctx))

	cfg := w.config()
	r := w.start(cfg)
	want := []string{"created kept", "created changed", "created gone"}
	w.waitFor(0, want...)
	// Far enough ahead that the restored cluster, which writes to itself, does
	// not reach the published versions while the test looks.
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}
	for i := range 500 {
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"n":"%d"}}}`, i))
		must[any](t)(nil, w.Client.Patch(ctx, space, patch))
	}
	service(w.Progressing(ctx, changed))
	must[any](t)(nil, w.Client.Delete(ctx, gone))
	w.create(w.app("late"))
	want = append(want, "updated changed", "deleted gone", "created late")
	events := w.waitFor(0, want...)
	w.converged(events)
	bucket := w.stream(subjects.BucketStream(cfg.Bucket)).CachedInfo().State

	must[any](t)(nil, w.RestoreEtcd(ctx, backup))
	refused := []string{"history is older than what was published", "etcd was restored", "--accept-reset"}
	says(t, w.launch(cfg, nil).ended(), refused...)
	select {
	case err := <-r.done:
		r.done <- err
		says(t, err, "history stepped back", "etcd was restored", "--accept-reset")
	case <-time.After(patience / 2):
		t.Errorf("the bridge that ran all the time does not notice; ready says %v", r.bridge.Ready())
		must[any](t)(nil, r.stop())
	}
	w.waitFor(0, want...)
	if now := w.stream(subjects.BucketStream(cfg.Bucket)).CachedInfo().State; now.LastSeq != bucket.LastSeq {
		t.Errorf("the bucket was written: %+v, was %+v", now, bucket)
	}

	cfg.AcceptReset = true
	r = w.start(cfg)
	if r.logs.FilterMessage("accepted that the cluster's history was reset").FilterField(zap.Uint64("publishedUpTo", 6)).Len() != 1 {
		t.Error("it does not say that it accepted the reset")
	}
	want = append(want, "updated changed", "created gone", "deleted late")
	events = w.waitFor(0, want...)
	allSynthesized(t, events[6:], true)
	w.checkHeaders(events)
	w.converged(events)
	must[any](t)(nil, r.stop())

	cfg.AcceptReset = false
	r = w.start(cfg)
	service(w.Failed(ctx, changed, "Broken", "it is"))
	events = w.waitFor(0, append(want, "updated changed")...)
	allSynthesized(t, events[9:], false)
	w.checkHeaders(events)
	w.converged(events)
	must[any](t)(nil, r.stop())
}
