package pods_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/logsvc/pods"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/network"
)

func TestKubernetesChoice(t *testing.T) {
	p := newPlace(t)
	k := p.kubernetes()
	// No other test may have these: all namespaces are looked at.
	domain := p.namespace
	first := p.create(testenv.App{Project: "shop", Domain: domain, Name: "checkout"})
	other := p.create(testenv.App{Project: "shop", Domain: domain, Name: "other"})
	pod, foreign := first.run("00001"), other.run("00001")
	second := first.run("00002", func(o *testenv.PodOptions) { o.Containers = []string{"queue-proxy", "app", "side"} })
	for i, pod := range []*testenv.Pod{pod, second, foreign} {
		pod.Write(fmt.Sprintf("app-%d", i))
		pod.WriteTo("queue-proxy", fmt.Sprintf("proxy-%d", i))
	}
	second.WriteTo("side", "side")
	odd := p.create(testenv.App{Project: "Shop", Domain: domain, Name: "odd", ObjectName: "another-name"})
	oddPod := odd.run("00001")
	oddPod.Write("odd")
	bare := p.create(testenv.App{
		Project: "shop", Domain: domain, Name: "bare", ObjectName: "no-labels",
		Labels: map[string]string{kservice.LabelProject: "", kservice.LabelDomain: ""},
	})
	barePod := bare.run("00001")
	barePod.Write("bare")

	tests := []struct {
		name string
		q    logsvc.Query
		want map[*testenv.Pod][]string
	}{
		{"all replicas of all revisions", logsvc.Query{App: first.id, Tail: -1}, map[*testenv.Pod][]string{pod: {"app-0"}, second: {"app-1"}}},
		{"one replica", logsvc.Query{App: first.id, Tail: -1, Replica: second.Name()}, map[*testenv.Pod][]string{second: {"app-1"}}},
		{"a container", logsvc.Query{App: first.id, Tail: -1, Container: "queue-proxy"}, map[*testenv.Pod][]string{pod: {"proxy-0"}, second: {"proxy-1"}}},
		{"a container that not all have", logsvc.Query{App: first.id, Tail: -1, Container: "side"}, map[*testenv.Pod][]string{second: {"side"}}},
		{"another name", logsvc.Query{App: odd.id, Tail: -1}, map[*testenv.Pod][]string{oddPod: {"odd"}}},
		{"without labels for project and domain", logsvc.Query{App: bare.id, Tail: -1}, map[*testenv.Pod][]string{barePod: {"bare"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.q.Follow = logsvc.FollowNever
			r := read(t, k, tt.q)
			r.end()
			r.noNotes(t)
			var names []string
			for pod, want := range tt.want {
				names = append(names, pod.Name())
				if got := r.of(pod); !slices.Equal(got, want) {
					t.Errorf("%s: got %q, want %q", pod.Name(), got, want)
				}
			}
			slices.Sort(names)
			if got := r.stream.Replicas(); !slices.Equal(got, names) || len(r.lines) != len(names) {
				t.Errorf("replicas: got %q and lines of %d, want %q", got, len(r.lines), names)
			}
			if r.live > 0 {
				t.Errorf("%d lines came live", r.live)
			}
		})
	}

	lower := subjects.AppID{Project: "shop", Domain: domain, Name: "CheckOut"}
	illegal := subjects.AppID{Project: "sh_op", Domain: "pro/duction", Name: "über,app=x"}
	refusals := []struct {
		name string
		q    logsvc.Query
		code subjects.Code
		text string
	}{
		{"no such app", logsvc.Query{App: subjects.AppID{Project: "shop", Domain: "staging", Name: "checkout"}}, subjects.CodeNotFound, "app: no app shop/staging/checkout"},
		{"another app of that name", logsvc.Query{App: lower}, subjects.CodeNotFound, "app: no app " + lower.String()},
		{"not a name", logsvc.Query{App: illegal}, subjects.CodeNotFound, "app: no app " + illegal.String()},
		{"replica of another app", logsvc.Query{App: first.id, Replica: foreign.Name()}, subjects.CodeNotFound, fmt.Sprintf("replica %q: not a replica of app %s", foreign.Name(), first.id)},
		{"no such replica", logsvc.Query{App: first.id, Replica: "nobody"}, subjects.CodeNotFound, `replica "nobody": not a replica of app ` + first.id.String()},
		{"no such container", logsvc.Query{App: first.id, Replica: pod.Name(), Container: "side"}, subjects.CodeNotFound, fmt.Sprintf(`container "side": replica %s has containers queue-proxy, app`, pod.Name())},
		{"not restarted", logsvc.Query{App: first.id, Replica: pod.Name(), Previous: true}, subjects.CodeFailedPrecondition, fmt.Sprintf("previous: container app of replica %s has not restarted", pod.Name())},
	}
	for _, namespaces := range [][]string{{p.namespace}, nil} {
		k := p.kubernetes(func(c *pods.Config) { c.Namespaces = namespaces })
		for _, tt := range refusals {
			t.Run(fmt.Sprint(tt.name, " in ", namespaces), func(t *testing.T) {
				_, err := k.Open(t.Context(), tt.q)
				refused(t, err, tt.code, tt.text)
			})
		}
	}
}

func TestKubernetesTailAndSince(t *testing.T) {
	p := newPlace(t)
	k := p.kubernetes()
	a := p.newApp("tails")
	pod := a.run("00001")
	hour := time.Now().Add(-time.Hour).Truncate(time.Second)
	for i, line := range numbers(0, 10) {
		pod.WriteAt(hour.Add(time.Duration(i)*100*time.Millisecond), line)
	}
	pod.Write(numbers(10, 20)...)
	for name, tt := range map[string]struct {
		q    logsvc.Query
		want []string
	}{
		"all":            {logsvc.Query{Tail: -1}, numbers(0, 20)},
		"tail":           {logsvc.Query{Tail: 3}, numbers(17, 20)},
		"none":           {logsvc.Query{Tail: 0}, nil},
		"since":          {logsvc.Query{Tail: -1, Since: hour.Add(450 * time.Millisecond)}, numbers(5, 20)},
		"tail and since": {logsvc.Query{Tail: 15, Since: hour.Add(time.Minute)}, numbers(10, 20)},
	} {
		t.Run(name, func(t *testing.T) {
			tt.q.App, tt.q.Follow = a.id, logsvc.FollowNever
			r := read(t, k, tt.q)
			r.end()
			r.noNotes(t)
			if got := r.of(pod); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	t.Run("none and follow", func(t *testing.T) {
		r := read(t, k, logsvc.Query{App: a.id, Tail: 0})
		soon(t, "it follows", following(pod))
		pod.Write("20")
		r.wait(pod, "20")
		pod.EOF()
		pod.Write("21")
		r.wait(pod, "20", "21")
	})
}

// following waits for a follow of the pod's log.
func following(pod *testenv.Pod) func() error {
	return func() error {
		requests := pod.Requests()
		opened := func(request string) bool { return strings.Contains(request, "follow=true") }
		if !slices.ContainsFunc(requests, opened) || pod.Followers() == 0 {
			return fmt.Errorf("requests are %q", requests)
		}
		return nil
	}
}

func TestKubernetesPrevious(t *testing.T) {
	p := newPlace(t)
	k := p.kubernetes()
	a := p.newApp("previous")
	pod, sibling := a.run("00001"), a.run("00001")
	sibling.Write("sibling")
	pod.Write("old")
	if err := pod.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	pod.Write("new")
	r := read(t, k, logsvc.Query{App: a.id, Tail: -1, Previous: true})
	r.end()
	r.noNotes(t)
	if got := r.of(pod); !slices.Equal(got, []string{"old"}) || len(r.lines) != 1 {
		t.Errorf("got %q, want the old log alone", r.lines)
	}
}

func TestKubernetesLimit(t *testing.T) {
	p := newPlace(t)
	k := p.kubernetes(func(c *pods.Config) { c.MaxPodStreams = 2 })
	a, b := p.newApp("one"), p.newApp("two")
	pod := a.run("00001")
	b.run("00001")
	b.run("00001")
	q := all(a)
	q.Follow = logsvc.FollowAlways
	r := read(t, k, q)
	part, err := k.Open(t.Context(), all(b))
	if err != nil || len(part.Replicas()) != 1 {
		t.Fatalf("got %v, %v, want one replica", part.Replicas(), err)
	}
	_, err = k.Open(t.Context(), all(b))
	refused(t, err, subjects.CodeResourceExhausted, "max-pod-streams: 2 of 2 Kubernetes log streams are taken, try again later")
	part.Close()
	if active, most := k.PodStreams(); active != 1 || most != 2 {
		t.Errorf("got %d of %d, want 1 of 2", active, most)
	}
	// The third replica waits until there is room.
	more := a.run("00002")
	more.Write("more")
	r.wait(more, "more")
	last := a.run("00003")
	last.Write("last")
	soon(t, "the last replica waits", func() error { return r.noted("replica " + last.Name() + " is not read yet: max-pod-streams: 2 of 2") })
	if err := pod.Finish(t.Context(), "Succeeded"); err != nil {
		t.Fatal(err)
	}
	r.wait(last, "last")
	r.cancel()
	if err := r.ended(); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want it canceled", err)
	}
}

func TestKubernetesRights(t *testing.T) {
	p := newPlace(t)
	p.newApp("secret").run("00001")
	user, err := p.User("nobody-" + p.namespace)
	if err != nil {
		t.Fatal(err)
	}
	k := p.kubernetes(func(c *pods.Config) { c.REST = user })
	q := logsvc.Query{App: subjects.AppID{Project: "shop", Domain: "production", Name: "secret"}, Tail: -1}
	_, err = k.Open(t.Context(), q)
	refused(t, err, subjects.CodeInternal, "kubernetes: the log service lacks the right list on services.serving.knative.dev in namespace "+p.namespace)

	// All but the logs themselves, which shows when they are read.
	meta := metav1.ObjectMeta{Namespace: p.namespace, Name: "reader"}
	read := []string{"get", "list", "watch"}
	for _, object := range []client.Object{
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
			{Verbs: read, APIGroups: []string{""}, Resources: []string{"pods"}},
			{Verbs: read, APIGroups: []string{"serving.knative.dev"}, Resources: []string{"services"}},
		}},
		&rbacv1.RoleBinding{
			ObjectMeta: meta,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "nobody-" + p.namespace}},
		},
	} {
		check(t, p.Client.Create(t.Context(), object))
	}
	var stream logsvc.LogStream
	soon(t, "the role counts", func() error {
		stream, err = k.Open(t.Context(), q)
		return err
	})
	defer stream.Close()
	refused(t, stream.Run(t.Context(), &heard{}), subjects.CodeInternal,
		"kubernetes: the log service lacks the right get on pods/log in namespace "+p.namespace)
}

