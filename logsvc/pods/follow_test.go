package pods_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
)

// check fails the test on an error of a step.
func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestKubernetesFollow disturbs the reading of numbered lines in many ways: none
// is missing and none comes twice.
func TestKubernetesFollow(t *testing.T) {
	p := newPlace(t)
	k := p.kubernetes()
	steps := map[string]func(t *testing.T, pod *testenv.Pod, i int){
		"eof":          func(_ *testing.T, pod *testenv.Pod, _ int) { pod.EOF() },
		"cut":          func(_ *testing.T, _ *testenv.Pod, _ int) { p.Cut() },
		"cut in lines": nil, // by the writer itself
		"restart":      func(t *testing.T, pod *testenv.Pod, _ int) { check(t, pod.Restart(t.Context())) },
		"crash": func(t *testing.T, pod *testenv.Pod, i int) {
			if i%2 == 0 {
				check(t, pod.Crash(t.Context()))
			} else {
				check(t, pod.Recover(t.Context()))
			}
		},
		"refuse": func(_ *testing.T, pod *testenv.Pod, i int) {
			pod.Refuse([]int{http.StatusInternalServerError, 0}[i%2])
			pod.EOF()
		},
	}
	for name, disturb := range steps {
		t.Run(name, func(t *testing.T) {
			a := p.newApp(strings.ReplaceAll(name, " ", "-"))
			pod := a.run("00001")
			pod.Write(numbers(0, 100)...)
			q := all(a)
			q.Tail = 50
			r := read(t, k, q)
			r.wait(pod, numbers(50, 100)...)
			n := 100
			for i := range 6 {
				for range 40 {
					for !pod.Write(strconv.Itoa(n)) { // it does not run
						check(t, pod.Recover(t.Context()))
					}
					n++
				}
				if disturb != nil {
					disturb(t, pod, i)
				} else {
					soon(t, "it follows", following(pod))
					pod.CutLine(strconv.Itoa(n))
					n++
				}
				if i%2 == 1 || name == "restart" { // the log of the last but one cannot be had
					r.wait(pod, numbers(50, n)...)
				}
			}
			r.wait(pod, numbers(50, n)...)
			check(t, pod.Finish(t.Context(), "Succeeded"))
			r.end()
			r.wait(pod, numbers(50, n)...)
		})
	}
}

