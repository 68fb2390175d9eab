package e2e_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/subjects"
)

// elected is a configuration with leader election under a name.
func (w *world) elected(identity string) bridge.Config {
	cfg := w.config()
	cfg.LeaderElect, cfg.LeaseNamespace, cfg.LeaseName, cfg.Identity = true, w.namespace, "appbridge", identity
	return cfg
}

// handLease makes somebody the holder of the Lease, as of now.
func (w *world) handLease(identity string) {
	w.t.Helper()
	must[any](w.t)(nil, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		lease := &coordinationv1.Lease{}
		if err := w.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "appbridge"}, lease); err != nil {
			return err
		}
		now := metav1.NewMicroTime(time.Now())
		lease.Spec.HolderIdentity, lease.Spec.RenewTime, lease.Spec.AcquireTime = &identity, &now, &now
		return w.Client.Update(w.t.Context(), lease)
	}))
}

// electedPair starts two bridges, of which the first leads and has published
// an app; it reaches NATS through the gate.
func (w *world) electedPair(g *gate) (first, second *running, svc *servingv1.Service) {
	w.t.Helper()
	first = w.startAt(g, w.elected("first"))
	second = w.start(w.elected("second"))
	svc = w.create(w.app("one"))
	w.converged(w.waitFor(0, "created one"))
	return first, second, svc
}

// The last append of a leader that is deposed lands before its successor
// looks, after it has compared, or not at all: it is in the stream once, in
// order, and the successor brings it to the bucket.
func TestDeposedLeader(t *testing.T) {
	t.Parallel()
	t.Run("lands before the next one leads", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		gate := w.natsGate()
		first, second, svc := w.electedPair(gate)

		gate.deafen() // the first learns nothing any more, not even its own event
		svc = must[*servingv1.Service](t)(w.Progressing(t.Context(), svc))
		w.waitFor(0, "created one", "updated one")
		if got := w.entries()[w.app("one").ID()].Header.Get(subjects.HeaderEventSequence); got != "1" {
			t.Fatalf("the bucket is at sequence %s: this test tests nothing", got)
		}
		first.kill(gate)
		w.converged(w.events(0))
		if got := second.metric("appbridge_leader"); got != 1 {
			t.Error("the bucket was written by somebody who does not lead")
		}
		second.waitReady() // it has compared
		must[*servingv1.Service](t)(w.Failed(t.Context(), svc, "Broken", "it is"))
		events := w.waitFor(0, "created one", "updated one", "updated one")
		allSynthesized(t, events, false)
		w.checkHeaders(events)
		w.converged(events)
	})
	t.Run("lands after the next one compared", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		firstGate, secondGate := w.natsGate(), w.natsGate()
		first := w.startAt(firstGate, w.elected("first"))
		second := w.startAt(secondGate, w.elected("second"))
		svc := w.create(w.app("one"))
		w.converged(w.waitFor(0, "created one"))

		const append = "PUB flyte.apps.events."
		sent := firstGate.holdAt(append)
		svc = must[*servingv1.Service](t)(w.Progressing(t.Context(), svc))
		reached(t, "the first appends", sent)
		compared := secondGate.holdAt(append)
		w.handLease("second")
		reached(t, "the second appends what it found by comparing", compared)
		firstGate.deafen()
		firstGate.release()
		landed := w.waitFor(0, "created one", "updated one")
		secondGate.release() // soon: the second gives an append up after 5 s
		second.waitReady()
		first.kill(firstGate)
		w.converged(w.events(0))

		must[*servingv1.Service](t)(w.Failed(t.Context(), svc, "Broken", "it is"))
		events := w.waitFor(0, "created one", "updated one", "updated one")
		if landed[1].header(subjects.HeaderSynthesized) != "" {
			t.Error("the event is not the first's: this test tests nothing")
		}
		if second.metric("appbridge_fence_conflicts_total") == 0 {
			t.Error("the second never met the first's event: this test tests nothing")
		}
		w.checkHeaders(events)
		w.converged(events)
	})
	t.Run("comes too late", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		gate := w.natsGate()
		first, second, svc := w.electedPair(gate)

		sent := gate.holdAt("PUB flyte.apps.events.")
		svc = must[*servingv1.Service](t)(w.Progressing(t.Context(), svc))
		reached(t, "the first appends", sent)
		w.handLease("second")
		w.waitFor(0, "created one", "updated one")
		must[*servingv1.Service](t)(w.Failed(t.Context(), svc, "Broken", "it is"))
		before := w.waitFor(0, "created one", "updated one", "updated one")
		allSynthesized(t, before[1:2], true) // found by the second
		allSynthesized(t, before[2:], false)
		gate.release()
		eventually(t, "the stream refuses the late append", func() error {
			// On a busy machine it has given the append up before, and stands by.
			stands := first.logs.FilterMessage("another replica publishes; this one stands by").Len() + first.logs.FilterMessage("lost the Lease").Len()
			if first.metric("appbridge_fence_conflicts_total") == 0 && stands == 0 {
				return errNotYet
			}
			return nil
		})
		must[any](t)(nil, w.Client.Delete(t.Context(), svc))
		events := w.waitFor(0, "created one", "updated one", "updated one", "deleted one")
		w.checkHeaders(events)
		w.converged(events)
		second.waitReady()
	})
}

