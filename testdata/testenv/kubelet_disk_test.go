package testenv_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// node is a kubelet of the test's own.
func (e *logsEnv) node(t *testing.T, name string) *logsEnv {
	t.Helper()
	return &logsEnv{cluster: e.cluster, kubelet: startKubelet(t, e.cluster, name), client: e.client, form: e.form}
}

func (e *logsEnv) crio(t *testing.T) *testenv.Pod {
	t.Helper()
	return runPod(t, e.kubelet, testenv.PodOptions{Log: testenv.CRIO})
}

var stamped = corev1.PodLogOptions{Timestamps: true} //nolint:gochecknoglobals // a constant

func testForms(t *testing.T, e *logsEnv) {
	at := time.Date(2026, 11, 26, 12, 0, 0, 123_400_000, time.FixedZone("", 2*3600))
	c, o := e.pod(t), e.crio(t)
	if !strings.HasPrefix(c.ContainerID(), "containerd://") || !strings.HasPrefix(o.ContainerID(), "cri-o://") {
		t.Errorf("got %s and %s", c.ContainerID(), o.ContainerID())
	}
	c.WriteAt(at.UTC(), "one")
	o.WriteAt(at, "one", "", "three")
	equal(t, e.read(t, c, stamped), "2026-11-26T10:00:00.123400000Z one\n")
	const offset = "2026-11-26T12:00:00.123400000+02:00 "
	equal(t, e.read(t, o, stamped), offset+"one\n"+offset+"\n"+offset+"three\n")

	// All of one read have one time; of containerd's lines each has its own.
	c.Write("1", "2")
	o.Write("1", "2")
	times := func(p *testenv.Pod) []string {
		lines := strings.Fields(e.read(t, p, corev1.PodLogOptions{Timestamps: true, TailLines: ptr[int64](2)}))
		return []string{lines[0], lines[2]}
	}
	if got := times(c); got[0] == got[1] {
		t.Errorf("containerd: got %s twice", got[0])
	}
	if got := times(o); got[0] != got[1] {
		t.Errorf("CRI-O: got %s and %s", got[0], got[1])
	}

	// 20,000 bytes are two pieces, or three of a read each.
	line := strings.Repeat("x", 20_000)
	c.Write(line)
	o.Write(line)
	equal(t, len(e.read(t, c, corev1.PodLogOptions{TailLines: ptr[int64](1)})), 20_001-16<<10)
	equal(t, len(e.read(t, o, corev1.PodLogOptions{TailLines: ptr[int64](1)})), 20_001-16<<10)
	equal(t, len(e.read(t, c, corev1.PodLogOptions{TailLines: ptr[int64](2)})), 20_001)
	equal(t, len(e.read(t, o, corev1.PodLogOptions{TailLines: ptr[int64](2)})), 20_001-8<<10)
	equal(t, len(e.read(t, o, corev1.PodLogOptions{TailLines: ptr[int64](3)})), 20_001)

	// What has no end yet is in CRI-O's log alone.
	c.WriteRaw([]byte("begun"))
	o.WriteRaw([]byte("begun"))
	follow := e.follow(t, o, corev1.PodLogOptions{TailLines: ptr[int64](1)})
	follow.want("begun")
	equal(t, e.read(t, c, corev1.PodLogOptions{TailLines: ptr[int64](1)}), line[:20_000-16<<10]+"\n")
	o.WriteRaw([]byte(", ended\n"))
	follow.want(", ended\n")
}

func testRecords(t *testing.T, e *logsEnv) {
	p := e.pod(t)
	at := time.Date(2026, 11, 26, 12, 0, 0, 1, time.UTC)
	p.WriteRecords(
		testenv.Record{Time: at, Text: "be", Partial: true},
		testenv.Record{Time: at.Add(-time.Hour), Text: "gun"},
		testenv.Record{Time: at, Text: "error", Stderr: true},
	)
	equal(t, e.read(t, p, stamped), "2026-11-26T12:00:00.000000001Z begun\n2026-11-26T12:00:00.000000001Z error\n")
	p.Rotate()
	p.WriteFile([]byte("rest of a record\n"))
	p.Write("whole")
	if got := e.read(t, p, corev1.PodLogOptions{}); !strings.Contains(got, "unsupported log format") || strings.Contains(got, "whole") {
		t.Errorf("got %q", got)
	}
	equal(t, e.read(t, p, corev1.PodLogOptions{TailLines: ptr[int64](1)}), "whole\n")
}

// What the node's clock says, a kubelet believes.
func testClock(t *testing.T, e *logsEnv) {
	e = e.node(t, "node-clock")
	back := func() time.Time { return time.Now().Add(-time.Hour) }
	p := e.pod(t)
	before := metav1.NewTime(time.Now().Add(-time.Minute))
	p.Write("before")
	e.kubelet.SetClock(back)
	p.Write("after")
	equal(t, e.read(t, p, corev1.PodLogOptions{}), "before\nafter\n")
	equal(t, e.read(t, p, corev1.PodLogOptions{SinceTime: &before}), "before\n")
	equal(t, e.read(t, p, corev1.PodLogOptions{SinceSeconds: ptr[int64](600)}), "before\nafter\n")
	done(t, p.Restart(t.Context()))
	_, status := e.appStatus(t, p)
	if started := status.State.Running.StartedAt; time.Since(started.Time) < time.Hour {
		t.Errorf("it started at %s", started)
	}
	e.kubelet.SetClock(func() time.Time { return back().In(time.FixedZone("", -3600)).Truncate(time.Second) })
	o := e.crio(t)
	o.Write("whole seconds")
	if got := e.read(t, o, stamped); !strings.Contains(got, ".000000000-01:00 whole") {
		t.Errorf("got %q", got)
	}
	e.kubelet.SetClock(nil)
	o.Write("now")
	equal(t, e.read(t, o, corev1.PodLogOptions{SinceSeconds: ptr[int64](60)}), "now\n")
}

