package testenv_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// appStatus is the status of the pod's app, as the API server has it.
func (e *logsEnv) appStatus(t *testing.T, p *testenv.Pod) (corev1.PodPhase, corev1.ContainerStatus) {
	t.Helper()
	pod := &corev1.Pod{}
	if err := e.cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: p.Namespace(), Name: p.Name()}, pod); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.Name == "app" })
	return pod.Status.Phase, pod.Status.ContainerStatuses[i]
}

func testFollow(t *testing.T, e *logsEnv) {
	p := e.pod(t)
	p.Write("one", "two")
	all := e.follow(t, p, corev1.PodLogOptions{})
	tail := e.follow(t, p, corev1.PodLogOptions{TailLines: ptr[int64](1)})
	gone := e.follow(t, p, corev1.PodLogOptions{TailLines: ptr[int64](1)})
	eventually(t, "three requests", func() bool { return p.Followers() == 3 })
	all.want("one\ntwo\n")
	tail.want("two\n")
	gone.want("two\n")
	for i := range 100 {
		line := fmt.Sprintf("line %d", i)
		p.Write(line)
		for _, s := range []*stream{all, tail, gone} {
			s.want(line + "\n")
		}
	}
	_ = gone.body.Close()
	eventually(t, "a reader that is gone is noticed", func() bool { return p.Followers() == 2 })
	p.EOF()
	equal(t, all.rest(), "")
	equal(t, tail.rest(), "")
	eventually(t, "no request is open", func() bool { return p.Followers() == 0 })
	p.Write("unseen")
	equal(t, e.follow(t, p, corev1.PodLogOptions{LimitBytes: ptr[int64](4)}).rest(), "one\n")
	if got := p.Requests(); len(got) != 4 || !strings.Contains(got[1], "tailLines=1") || !strings.HasPrefix(got[3], "app?follow=true") {
		t.Errorf("got %q", got)
	}
}

// A follow without existing lines begins at the end that its reader finds: nothing shows when that is.
func testFollowFromEnd(t *testing.T, e *logsEnv) {
	p := e.pod(t)
	p.Write("old")
	s := e.follow(t, p, corev1.PodLogOptions{TailLines: ptr[int64](0)})
	came := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(s.body).ReadString('\n') // "" if it fails
		came <- line
	}()
	eventually(t, "a line comes", func() bool {
		p.Write("new")
		select {
		case line := <-came:
			equal(t, line, "new\n")
			return true
		default:
			return false
		}
	})
}

func testRestart(t *testing.T, e *logsEnv) {
	p := e.pod(t)
	if err := e.refused(t, p, corev1.PodLogOptions{Previous: true}); !apierrors.IsBadRequest(err) ||
		!strings.Contains(err.Error(), "previous terminated container") {
		t.Error(err)
	}
	p.Write("first")
	s := e.follow(t, p, corev1.PodLogOptions{})
	first := p.ContainerID()
	done(t, p.Restart(t.Context()))
	p.Write("second")
	equal(t, s.rest(), "first\n")
	equal(t, e.read(t, p, corev1.PodLogOptions{}), "second\n")
	equal(t, e.read(t, p, corev1.PodLogOptions{Previous: true}), "first\n")
	_, status := e.appStatus(t, p)
	equal(t, status.RestartCount, 1)
	equal(t, status.ContainerID, p.ContainerID())
	equal(t, status.LastTerminationState.Terminated.ContainerID, first)
	if status.State.Running == nil || first == p.ContainerID() || !strings.HasPrefix(first, "containerd://") {
		t.Errorf("got %+v after %s", status, first)
	}
}