// TestKubernetesPending: a replica that has not started can be waited for, and
// is told of when there is nothing to wait for.
func TestKubernetesPending(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	k := p.kubernetes()
	a := p.newApp("pending")
	pod := a.run("00001", func(o *testenv.PodOptions) { o.Waiting = true })
	q := all(a)
	q.Follow = logsvc.FollowNever
	r := read(t, k, q)
	r.end()
	check(t, r.noted(pod.Name()+" replica: container app has not started (ContainerCreating)"))
	q.Follow, q.Tail, q.Since = logsvc.FollowRunning, 1, time.Now().Add(time.Hour)
	r = read(t, k, q)
	check(t, pod.Recover(t.Context()))
	pod.Write("one", "two")
	r.wait(pod, "one", "two") // all of it is new
	check(t, pod.Terminate(t.Context()))
	pod.Write("three")
	r.wait(pod, "one", "two", "three")
	check(t, pod.Delete(t.Context()))
	r.end()
	r.noNotes(t)
}

func TestKubernetesUnreachable(t *testing.T) {
	address, err := network.FreeAddress("")
	if err != nil {
		t.Fatal(err)
	}
	p := &place{t: t, Cluster: &testenv.Cluster{Config: &rest.Config{Host: "https://user:secret@" + address}}}
	_, err = p.kubernetes().Open(t.Context(), logsvc.Query{App: subjects.AppID{Project: "a", Domain: "b", Name: "c"}})
	var refusal *request.Error
	if !errors.As(err, &refusal) || refusal.Code != subjects.CodeUnavailable || strings.Contains(refusal.Text, "secret") || !strings.Contains(refusal.Text, "refused") {
		t.Errorf("got %v, want 502 and the reason without the address's password", err)
	}
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	_, err = p.kubernetes().Open(ctx, logsvc.Query{App: subjects.AppID{Project: "a", Domain: "b", Name: "c"}})
	refused(t, err, subjects.CodeDeadlineExceeded, "kubernetes did not answer in time")
}

