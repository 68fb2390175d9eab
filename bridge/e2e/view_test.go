package e2e_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// shows waits until the cache shows exactly the given Knative Services, and each
// as it is.
func (r *running) shows(want ...*servingv1.Service) {
	r.t.Helper()
	var names []string
	for _, svc := range want {
		names = append(names, svc.Name+" "+string(svc.UID)+"@"+svc.ResourceVersion)
	}
	slices.Sort(names)
	eventually(r.t, "the cache shows "+strings.Join(names, ", "), func() error {
		if err := r.bridge.Synced(); err != nil {
			return err
		}
		var got []string
		for _, svc := range r.bridge.Services(func(*app.CachedService) bool { return true }) {
			got = append(got, svc.Name+" "+string(svc.UID)+"@"+svc.ResourceVersion)
			id := svc.ID
			if one, ok := r.bridge.App(id); !ok || one.ID != id || one.Service.Namespace != svc.Namespace {
				return fmt.Errorf("of %s alone it shows %v, %v", id, one, ok)
			}
		}
		if slices.Sort(got); !slices.Equal(got, names) {
			return fmt.Errorf("it shows %s", strings.Join(got, ", "))
		}
		return nil
	})
}

func TestViewApps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	service := must[*servingv1.Service](t)
	one := w.create(w.app("one"))
	unpublished := w.app("unpublished")
	unpublished.Annotations = map[string]string{"flyte.org/app-id": "no id"}
	w.create(unpublished)
	w.server.Shutdown() // what the cache shows needs no NATS
	cfg := w.config()
	cfg.FlushTimeout = time.Second
	r := w.launch(cfg, nil)
	if err := r.bridge.Synced(); err != nil && !strings.Contains(err.Error(), "the informers are not in sync yet") {
		t.Errorf("at the start it says %q", err)
	}
	r.shows(one)

	two := w.create(w.app("two"))
	r.shows(one, two)
	one = service(w.Progressing(ctx, one))
	r.shows(one, two)
	one = service(w.Ready(ctx, one, "", 3))
	r.shows(one, two)
	eventually(t, "the Revision's count", func() error {
		entry, _ := r.bridge.App(w.app("one").ID())
		if entry.Revision == nil || entry.Revision.Status.ActualReplicas == nil || *entry.Revision.Status.ActualReplicas != 3 {
			return fmt.Errorf("it shows %v", entry.Revision)
		}
		return nil
	})

	// Of several that claim an id the cache shows the one that is published.
	other := w.app("two")
	other.ObjectName = "another-name"
	loser := w.create(other)
	third := w.create(w.app("three")) // created later: the loser has been seen when it is
	r.shows(one, two, third)
	must[any](t)(nil, w.Client.Delete(ctx, two))
	r.shows(one, loser, third)
	must[any](t)(nil, w.Client.Delete(ctx, loser))
	must[any](t)(nil, w.Client.Delete(ctx, third))
	r.shows(one)
	if _, ok := r.bridge.App(w.app("two").ID()); ok {
		t.Error("an app is shown that is none")
	}
	t.Log("stopped without NATS:", r.stop())
	if err := r.bridge.Synced(); err == nil || !strings.Contains(err.Error(), "the bridge has ended") {
		t.Errorf("after the end it says %v", err)
	}
	if pods, err := r.bridge.Pods(w.namespace, one.Name); err == nil || !strings.Contains(err.Error(), "the bridge has ended") {
		t.Errorf("after the end the pods are %v, %v", pods, err)
	}
}

func (w *world) kubelet() *testenv.Kubelet {
	w.t.Helper()
	k := must[*testenv.Kubelet](w.t)(w.StartKubelet(w.t.Context(), w.namespace))
	w.t.Cleanup(func() {
		if err := k.Close(); err != nil {
			w.t.Error(err)
		}
	})
	return k
}

