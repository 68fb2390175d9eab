package pods_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// remove deletes the Knative Service of an app. Its pods stay, as they do while they drain.
func (a *app) remove() {
	t := a.place.t
	t.Helper()
	svc := &servingv1.Service{}
	if err := a.place.Client.Get(t.Context(), types.NamespacedName{Namespace: a.place.namespace, Name: a.service}, svc); err != nil {
		t.Fatal(err)
	}
	if err := a.place.Client.Delete(t.Context(), svc); err != nil {
		t.Fatal(err)
	}
}

// TestKubernetesFoldedNames: two apps whose names fold to one follow each other. Nothing of the
// pods of one reaches a reader of the other.
func TestKubernetesFoldedNames(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	k := p.kubernetes()
	first := p.create(testenv.App{Project: "c", Domain: "dev", Name: "a-b"})
	draining := first.run("00007")
	draining.Write("password of c")
	check(t, draining.Restart(t.Context())) // so that it has a previous log, too
	draining.Write("password of c")
	earlier := read(t, k, logsvc.Query{App: first.id, Tail: -1, Follow: logsvc.FollowAlways})
	earlier.wait(draining, "password of c")
	owner := ofService(p, first)
	first.remove()
	second := p.create(testenv.App{Project: "b-c", Domain: "dev", Name: "a"})
	if second.service != first.service {
		t.Fatalf("got the names %s and %s, want one", first.service, second.service)
	}

	stream, err := k.Open(t.Context(), logsvc.Query{App: second.id, Tail: -1})
	check(t, err)
	defer stream.Close()
	if got := stream.Replicas(); len(got) > 0 {
		t.Errorf("the next app has the replicas %q", got)
	}
	for _, q := range []logsvc.Query{{Previous: true}, {}} {
		q.App, q.Replica = second.id, draining.Name()
		_, err := k.Open(t.Context(), q)
		refused(t, err, subjects.CodeNotFound, fmt.Sprintf("replica %q: not a replica of app %s", draining.Name(), second.id))
	}
	_, err = k.Open(t.Context(), all(first))
	refused(t, err, subjects.CodeNotFound, "app: no app "+first.id.String())

	// Pods of both that come during a follow.
	r := read(t, k, logsvc.Query{App: second.id, Tail: -1, Follow: logsvc.FollowAlways})
	late := second.run("00007", owner)
	late.Write("password of c")
	own := second.run("00001")
	own.Write("own")
	r.wait(own, "own")
	bare := second.run("00001", func(o *testenv.PodOptions) { o.Labels = map[string]string{kservice.LabelServiceUID: ""} })
	bare.Write("without the label")
	r.wait(bare, "without the label")
	soon(t, "the replicas are reported", func() error { return r.lastReplicas(own.Name(), bare.Name()) })
	for _, pod := range []*testenv.Pod{draining, late} {
		if got := r.of(pod); len(got) > 0 {
			t.Errorf("%s: got %q", pod.Name(), got)
		}
	}
	// A follow of the first app began while it was there: it reads on what it read, and ends with it.
	draining.Write("last words")
	earlier.wait(draining, "password of c", "last words")
	check(t, draining.Delete(t.Context()))
	earlier.end()
	check(t, earlier.noted("waiting: app c/dev/a-b was deleted"))
	if len(earlier.lines) != 1 {
		t.Errorf("the first app's reader got %q", earlier.lines)
	}
}

// ofService labels a pod as one of the Knative Service that an app has now.
func ofService(p *place, a *app) func(*testenv.PodOptions) {
	p.t.Helper()
	svc := &servingv1.Service{}
	if err := p.Client.Get(p.t.Context(), types.NamespacedName{Namespace: p.namespace, Name: a.service}, svc); err != nil {
		p.t.Fatal(err)
	}
	return func(o *testenv.PodOptions) { o.Labels = map[string]string{kservice.LabelServiceUID: string(svc.UID)} }
}