// TestKubernetesLookup: of what the informers show, the log is that of the Knative Service which is
// published, and nothing is searched for in addition.
func TestKubernetesLookup(t *testing.T) {
	p := newPlace(t)
	domain := p.namespace
	claims := p.create(testenv.App{Project: "shop", Domain: domain, Name: "twice", ObjectName: "a-copy"})
	published := p.create(testenv.App{
		Project: "shop", Domain: domain, Name: "twice", ObjectName: "published",
		Labels: map[string]string{kservice.LabelProject: "", kservice.LabelDomain: ""},
	})
	claims.run("00001").Write("copy")
	pod := published.run("00001")
	pod.Write("published")
	shown := &kservice.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: p.namespace, Name: published.service,
		Annotations: map[string]string{kservice.AnnotationAppID: published.id.String()},
	}}
	var synced atomic.Bool
	k := p.kubernetes(func(c *pods.Config) {
		c.Lookup = func(id subjects.AppID) (*kservice.Service, bool) {
			if id == published.id {
				return shown, synced.Load()
			}
			return nil, synced.Load()
		}
	})
	r := read(t, k, logsvc.Query{App: published.id, Tail: -1, Follow: logsvc.FollowNever})
	r.end()
	if got, want := r.stream.Replicas(), []string{pod.Name()}; !slices.Equal(got, want) {
		t.Errorf("got replicas %q, want %q", got, want)
	}

	// What the informers have not shown yet is searched for; what they do not have is not.
	odd := p.create(testenv.App{Project: "shop", Domain: domain, Name: "odd", ObjectName: "odd-name"})
	odd.run("00001")
	if stream, err := k.Open(t.Context(), all(odd)); err != nil {
		t.Errorf("before the informers are in sync: %v", err)
	} else {
		stream.Close()
	}
	synced.Store(true)
	if _, err := k.Open(t.Context(), all(odd)); err == nil || !strings.Contains(err.Error(), "no app "+odd.id.String()) {
		t.Errorf("not among all that the informers show: got %v", err)
	}
	// What they still show and is gone is not the app.
	gone := testenv.App{Project: "shop", Domain: domain, Name: "twice", Namespace: p.namespace, ObjectName: published.service}.Service()
	if err := p.Client.Delete(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Open(t.Context(), all(published)); err == nil || !strings.Contains(err.Error(), "no app "+published.id.String()) {
		t.Errorf("the one that they show is gone: got %v", err)
	}
}