// replicas waits until the cache's pods of an app are the given replicas, each
// written as "name STATUS reason".
func (r *running) replicas(app testenv.App, want ...string) {
	r.t.Helper()
	slices.Sort(want)
	eventually(r.t, "the replicas are "+strings.Join(want, ", "), func() error {
		pods, err := r.bridge.Pods(app.Namespace, kservice.Name(app.ID()))
		if err != nil {
			return err
		}
		var got []string
		for i := range pods {
			status, reason := kservice.PodStatus(&pods[i])
			got = append(got, strings.TrimSpace(pods[i].Name+" "+status+" "+reason))
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("they are %s", strings.Join(got, ", "))
		}
		return nil
	})
}

func TestViewPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	kubelet := w.kubelet()
	run := func(app testenv.App, name string, waiting bool) *testenv.Pod {
		t.Helper()
		opts := testenv.PodOptions{Namespace: w.namespace, Name: name, Waiting: waiting}
		if app.Name != "" {
			opts.Service = kservice.Name(app.ID())
			opts.Revision = opts.Service + "-00001"
		}
		return must[*testenv.Pod](t)(kubelet.RunPod(ctx, opts))
	}
	one, two := w.app("one"), w.app("two")
	run(one, "early", false)
	run(testenv.App{}, "nobodys-early", false)
	r := w.start(w.config())
	r.replicas(one, "early ACTIVE")
	r.replicas(two)

	late := run(one, "late", true)
	r.replicas(one, "early ACTIVE", "late PENDING ContainerCreating")
	must[any](t)(nil, late.Recover(ctx))
	r.replicas(one, "early ACTIVE", "late ACTIVE")
	must[any](t)(nil, late.Crash(ctx))
	r.replicas(one, "early ACTIVE", "late DEPLOYING CrashLoopBackOff")
	must[any](t)(nil, late.Finish(ctx, corev1.PodFailed))
	r.replicas(one, "early ACTIVE", "late FAILED Error")
	must[any](t)(nil, late.Delete(ctx))
	r.replicas(one, "early ACTIVE")

	run(testenv.App{}, "nobodys-late", false)
	run(two, "of-two", false) // comes after it, so that one has been seen if it ever is
	r.replicas(two, "of-two ACTIVE")
	r.replicas(one, "early ACTIVE")
	if pods, err := r.bridge.Pods(w.namespace, ""); err != nil || len(pods) > 0 {
		t.Errorf("pods that are nobody's are held: %v, %v", pods, err)
	}
	whole := &corev1.Pod{}
	must[any](t)(nil, w.Client.Get(ctx, client.ObjectKey{Namespace: w.namespace, Name: "of-two"}, whole))
	pods := must[[]corev1.Pod](t)(r.bridge.Pods(w.namespace, kservice.Name(two.ID())))
	if got, want := pods[0].UID, whole.UID; got != want {
		t.Errorf("got uid %s, want %s", got, want)
	}
	if pods, err := r.bridge.Pods("elsewhere", "one"); err == nil || !strings.Contains(err.Error(), "namespace elsewhere are not known: it is not watched") {
		t.Errorf("the pods of a namespace that is not watched are %v, %v", pods, err)
	}
	must[any](t)(nil, r.stop())
}

// allow gives a user rights in a namespace.
func (w *world) allow(user, namespace string, rules ...rbacv1.PolicyRule) {
	w.t.Helper()
	meta := metav1.ObjectMeta{Namespace: namespace, GenerateName: user + "-"}
	role := &rbacv1.Role{ObjectMeta: meta, Rules: rules}
	must[any](w.t)(nil, w.Client.Create(w.t.Context(), role))
	must[any](w.t)(nil, w.Client.Create(w.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}))
}

func podsRule(verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: verbs}
}

// podsSay waits until the pods of an app are not known for the given reason.
func (r *running) podsSay(app testenv.App, want string) {
	r.t.Helper()
	eventually(r.t, "why the pods are not known", func() error {
		if pods, err := r.bridge.Pods(app.Namespace, kservice.Name(app.ID())); err == nil || !strings.Contains(err.Error(), want) {
			return fmt.Errorf("got %v, %w, want %q", pods, err, want)
		}
		return nil
	})
}