// TestKubernetesDeployedAgain: an app that is deleted and deployed again during a follow is the same
// app. Its reader goes on with the pods of both Knative Services.
func TestKubernetesDeployedAgain(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	k := p.kubernetes()
	a := p.newApp("again")
	old := a.run("00001")
	old.Write("old")
	r := read(t, k, logsvc.Query{App: a.id, Tail: -1, Follow: logsvc.FollowAlways})
	r.wait(old, "old")
	owner := ofService(p, a)
	a.remove()
	p.newApp("again")
	next := a.run("00001")
	next.Write("next")
	r.wait(next, "next")
	old.Write("drains")
	r.wait(old, "old", "drains")
	check(t, old.Delete(t.Context()))
	last := a.run("00001", owner) // of the Service that is gone, which was this app's
	last.Write("last")
	r.wait(last, "last")
	r.noNotes(t)

	// A new request knows the second Service alone.
	stream, err := k.Open(t.Context(), all(a))
	check(t, err)
	defer stream.Close()
	if got, want := stream.Replicas(), []string{next.Name()}; !slices.Equal(got, want) {
		t.Errorf("got replicas %q, want %q", got, want)
	}
}

// TestKubernetesLongLineResumed: a line of several records is handed out once, also where a request
// begins in the middle of it.
func TestKubernetesLongLineResumed(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	k := p.kubernetes()
	pod := p.newApp("resumed").run("00001")
	second := time.Now().Add(-time.Hour).Truncate(time.Second)
	at := func(ms int) time.Time { return second.Add(time.Duration(ms) * time.Millisecond) }
	long := strings.Repeat("x", 16<<10)
	pod.WriteAt(at(500), "first")
	pod.WriteRawAt(at(999), append([]byte(long), 'y'))
	pod.WriteRawAt(at(1001), []byte("z\n"))
	pod.WriteAt(at(2100), "second")
	want := []string{"first", long + "yz", "second"}
	r := read(t, k, logsvc.Query{App: subjects.AppID{Project: "shop", Domain: "production", Name: "resumed"}, Tail: -1, Follow: logsvc.FollowAlways})
	r.wait(pod, want...)
	for i := range 3 {
		soon(t, "it follows", following(pod))
		pod.EOF()
		line := fmt.Sprintf("line %d", i)
		pod.WriteAt(at(2200+i), line)
		want = append(want, line)
		r.wait(pod, want...)
	}
	r.noNotes(t)
}

// TestKubernetesWithoutContainerIDs: virtual kubelets report containers without ids. They run, are
// started again, and have a previous log like others.
func TestKubernetesWithoutContainerIDs(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	k := p.kubernetes()
	a := p.newApp("virtual")
	pod := a.run("00001", func(o *testenv.PodOptions) { o.NoContainerIDs = true })
	pod.Write("one")
	never := all(a)
	never.Follow = logsvc.FollowNever
	once := read(t, k, never)
	once.end()
	once.noNotes(t)
	once.wait(pod, "one")

	r := read(t, k, all(a))
	r.wait(pod, "one")
	pod.EOF()
	pod.Write("two")
	r.wait(pod, "one", "two")
	pod.WriteRaw(bytes.Repeat([]byte("x"), 5))
	check(t, pod.Restart(t.Context())) // within the second in which it started
	pod.Write("three")
	r.wait(pod, "one", "two", "xxxxx", "three")
	check(t, pod.Crash(t.Context()))
	soon(t, "the end is reported", func() error { return r.noted("ended with exit code 1 (Error), waiting for it to start again") })
	check(t, pod.Recover(t.Context()))
	pod.Write("four")
	r.wait(pod, "one", "two", "xxxxx", "three", "four")

	r.cancel()
	_ = r.ended()
	before := read(t, k, logsvc.Query{App: a.id, Tail: -1, Previous: true})
	before.end()
	before.wait(pod, "three")
}
