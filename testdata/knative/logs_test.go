package knative_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	kube "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/logsvc/client"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// Logs of the pods that Knative's Deployments make. Their status has no ids of containers, as with
// every virtual kubelet.
func TestLogs(t *testing.T) {
	t.Parallel()
	a := sharedWorld(t).app(t, "logs")
	a.deploys(spec(image("logs:1"), 2, 4), subjects.OutcomeCreated)
	a.becomes(state{status: "ACTIVE", revision: 1, replicas: 2})
	first := a.writers(2)
	var want []string
	for i, pod := range first {
		want = append(want, a.writes(pod, fmt.Sprintf("line of replica %d", i)))
	}
	if got := a.log(); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		t.Errorf("get: got %q, want %q", got, want)
	}

	f := a.follow()
	f.has(want...)
	f.has(a.writes(first[0], "while it is followed"))
	// Its Deployment replaces a pod that is deleted, and the stream goes on with the new one.
	a.came(a.asks(subjects.APIDeleteReplica, &appv1.ReplicaIdentifier{Name: first[0].Name()}), subjects.OutcomeDeleted)
	after := a.writers(2, first[0].Name())
	f.has(a.writes(after[slices.IndexFunc(after, func(p *testenv.Pod) bool { return p.Name() != first[1].Name() })], "of the new replica"))
	f.has(a.writes(first[1], "of the other one"))
	f.stop()
	a.judged()
}

// writers gives the app's pods a log, when so many run beside those that are gone.
func (a *app) writers(replicas int, gone ...string) (writers []*testenv.Pod) {
	a.t.Helper()
	var running []corev1.Pod
	suite.Eventually(a.t, patience, fmt.Sprintf("%d pods run", replicas), func() error {
		pods, err := a.pods(a.t.Context(), 0)
		if err != nil {
			return err
		}
		running = slices.DeleteFunc(pods, func(pod corev1.Pod) bool {
			return pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil || slices.Contains(gone, pod.Name)
		})
		if len(running) != replicas {
			return fmt.Errorf("%d do", len(running))
		}
		return nil
	})
	for _, pod := range running {
		for _, status := range pod.Status.ContainerStatuses {
			if status.ContainerID != "" {
				a.t.Errorf("container %s of %s has the id %s, want none: this test is about pods without", status.Name, pod.Name, status.ContainerID)
			}
		}
		writer, err := a.knative.Pod(a.t.Context(), kube.ObjectKeyFromObject(&pod))
		if err != nil {
			a.t.Fatal(err)
		}
		writers = append(writers, writer)
	}
	return writers
}

// writes adds a line to the log of a pod, and is that line as a reader sees it.
func (a *app) writes(pod *testenv.Pod, text string) string {
	a.t.Helper()
	if !pod.Write(text) {
		a.t.Fatalf("pod %s does not run", pod.Name())
	}
	return pod.Name() + " " + text
}

// log is what the operation get of the log service answers, sorted by line.
func (a *app) log() (lines []string) {
	a.t.Helper()
	for _, replica := range a.replicas() {
		subject, err := a.names.Logs(subjects.LogGet, a.id)
		if err != nil {
			a.t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(a.t.Context(), patience)
		defer cancel()
		msg, err := a.conn.RequestWithContext(ctx, subject, fmt.Appendf(nil, `{"replica": %q}`, replica))
		if err != nil {
			a.t.Fatal(err)
		}
		if text := (answer{msg}).refused(); text != "" {
			a.t.Fatalf("get of the log of %s: %s", replica, text)
		}
		for line := range strings.Lines(string(msg.Data)) {
			lines = append(lines, replica+" "+strings.TrimSuffix(line, "\n"))
		}
	}
	slices.Sort(lines)
	return lines
}

// replicas are the app's, as the operation replicas lists them.
func (a *app) replicas() (names []string) {
	a.t.Helper()
	got := a.asks(subjects.APIReplicas, &appv1.GetRequest{})
	if text := got.refused(); text != "" {
		a.t.Fatalf("replicas: %s", text)
	}
	list := &appv1.ReplicaList{}
	if err := appv1.Decode(got.Data, got.Header.Get(subjects.HeaderContentType), list); err != nil {
		a.t.Fatal(err)
	}
	for _, replica := range list.GetItems() {
		names = append(names, replica.GetMetadata().GetId().GetName())
	}
	return names
}

// follower reads the log of an app while it is written.
type follower struct {
	t      *testing.T
	cancel context.CancelFunc
	done   chan struct{} // closed when the reading has ended
	err    error         // read after done

	mu    sync.Mutex
	lines []string
}

func (a *app) follow() *follower {
	ctx, cancel := context.WithCancel(context.Background())
	f := &follower{t: a.t, cancel: cancel, done: make(chan struct{})}
	yes := true
	request := client.Request{App: a.id, Follow: &yes, Format: subjects.LogFormatRaw}
	go func() {
		defer close(f.done)
		_, f.err = client.Tail(ctx, a.conn, request, func(m *client.Message) error {
			if m.Kind != client.Lines {
				return nil
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			for line := range strings.Lines(string(m.Body)) {
				f.lines = append(f.lines, m.Replica+" "+strings.TrimSuffix(line, "\n"))
			}
			return nil
		})
	}()
	a.t.Cleanup(func() {
		cancel()
		<-f.done
	})
	return f
}

// has waits for lines, each of which has to come once.
func (f *follower) has(want ...string) {
	f.t.Helper()
	suite.Eventually(f.t, patience, fmt.Sprintf("the stream has %q", want), func() error {
		select {
		case <-f.done:
			return fmt.Errorf("%w: it has ended: %w", suite.ErrFatal, f.err)
		default:
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, line := range want {
			count := 0
			for _, got := range f.lines {
				if got == line {
					count++
				}
			}
			if count > 1 {
				return fmt.Errorf("%w: %q came %d times", suite.ErrFatal, line, count)
			}
			if count == 0 {
				return fmt.Errorf("it has %q", f.lines)
			}
		}
		return nil
	})
}

func (f *follower) stop() {
	f.t.Helper()
	f.cancel()
	<-f.done
	if !errors.Is(f.err, context.Canceled) {
		f.t.Errorf("the stream ended: %v", f.err)
	}
}