func testWaiting(t *testing.T, e *logsEnv) {
	p := runPod(t, e.kubelet, testenv.PodOptions{Waiting: true})
	if err := e.refused(t, p, corev1.PodLogOptions{}); !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "ContainerCreating") {
		t.Error(err)
	}
	phase, _ := e.appStatus(t, p)
	equal(t, phase, corev1.PodPending)
	equal(t, p.Write("too early"), false)
	done(t, p.Recover(t.Context()))
	phase, _ = e.appStatus(t, p)
	equal(t, phase, corev1.PodRunning)
	equal(t, p.Write("first"), true)
	s := e.follow(t, p, corev1.PodLogOptions{})
	done(t, p.Crash(t.Context()))
	equal(t, p.Write("too late"), false)
	equal(t, s.rest(), "first\n")
	// Between two instances, the last log is repeated to everybody.
	equal(t, e.follow(t, p, corev1.PodLogOptions{}).rest(), "first\n")
	equal(t, e.read(t, p, corev1.PodLogOptions{Previous: true}), "first\n")
	_, status := e.appStatus(t, p)
	if status.State.Waiting == nil || status.State.Waiting.Reason != "CrashLoopBackOff" || status.Ready {
		t.Errorf("got %+v", status)
	}
	first := status.LastTerminationState.Terminated.ContainerID
	equal(t, first, p.ContainerID())
	done(t, p.Recover(t.Context()))
	_, status = e.appStatus(t, p)
	equal(t, status.RestartCount, 1)
	equal(t, status.LastTerminationState.Terminated.ContainerID, first)
	equal(t, e.read(t, p, corev1.PodLogOptions{}), "")
	equal(t, e.read(t, p, corev1.PodLogOptions{Previous: true}), "first\n")
}

func testFinish(t *testing.T, e *logsEnv) {
	p := e.pod(t)
	p.Write("done")
	s := e.follow(t, p, corev1.PodLogOptions{})
	done(t, p.Finish(t.Context(), corev1.PodSucceeded))
	equal(t, s.rest(), "done\n")
	equal(t, e.follow(t, p, corev1.PodLogOptions{}).rest(), "done\n")
	phase, status := e.appStatus(t, p)
	equal(t, phase, corev1.PodSucceeded)
	equal(t, status.State.Terminated.ContainerID, p.ContainerID())
}

func testDelete(t *testing.T, e *logsEnv) {
	p := e.pod(t)
	p.Write("one")
	s := e.follow(t, p, corev1.PodLogOptions{})
	s.want("one\n")
	done(t, p.Terminate(t.Context()))
	p.Write("the last")
	s.want("the last\n")
	done(t, p.Delete(t.Context()))
	equal(t, s.rest(), "")
	equal(t, p.Write("gone"), false)
	if err := e.refused(t, p, corev1.PodLogOptions{}); !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}

func testRotate(t *testing.T, e *logsEnv) {
	p := e.pod(t)
	p.Write("one")
	s := e.follow(t, p, corev1.PodLogOptions{})
	s.want("one\n")
	if e.form != testenv.InMemory {
		eventually(t, "the follow is at the end", func() bool { return p.AtEnd() == 1 })
	}
	p.Write("two")
	p.Rotate()
	equal(t, e.read(t, p, corev1.PodLogOptions{}), "")
	p.Write("three")
	equal(t, e.read(t, p, corev1.PodLogOptions{TailLines: ptr[int64](10)}), "three\n")
	s.want("two\nthree\n")
	done(t, p.Restart(t.Context()))
	equal(t, s.rest(), "")
	equal(t, e.read(t, p, corev1.PodLogOptions{Previous: true}), "three\n")
}

// The API server hides from its client that the kubelet's connection broke: the
// stream ends as if that were all, inside a line.
func testCutLine(t *testing.T, e *logsEnv) {
	p := e.pod(t)
	p.Write("one")
	s := e.follow(t, p, corev1.PodLogOptions{})
	s.want("one\n")
	p.CutLine("half of this")
	p.Write("two")
	equal(t, s.rest(), "half o")
	equal(t, e.read(t, p, corev1.PodLogOptions{}), "one\nhalf of this\ntwo\n")
}