func testRotations(t *testing.T, e *logsEnv) {
	for _, p := range []*testenv.Pod{e.pod(t), e.crio(t)} {
		s := e.follow(t, p, corev1.PodLogOptions{})
		eventually(t, "the follow is at the end", func() bool { return p.AtEnd() == 1 })
		for i := range 7 {
			p.Write(fmt.Sprintf("%d before", i))
			s.want(fmt.Sprintf("%d before\n", i))
			p.Rotate()
			p.Write(fmt.Sprintf("%d after", i))
			s.want(fmt.Sprintf("%d after\n", i))
			equal(t, e.read(t, p, corev1.PodLogOptions{}), fmt.Sprintf("%d after\n", i))
		}
	}
}

// A rotation between a follow's open and the first end of the file leaves it on the old file for ever.
func testEarlyRotation(t *testing.T, e *logsEnv) {
	p := e.pod(t)
	const lines = 200_000
	p.Fill(lines, func(int) string { return strings.Repeat("x", 119) })
	s := e.follow(t, p, corev1.PodLogOptions{})
	s.want("x") // the rest does not fit between the kubelet and here
	p.Rotate()
	p.Write("new")
	n, err := io.CopyN(io.Discard, s.body, lines*120-1)
	done(t, err)
	equal(t, n, lines*120-1)
	equal(t, e.read(t, p, corev1.PodLogOptions{}), "new\n")
	p.EOF()
	equal(t, s.rest(), "")
}

// A log that is gone is an error in the body of an answer that began well.
func testGone(t *testing.T, e *logsEnv) {
	p := e.pod(t)
	p.Write("one")
	s := e.follow(t, p, corev1.PodLogOptions{})
	s.want("one\n")
	p.RemoveLog()
	p.Write("lost")
	if got := e.read(t, p, corev1.PodLogOptions{}); !strings.HasPrefix(got, "failed to try resolving symlinks in path ") {
		t.Errorf("got %q", got)
	}
	p.Rotate() // brings it back
	p.Write("two")
	equal(t, e.read(t, p, corev1.PodLogOptions{}), "two\n")

	done(t, p.Evict(t.Context()))
	equal(t, e.read(t, p, corev1.PodLogOptions{}), "two\n")
	p.RemoveContainers()
	equal(t, e.read(t, p, corev1.PodLogOptions{}), "unable to retrieve container logs for "+p.ContainerID())
	phase, status := e.appStatus(t, p)
	equal(t, phase, corev1.PodFailed)
	equal(t, status.State.Terminated.ExitCode, 137)
}

func testFaults(t *testing.T, e *logsEnv) {
	e = e.node(t, "node-faults")
	p := e.pod(t)
	p.Write("one")
	for status, check := range map[int]func(error) bool{
		http.StatusUnauthorized:        apierrors.IsUnauthorized,
		http.StatusForbidden:           apierrors.IsForbidden,
		http.StatusInternalServerError: apierrors.IsInternalError,
	} {
		p.Refuse(status)
		if err := e.refused(t, p, corev1.PodLogOptions{}); !check(err) {
			t.Errorf("%d: got %v", status, err)
		}
	}
	p.Refuse(0)

	p.Silence(true)
	s := e.follow(t, p, corev1.PodLogOptions{}) // the header comes
	equal(t, p.Sent(), 0)
	p.Silence(false)
	s.want("one\n")
	p.EOF()
	equal(t, s.rest(), "")

	p.Write("two", "three")
	p.Slow(50*time.Millisecond, 50*time.Millisecond)
	began := time.Now()
	equal(t, e.read(t, p, corev1.PodLogOptions{}), "one\ntwo\nthree\n")
	if took := time.Since(began); took < 200*time.Millisecond {
		t.Errorf("it took %s", took)
	}
	p.Slow(0, 0)

	p.EndAfter(2)
	equal(t, e.follow(t, p, corev1.PodLogOptions{}).rest(), "one\ntwo\n")
	equal(t, e.read(t, p, corev1.PodLogOptions{}), "one\ntwo\n")
	p.EndAfter(0)

	s = e.follow(t, p, corev1.PodLogOptions{TailLines: ptr[int64](1)})
	s.want("three\n")
	done(t, e.kubelet.RefuseConnections(t.Context(), true))
	equal(t, s.rest(), "")
	if err := e.refused(t, p, corev1.PodLogOptions{}); !strings.Contains(err.Error(), "connection refused") {
		t.Error(err)
	}
	done(t, e.kubelet.RefuseConnections(t.Context(), false))
	equal(t, e.read(t, p, corev1.PodLogOptions{TailLines: ptr[int64](1)}), "three\n")
}