// Of more replicas than there are slots, those of the newest Revision are read, ready ones first. Pods
// without a log take no slot. One note names each group of the others.
func TestKubernetesMoreReplicasThanSlots(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	k := p.kubernetes(func(c *pods.Config) { c.MaxPodStreams = 3 })
	a := p.newApp("many")
	var old, fresh, evicted []*testenv.Pod
	generation := func(n string) func(*testenv.PodOptions) {
		return func(o *testenv.PodOptions) { o.Labels = map[string]string{kservice.LabelGeneration: n} }
	}
	for range 3 {
		old = append(old, a.run("00001", generation("1")))
		evicted = append(evicted, a.run("00001", generation("1"), func(o *testenv.PodOptions) { o.Waiting = true }))
	}
	for range 2 {
		fresh = append(fresh, a.run("00002", generation("2")))
	}
	for i := range old {
		old[i].Write("old")
		if err := evicted[i].Finish(t.Context(), corev1.PodFailed); err != nil {
			t.Fatal(err)
		}
	}
	for _, pod := range fresh {
		pod.Write("fresh")
	}
	q := all(a)
	q.Follow = logsvc.FollowNever
	r := read(t, k, q)
	r.end()
	for _, pod := range fresh {
		if got := r.of(pod); !slices.Equal(got, []string{"fresh"}) {
			t.Errorf("%s: got %q", pod.Name(), got)
		}
	}
	if len(r.lines) != 3 {
		t.Errorf("got lines of %d replicas, want 3", len(r.lines))
	}
	check(t, r.noted("not read: no Kubernetes log stream is free for it (max-pod-streams)"))
	check(t, r.noted("container app has not started"))
	if len(r.notes) != 2 {
		t.Errorf("got notes %q, want two", r.notes)
	}
	if active, _ := k.PodStreams(); active != 0 {
		t.Errorf("%d slots are taken", active)
	}
}