// Without a right on pods all but the replicas is as ever. With it they come
// without a restart.
func TestViewWithoutRights(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	second := w.namespace + "-second"
	must[any](t)(nil, w.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: second}}))
	user := w.namespace + "-podless"
	serving := rbacv1.PolicyRule{APIGroups: []string{"serving.knative.dev"}, Resources: []string{"services", "revisions"}, Verbs: []string{"list", "watch"}}
	w.allow(user, metav1.NamespaceSystem, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"get"}})
	w.allow(user, w.namespace, serving)
	w.allow(user, second, serving, podsRule("list", "watch"))
	kubelet := w.kubelet()
	here, there := w.app("here"), w.app("there")
	there.Namespace = second
	for _, app := range []testenv.App{here, there} {
		must[*testenv.Pod](t)(kubelet.RunPod(ctx, testenv.PodOptions{Namespace: app.Namespace, Name: app.Name, Service: kservice.Name(app.ID())}))
	}

	cfg := w.config()
	cfg.Namespaces = append(cfg.Namespaces, second)
	cfg.MaxDelay = time.Second
	r := w.launch(cfg, must[*rest.Config](t)(w.User(user)))
	r.waitReady()
	w.create(here)
	w.create(there)
	w.waitFor(0, "created here", "created there")
	r.podsSay(here, "the rights list and watch on pods in namespace "+w.namespace+" are missing: grant them by RBAC")
	r.replicas(there, "there ACTIVE")

	// What makes the bridge not ready does so after MaxDelay.
	over := time.After(2 * cfg.MaxDelay)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for waiting := true; waiting; {
		select {
		case <-over:
			waiting = false
		case <-tick.C:
		}
		if err := r.bridge.Ready(); err != nil && strings.Contains(err.Error(), "pods") {
			t.Fatalf("for want of pods it is not ready: %v", err)
		}
	}
	if got, want := r.metric("appbridge_kubernetes_watches"), 4.0; got != want {
		t.Errorf("%v watches are counted, want %v", got, want)
	}
	if got := r.metric("appbridge_watch_errors_total"); got != 0 {
		t.Errorf("%v failures are counted that no event depends on", got)
	}

	w.allow(user, w.namespace, podsRule("list", "watch"))
	r.replicas(here, "here ACTIVE")
	if got, want := r.logs.FilterMessage("the pods of apps are known again").Len(), 1; got != want {
		t.Errorf("it is logged %d times that they can be told, want %d", got, want)
	}
	must[any](t)(nil, r.stop())

	// The end does not wait for pods that never come.
	lister := w.namespace + "-lister"
	w.allow(lister, metav1.NamespaceSystem, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"get"}})
	w.allow(lister, w.namespace, serving, podsRule("list"))
	r = w.launch(w.config(), must[*rest.Config](t)(w.User(lister)))
	r.podsSay(here, "the right watch on pods in namespace "+w.namespace+" is missing: grant it by RBAC")
	must[any](t)(nil, r.stop())
}

// held has requests for pods wait until it is released.
type held struct {
	http.RoundTripper
	release <-chan struct{}
}

func (h held) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/pods") {
		select {
		case <-h.release:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	return h.RoundTripper.RoundTrip(r)
}

// An API server that does not come round to listing pods holds up nothing else.
func TestViewSlowPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	app := w.app("one")
	must[*testenv.Pod](t)(w.kubelet().RunPod(t.Context(), testenv.PodOptions{Namespace: w.namespace, Name: "pod", Service: kservice.Name(app.ID())}))
	release := make(chan struct{})
	kube := rest.CopyConfig(w.Config)
	kube.QPS = -1
	kube.Wrap(func(rt http.RoundTripper) http.RoundTripper { return held{rt, release} })
	r := w.launch(w.config(), kube)
	r.waitReady()
	w.create(app)
	w.waitFor(0, "created one")
	r.podsSay(app, "the pods in namespace "+w.namespace+" are not known yet")
	must[any](t)(nil, r.stop()) // with the request under way

	r = w.launch(w.config(), kube)
	r.waitReady()
	r.podsSay(app, "are not known yet")
	close(release)
	r.replicas(app, "pod ACTIVE")
	must[any](t)(nil, r.stop())
}
