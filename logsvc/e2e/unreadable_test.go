package e2e_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// One replica of an app cannot be read. The stock CLI, which gives up after 5 s, has the lines of the
// other, and why that one cannot be read.
func TestUnreadableReplica(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	for name, test := range map[string]struct {
		hinder func(*testenv.Pod)
		want   string
	}{
		"401":  {func(p *testenv.Pod) { p.Refuse(http.StatusUnauthorized) }, "its kubelet answers 401 Unauthorized"},
		"403":  {func(p *testenv.Pod) { p.Refuse(http.StatusForbidden) }, "its kubelet answers 403 Forbidden"},
		"404":  {func(p *testenv.Pod) { p.Refuse(http.StatusNotFound) }, "its kubelet answers 404 Not Found"},
		"500":  {func(p *testenv.Pod) { p.Refuse(http.StatusInternalServerError) }, "open the log: Internal error occurred: refused"},
		"503":  {func(p *testenv.Pod) { p.Refuse(http.StatusServiceUnavailable) }, "its kubelet answers 503 Service Unavailable"},
		"hang": {func(p *testenv.Pod) { p.Hang(true) }, "its node did not answer in time"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id, service := w.app(t)
			good, bad := w.pod(t, service, service+"-1"), w.pod(t, service, service+"-2")
			good.Write("hello")
			bad.Write("unread")
			test.hinder(bad)
			t.Cleanup(func() { bad.Hang(false) })
			run := w.Start(t, "nats req --raw "+subjectOf(t, subjects.LogGet, id)+" ''")
			got := run.Wait()
			if note := "replica " + bad.Name() + ": cannot be read: " + test.want; !strings.Contains(got, "hello\n") || !strings.Contains(got, note) {
				t.Errorf("one: got %q and %q, want the line and %q", got, run.Stderr(), note)
			}
			run = w.Start(t, "nats req --raw "+subjectOf(t, subjects.LogGet, id)+` '{"replica": "`+bad.Name()+`"}'`)
			if got := run.Wait(); !strings.Contains(got, test.want) {
				t.Errorf("alone: got %q and %q, want %q", got, run.Stderr(), test.want)
			}
		})
	}
}

// A kubelet that refuses the API server does not end the stream of the other replicas.
func TestKubeletRefusesFollow(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	id, service := w.app(t)
	good, bad := w.pod(t, service, service+"-1"), w.pod(t, service, service+"-2")
	bad.Refuse(http.StatusUnauthorized)
	good.Write("first")
	run := w.Start(t, "appbridge logs -f "+id.String())
	eventually(t, "the reader has the cause", func() error {
		if got := run.Stderr(); !strings.Contains(got, "its kubelet answers 401 Unauthorized; trying again") {
			return fmt.Errorf("it has %q", got)
		}
		return nil
	})
	// Longer than the service would wait for a right of its own.
	if err := testenv.Pause(t.Context(), 7*time.Second); err != nil {
		t.Fatal(err)
	}
	good.Write("second")
	run.WaitFor("second")
	bad.Refuse(0)
	bad.Write("third")
	run.WaitFor("third")
}

// The API server hangs: each request has its refusal before the stock CLI gives up.
func TestAnswerWhileAPIServerHangs(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	id, service := w.app(t)
	w.pod(t, service, service+"-1").Write("hello")
	proxy, err := w.APIProxy(testenv.APIProxyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := w.Dir("hanging-api")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := proxy.Kubeconfig(kubeconfig); err != nil {
		t.Fatal(err)
	}
	own := ownWorld(t, "--kubeconfig", kubeconfig)
	t.Cleanup(func() {
		proxy.Heal()
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	if got := own.Start(t, "nats req --raw "+subjectOf(t, subjects.LogGet, id)+" ''").Wait(); strings.TrimSpace(got) != "hello" {
		t.Fatalf("got %q", got)
	}
	proxy.HalfOpen()
	for _, op := range []subjects.LogOp{subjects.LogGet, subjects.LogTail, subjects.LogOpen} {
		run := own.Start(t, "nats req --raw "+subjectOf(t, op, id)+" ''")
		if got := run.Wait(); !strings.Contains(got, "did not answer") && !strings.Contains(got, "waiting for Kubernetes") {
			t.Errorf("%s: got %q and %q", op, got, run.Stderr())
		}
	}
}

// Thirty evicted pods, whose logs the kubelet has no more, are one note of a stream.
func TestEvictedReplicas(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	id, service := w.app(t)
	w.pod(t, service, service+"-up").Write("hello")
	for i := range 30 {
		pod := w.pod(t, service, fmt.Sprintf("%s-%02d", service, i))
		if err := pod.Evict(t.Context()); err != nil {
			t.Fatal(err)
		}
		pod.Refuse(http.StatusNotFound)
	}
	who := fmt.Sprintf("# appbridge: replicas %[1]s-00, %[1]s-01, %[1]s-02 and 27 more: ", service)
	const why = "cannot be read: its kubelet answers 404 Not Found"
	notes := func(text string) (all []string) {
		for line := range strings.Lines(text) {
			if strings.Contains(line, "cannot be read") {
				all = append(all, strings.TrimSpace(line))
			}
		}
		return all
	}
	t.Run("no follow", func(t *testing.T) {
		t.Parallel()
		got := w.Start(t, "nats req --raw --replies=0 --timeout=1h "+subjectOf(t, subjects.LogTail, id)+` '{"follow": false}'`).Wait()
		if all := notes(got); len(all) != 1 || all[0] != who+why || !strings.Contains(got, "hello\n") {
			t.Errorf("got\n%s", got)
		}
	})
	t.Run("follow", func(t *testing.T) {
		t.Parallel()
		run := w.Start(t, "nats req --raw --replies=0 --timeout=1h "+subjectOf(t, subjects.LogTail, id)+` '{"follow": true}'`)
		run.WaitFor(who + "the rest of the log of container app " + why)
		want := []string{who + "the rest of the log of container app " + why}
		if all := notes(run.Interrupt()); !slices.Equal(all, want) {
			t.Errorf("got %q, want %q", all, want)
		}
	})
}