func testObstacles(t *testing.T, e *logsEnv) {
	p := e.pod(t)
	p.Write("one")
	p.Refuse(http.StatusInternalServerError)
	if err := e.refused(t, p, corev1.PodLogOptions{}); !apierrors.IsInternalError(err) {
		t.Error(err)
	}
	p.Refuse(0)
	p.Hang(true)
	got := make(chan string, 1)
	go func() {
		text, err := e.client.CoreV1().Pods(p.Namespace()).GetLogs(p.Name(), &corev1.PodLogOptions{Container: "app"}).DoRaw(t.Context())
		got <- fmt.Sprint(string(text), err)
	}()
	eventually(t, "a request hangs", func() bool { return p.Followers() == 1 })
	p.Write("two")
	p.Hang(false)
	equal(t, <-got, "one\ntwo\n<nil>")
}

// A reader that does not read holds its request back, and nothing else.
func testSlowReader(t *testing.T, e *logsEnv) {
	p := e.pod(t)
	const lines = 200_000
	p.Fill(lines, func(int) string { return strings.Repeat("x", 119) })
	s := e.follow(t, p, corev1.PodLogOptions{})
	s.want("x")
	var sent int64
	eventually(t, "it is held back", func() bool {
		before := sent
		sent = p.Sent()
		return sent > 0 && sent == before
	})
	if sent >= lines*120 {
		t.Errorf("%d bytes are sent to a reader of one", sent)
	}
	done(t, p.Restart(t.Context()))
	rest, err := io.Copy(io.Discard, s.body)
	done(t, err)
	equal(t, rest, lines*120-1)
	equal(t, p.Sent(), lines*120)
}

// What concerns every request of the kubelet.
func testAllAtOnce(t *testing.T, e *logsEnv) {
	p, q := e.pod(t), e.pod(t)
	p.Write("1")
	q.Write("2")
	eventually(t, "no request is open", func() bool { return e.kubelet.Followers() == 0 })
	for what, end := range map[string]func(){"EOF": e.kubelet.EOF, "cut": e.kubelet.Cut} {
		a := e.follow(t, p, corev1.PodLogOptions{TailLines: ptr[int64](1)})
		b := e.follow(t, q, corev1.PodLogOptions{TailLines: ptr[int64](1)})
		equal(t, e.kubelet.Followers(), 2)
		a.want("1\n")
		b.want("2\n")
		p.Write("1")
		q.Write("2")
		a.want("1\n")
		b.want("2\n")
		end()
		equal(t, a.rest()+b.rest(), "")
		eventually(t, what+" ends all", func() bool { return e.kubelet.Followers() == 0 })
		equal(t, e.read(t, p, corev1.PodLogOptions{TailLines: ptr[int64](1)}), "1\n")
	}
	e.kubelet.Refuse(http.StatusServiceUnavailable)
	if err := e.refused(t, p, corev1.PodLogOptions{}); err == nil {
		t.Error("served")
	}
	e.kubelet.Refuse(0)
}

func testKubeletOutage(t *testing.T, e *logsEnv) {
	p := e.pod(t)
	p.Write("one")
	s := e.follow(t, p, corev1.PodLogOptions{})
	s.want("one\n")
	done(t, e.cluster.RestartAPIServer(t.Context()))
	eventually(t, "its requests have ended", func() bool { return e.kubelet.Followers() == 0 })
	p.Write("two")
	equal(t, e.read(t, p, corev1.PodLogOptions{}), "one\ntwo\n")
	done(t, p.Restart(t.Context()))
}

// Closing ends what follows, what hangs and what is held back.
func testClose(t *testing.T, e *logsEnv) {
	p := e.pod(t)
	p.Fill(200_000, func(int) string { return strings.Repeat("x", 119) })
	e.follow(t, p, corev1.PodLogOptions{}).want("x")
	s := e.follow(t, p, corev1.PodLogOptions{TailLines: ptr[int64](1)})
	s.want(strings.Repeat("x", 119) + "\n")
	done(t, e.kubelet.Close())
	equal(t, e.kubelet.Followers(), 0)
	equal(t, len(s.rest()), 0)
	done(t, e.kubelet.Close())
}