// TestKubernetesBusy disturbs the reading of a container that writes all the
// time, so that answers end and break off anywhere.
func TestKubernetesBusy(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	k := p.kubernetes()
	a := p.newApp("busy")
	replicas := []*testenv.Pod{a.run("00001"), a.run("00001")}
	const lines = 100_000
	r := read(t, k, all(a))
	var writers sync.WaitGroup
	for _, pod := range replicas {
		writers.Go(func() {
			for i := 0; i < lines; i += 1000 {
				pod.Write(numbers(i, i+1000)...)
				select {
				case <-time.After(10 * time.Millisecond):
				case <-t.Context().Done():
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		writers.Wait()
	}()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for i, writing := 0, true; writing; i++ {
		switch i % 3 {
		case 0:
			p.EOF()
		case 1:
			p.Cut()
		case 2:
			replicas[i%2].EOF()
		}
		select {
		case <-tick.C:
		case <-done:
			writing = false
		}
	}
	for _, pod := range replicas {
		r.wait(pod, numbers(0, lines)...)
	}
	r.onlyNotes(t, "; trying again") // on a busy machine a few faults in a row are an outage
}

// TestKubernetesAPIServer restarts the API server under a stream.
func TestKubernetesAPIServer(t *testing.T) {
	t.Parallel()
	kubesuite.Needed(t)
	cluster, err := testenv.Start(t.Context(), testenv.Options{})
	check(t, err)
	defer func() { check(t, cluster.Stop()) }()
	t.Run("restart", func(t *testing.T) {
		p := newPlaceIn(t, cluster)
		a := p.newApp("checkout")
		pod := a.run("00001")
		pod.Write(numbers(0, 10)...)
		r := read(t, p.kubernetes(), all(a))
		r.wait(pod, numbers(0, 10)...)
		n := 10
		for _, stop := range []func() error{cluster.KillAPIServer, func() error { return cluster.StopAPIServer(t.Context()) }} {
			pod.Write(numbers(n, n+10)...)
			check(t, stop())
			pod.Write(numbers(n+10, n+20)...)
			n += 20
			soon(t, "the outage is noted", func() error { return r.noted("cannot be read") })
			check(t, cluster.StartAPIServer(t.Context()))
			r.wait(pod, numbers(0, n)...)
		}
		// The informer may come back late; new replicas are noticed all the same.
		more := a.run("00002")
		more.Write("more")
		r.wait(more, "more")
	})
}

func TestKubernetesRollout(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	k := p.kubernetes()
	a := p.newApp("rollout")
	old := a.run("00001")
	old.Write(numbers(0, 5)...)
	q := all(a)
	q.Tail = 1
	r := read(t, k, q)
	r.wait(old, "4")
	next := a.run("00002", func(o *testenv.PodOptions) { o.Waiting = true })
	soon(t, "the replica is named", func() error { return r.lastReplicas(old.Name(), next.Name()) })
	check(t, next.Recover(t.Context()))
	next.Write(numbers(0, 5)...)
	r.wait(next, numbers(0, 5)...) // from its beginning
	soon(t, "it follows", following(old))
	old.Write("last words")
	check(t, old.Delete(t.Context()))
	r.wait(old, "4", "last words")
	soon(t, "the replica is gone", func() error { return r.lastReplicas(next.Name()) })
	check(t, next.Delete(t.Context()))
	r.end()
	r.noNotes(t)
	if want := 1; r.live != want { // what exists of a new replica is not dropped, like all that exists
		t.Errorf("%d lines came live, want %d", r.live, want)
	}
}

func TestKubernetesScaledToZero(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	k := p.kubernetes()
	a := p.newApp("zero")
	running := read(t, k, all(a))
	running.end() // nothing runs
	q := all(a)
	q.Follow = logsvc.FollowAlways
	r := read(t, k, q)
	const waits = "waiting: app shop/production/zero has no replicas (scaled to zero), waiting for one"
	soon(t, "it waits", func() error { return r.noted(waits) })
	pod := a.run("00001")
	pod.Write("here")
	r.wait(pod, "here")
	check(t, pod.Delete(t.Context()))
	soon(t, "it waits again", func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !slices.Equal(r.notes, []string{waits, waits}) {
			return fmt.Errorf("notes are %q", r.notes)
		}
		return nil
	})
	svc := &servingv1.Service{}
	check(t, p.Client.Get(t.Context(), types.NamespacedName{Namespace: p.namespace, Name: a.service}, svc))
	check(t, p.Client.Delete(t.Context(), svc))
	r.end()
	check(t, r.noted("waiting: app shop/production/zero was deleted"))
}

// TestKubernetesCrashLoop: a container that waits brings its last log to whoever
// asks, which must not be taken for a new one.
func TestKubernetesCrashLoop(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	k := p.kubernetes()
	a := p.newApp("crashes")
	pod := a.run("00001")
	pod.Write("first")
	check(t, pod.Crash(t.Context()))
	r := read(t, k, all(a))
	r.wait(pod, "first")
	want := []string{"first"}
	for i := range 3 {
		soon(t, "the end is noted", func() error {
			r.mu.Lock()
			defer r.mu.Unlock()
			if got := strings.Count(strings.Join(r.notes, "\n"), "container app ended with exit code 1 (Error), waiting for it to start again"); got != i+1 {
				return fmt.Errorf("%d times", got)
			}
			return nil
		})
		check(t, pod.Recover(t.Context()))
		line := fmt.Sprintf("again %d", i)
		pod.Write(line)
		pod.WriteRaw([]byte("unfinished"))
		check(t, pod.Crash(t.Context()))
		want = append(want, line, "unfinished")
		r.wait(pod, want...)
	}
	check(t, r.noted(pod.Name()+" replica: container app started again"))
	check(t, pod.Delete(t.Context()))
	r.end()
	r.wait(pod, want...)
}

func TestKubernetesRotation(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	k := p.kubernetes()
	a := p.newApp("rotates")
	pod := a.run("00001")
	pod.Write(numbers(0, 10)...)
	r := read(t, k, all(a))
	soon(t, "it follows", following(pod))
	pod.Rotate()
	pod.Write(numbers(10, 20)...)
	r.wait(pod, numbers(0, 20)...)
	pod.EOF()
	pod.Write(numbers(20, 30)...)
	r.wait(pod, numbers(0, 30)...)
	r.noNotes(t)
	pod.Rotate()
	p.Cut()
	pod.Write(numbers(30, 40)...)
	r.wait(pod, numbers(0, 40)...)
	r.onlyNotes(t, "the log does not hold its last line before an interruption any more") // nobody knows what was there
}

// TestKubernetesLongLine reads a line of 100 MB, which is cut.
func TestKubernetesLongLine(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	k := p.kubernetes()
	a := p.newApp("long")
	pod := a.run("00001")
	pod.Write("before")
	r := read(t, k, all(a))
	soon(t, "it follows", following(pod))
	const size = 100 << 20
	chunk := bytes.Repeat([]byte("x"), 1<<20)
	for range size / len(chunk) {
		pod.WriteRaw(chunk)
	}
	pod.Write("", "after")
	r.wait(pod, "before", fmt.Sprintf("%d bytes and %d cut", 128<<10, size-128<<10), "after")
}

// TestKubernetesSinkEnds: an error of the sink is the stream's, and nobody
// follows after it.
func TestKubernetesSinkEnds(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	k := p.kubernetes()
	a := p.newApp("ends")
	pod, sibling := a.run("00001"), a.run("00001")
	r := read(t, k, all(a))
	soon(t, "it follows", following(pod))
	soon(t, "it follows", following(sibling))
	r.mu.Lock()
	r.err = errSink
	r.mu.Unlock()
	pod.Write("one")
	if err := r.ended(); err != errSink { //nolint:errorlint // as it is
		t.Errorf("got %v, want the sink's error", err)
	}
	soon(t, "nobody follows", func() error {
		if n := p.Followers(); n != 0 {
			return fmt.Errorf("%d requests are open", n)
		}
		return nil
	})
}

// TestKubernetesDeadNode: the follow of a pod that is gone never ends when its
// node is.
func TestKubernetesDeadNode(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	k := p.kubernetes()
	a := p.newApp("dead")
	pod := a.run("00001")
	pod.Hang(true) // no answer ever
	r := read(t, k, all(a))
	soon(t, "it asks", func() error {
		if pod.Followers() == 0 {
			return fmt.Errorf("nobody does")
		}
		return nil
	})
	check(t, pod.Delete(t.Context()))
	r.end()
}

var errSink = errors.New("the sink has had enough")

// The kubelet has the logs of two instances: what is in others is noted as missing.
func TestFollowSkipsInstances(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	a := p.newApp("skips")
	pod := a.run("00001")
	pod.Write("first")
	r := &resuming{read(t, p.kubernetes(), all(a)), pod}
	r.wait(pod, "first")
	soon(t, "it follows", following(pod))
	r.interrupt(func() {
		pod.Write("missing")
		for _, line := range []string{"second", "third"} {
			check(t, pod.Restart(t.Context()))
			pod.Write(line)
		}
	})
	r.want([]string{"first", "second", "third"}, "container app started again more than once meanwhile; lines may be missing here", "container app started again")
}

// A pod that is deleted while its log cannot be read leaves a note, whatever of it was read before.
func TestPodGoneUnread(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	k := p.kubernetes()
	hangs := func(pod *testenv.Pod) { pod.Hang(true) }
	refuses := func(pod *testenv.Pod) { pod.Refuse(http.StatusInternalServerError) }
	for name, test := range map[string]struct {
		follow logsvc.Follow
		hinder func(*testenv.Pod)
		first  bool // a line is read before that
	}{
		"hangs":            {follow: logsvc.FollowRunning, hinder: hangs},
		"hangs-once":       {follow: logsvc.FollowNever, hinder: hangs},
		"refuses":          {follow: logsvc.FollowAlways, hinder: refuses},
		"refuses-once":     {follow: logsvc.FollowNever, hinder: refuses},
		"refuses-a-follow": {follow: logsvc.FollowRunning, hinder: refuses, first: true},
	} {
		t.Run(name, func(t *testing.T) {
			a := p.newApp(name)
			pod := a.run("00001")
			pod.Write("one")
			if !test.first {
				test.hinder(pod)
			}
			r := read(t, k, logsvc.Query{App: a.id, Tail: -1, Follow: test.follow})
			if test.first {
				r.wait(pod, "one")
				soon(t, "it follows", following(pod))
				test.hinder(pod)
			}
			before := len(pod.Requests())
			pod.EOF()
			soon(t, "a request comes", func() error {
				if len(pod.Requests()) == 0 || test.first && len(pod.Requests()) == before {
					return fmt.Errorf("none")
				}
				return nil
			})
			pod.Write("two")
			check(t, pod.Delete(t.Context()))
			pod.Hang(false)
			soon(t, "it is noted", func() error { return r.noted("gone before all of its log was read; the last lines may be missing") })
			r.cancel()
		})
	}
}