// otherUID has a bridge see another cluster: the same answers, but for the uid
// of kube-system.
type otherUID struct {
	http.RoundTripper
	real, other string
}

func (o otherUID) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := o.RoundTripper.RoundTrip(r)
	if err != nil || !strings.HasSuffix(r.URL.Path, "/namespaces/kube-system") {
		return response, err
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if err := response.Body.Close(); err != nil {
		return nil, err
	}
	response.Body = io.NopCloser(bytes.NewReader(bytes.ReplaceAll(body, []byte(o.real), []byte(o.other))))
	return response, nil
}

// Another cluster's bridge on the same stream or bucket ends with an error
// that names both clusters, and changes nothing there.
func TestOtherCluster(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	system := &corev1.Namespace{}
	must[any](t)(nil, w.Client.Get(t.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, system))
	here := string(system.UID)
	there := strings.Repeat("0", len(here)-4) + "beef"
	kube := rest.CopyConfig(w.Config)
	kube.QPS = -1
	kube.Wrap(func(rt http.RoundTripper) http.RoundTripper { return otherUID{rt, here, there} })

	cfg := w.config()
	cfg.ClusterName = "production"
	r := w.start(cfg)
	svc := w.create(w.app("one"))
	gone := w.create(w.app("two"))
	w.waitFor(0, "created one", "created two")
	must[any](t)(nil, w.Client.Delete(t.Context(), gone))
	w.converged(w.waitFor(0, "created one", "created two", "deleted two"))

	names := []string{cfg.Stream, subjects.BucketStream(cfg.Bucket)}
	look := func() []any {
		var all []any
		for _, name := range names {
			info := must[*jetstream.StreamInfo](t)(must[jetstream.Stream](t)(w.js.Stream(t.Context(), name)).Info(t.Context()))
			info.State.Consumers = 0 // readers are welcome
			all = append(all, info.Config, info.State)
		}
		return all
	}
	before := look()
	other := cfg
	other.Namespaces = []string{"default"} // nothing there: all apps would be gone
	for name, as := range map[string]string{"another name": "staging", "the same name": "production"} {
		t.Run(name, func(t *testing.T) {
			other.ClusterName = as
			err := w.launch(other, kube).ended()
			says(t, err, `cluster "production" (uid `+here+")", `this is "`+as+`" (uid `+there+")", "--accept-reset")
			if after := look(); !reflect.DeepEqual(before, after) {
				t.Errorf("it changed\n%+v\nto\n%+v", before, after)
			}
		})
	}
	t.Run("accept-reset is for the same name", func(t *testing.T) {
		other.ClusterName, other.AcceptReset = "staging", true
		says(t, w.launch(other, kube).ended(), `cluster "production" (uid `+here+")", `this is "staging" (uid `+there+")", "--cluster-name production")
		if after := look(); !reflect.DeepEqual(before, after) {
			t.Errorf("it changed\n%+v\nto\n%+v", before, after)
		}
	})
	must[*servingv1.Service](t)(w.Progressing(t.Context(), svc))
	events := w.waitFor(0, "created one", "created two", "deleted two", "updated one")
	w.converged(events)
	must[any](t)(nil, r.stop())

	t.Run("the bucket alone", func(t *testing.T) {
		// Its stream is away, and nothing is made in its place.
		must[any](t)(nil, w.js.DeleteStream(context.WithoutCancel(t.Context()), cfg.Stream))
		names = names[1:]
		before = look()
		other.ClusterName, other.AcceptReset = "staging", false
		says(t, w.launch(other, kube).ended(), "bucket", `cluster "production" (uid `+here+")", `this is "staging" (uid `+there+")")
		if after := look(); !reflect.DeepEqual(before, after) {
			t.Errorf("it changed\n%+v\nto\n%+v", before, after)
		}
		if stream, err := w.js.Stream(t.Context(), cfg.Stream); err == nil {
			t.Errorf("the refused start made a stream: %+v", stream.CachedInfo().Config)
		}
	})
}
