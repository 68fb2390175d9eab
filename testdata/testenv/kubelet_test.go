package testenv_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// What is awaited in these tests comes within moments, or never.
const logsTimeout = 5 * time.Minute

// logsEnv is a cluster with one kubelet and a client for its logs.
type logsEnv struct {
	cluster *testenv.Cluster
	kubelet *testenv.Kubelet
	client  *kubernetes.Clientset
	form    testenv.LogForm
}

func startLogs(t *testing.T, c *testenv.Cluster) *logsEnv {
	t.Helper()
	cfg := rest.CopyConfig(c.Config)
	cfg.Timeout, cfg.QPS = 0, -1
	set, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &logsEnv{cluster: c, kubelet: startKubelet(t, c, "node-1"), client: set, form: testenv.Containerd}
}

func startKubelet(t *testing.T, c *testenv.Cluster, name string) *testenv.Kubelet {
	t.Helper()
	k, err := c.StartKubelet(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		done(t, k.Close())
		equal(t, k.Followers(), 0)
	})
	return k
}

func runPod(t *testing.T, k *testenv.Kubelet, opts testenv.PodOptions) *testenv.Pod {
	t.Helper()
	p, err := k.RunPod(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (e *logsEnv) pod(t *testing.T) *testenv.Pod {
	t.Helper()
	return runPod(t, e.kubelet, testenv.PodOptions{Log: e.form})
}

// stream is an open log request.
type stream struct {
	t    *testing.T
	body io.ReadCloser
}

func (e *logsEnv) open(t *testing.T, p *testenv.Pod, opts corev1.PodLogOptions) (*stream, error) {
	t.Helper()
	if opts.Container == "" {
		opts.Container = "app"
	}
	ctx, cancel := context.WithTimeout(t.Context(), logsTimeout)
	t.Cleanup(cancel)
	body, err := e.client.CoreV1().Pods(p.Namespace()).GetLogs(p.Name(), &opts).Stream(ctx)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = body.Close() })
	return &stream{t, body}, nil
}

func (e *logsEnv) follow(t *testing.T, p *testenv.Pod, opts corev1.PodLogOptions) *stream {
	t.Helper()
	opts.Follow = true
	s, err := e.open(t, p, opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (e *logsEnv) read(t *testing.T, p *testenv.Pod, opts corev1.PodLogOptions) string {
	t.Helper()
	s, err := e.open(t, p, opts)
	if err != nil {
		t.Fatal(err)
	}
	return s.rest()
}

// refused is the error of a request.
func (e *logsEnv) refused(t *testing.T, p *testenv.Pod, opts corev1.PodLogOptions) error {
	t.Helper()
	_, err := e.open(t, p, opts)
	if err == nil {
		t.Fatal("the request is served")
	}
	return err
}

// want reads exactly this, and nothing after it.
func (s *stream) want(text string) {
	s.t.Helper()
	s.wantBytes([]byte(text))
}

func (s *stream) wantBytes(text []byte) {
	s.t.Helper()
	got := make([]byte, len(text))
	n, err := io.ReadFull(s.body, got)
	if !bytes.Equal(got[:n], text) {
		s.t.Fatalf("got %.200q (%d bytes) and %v, want %.200q (%d bytes)", got[:n], n, err, text, len(text))
	}
}

// rest reads on until the stream ends, which it has to do cleanly.
func (s *stream) rest() string {
	s.t.Helper()
	got, err := io.ReadAll(s.body)
	if err != nil {
		s.t.Fatalf("after %d bytes: %v", len(got), err)
	}
	return string(got)
}

func eventually(t *testing.T, what string, reached func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), logsTimeout)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !reached() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("never: %s", what)
		}
	}
}

func done(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func equal[T comparable](t *testing.T, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func ptr[T any](v T) *T { return &v }

func TestKubelet(t *testing.T) {
	t.Parallel()
	e := startLogs(t, start(t, testenv.Options{NoCRDs: true})) // one test stops the API server
	// One group, whose end is awaited: what comes after it disturbs all.
	t.Run("each", func(t *testing.T) {
		run := func(name string, e *logsEnv, test func(*testing.T, *logsEnv)) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, e)
			})
		}
		// The log in memory is read as the kubelet's own reader reads one on disk.
		memory := *e
		memory.form = testenv.InMemory
		for name, test := range map[string]func(*testing.T, *logsEnv){
			"read":      testRead,
			"since":     testSince,
			"bytes":     testBytes,
			"huge line": testHugeLine,
			"follow":    testFollow,
			"from end":  testFollowFromEnd,
			"restart":   testRestart,
			"rotate":    testRotate,
			"cut line":  testCutLine,
			"obstacles": testObstacles,
			"slow":      testSlowReader,
		} {
			run(name, e, test)
			run("in memory "+name, &memory, test)
		}
		for name, test := range map[string]func(*testing.T, *logsEnv){
			"waiting":   testWaiting,
			"finish":    testFinish,
			"delete":    testDelete,
			"labels":    testLabels,
			"kubectl":   testKubectl,
			"forms":     testForms,
			"records":   testRecords,
			"clock":     testClock,
			"rotations": testRotations,
			"early":     testEarlyRotation,
			"gone":      testGone,
			"faults":    testFaults,
		} {
			run(name, e, test)
		}
	})
	t.Run("all at once", func(t *testing.T) { testAllAtOnce(t, e) })
	t.Run("API server", func(t *testing.T) { testKubeletOutage(t, e) })
	t.Run("close", func(t *testing.T) { testClose(t, e) })
}

func testRead(t *testing.T, e *logsEnv) {
	p := e.pod(t)
	equal(t, e.read(t, p, corev1.PodLogOptions{}), "")
	p.Write("one", "two")
	p.Write("", "four")
	p.WriteTo("queue-proxy", "not the app")
	equal(t, e.read(t, p, corev1.PodLogOptions{}), "one\ntwo\n\nfour\n")
	equal(t, e.read(t, p, corev1.PodLogOptions{Container: "queue-proxy"}), "not the app\n")
	for tail, want := range map[int64]string{0: "", 1: "four\n", 3: "two\n\nfour\n", 99: "one\ntwo\n\nfour\n"} {
		equal(t, e.read(t, p, corev1.PodLogOptions{TailLines: &tail}), want)
	}
	equal(t, e.read(t, p, corev1.PodLogOptions{LimitBytes: ptr[int64](5)}), "one\nt")

	var last time.Time
	for line := range strings.Lines(e.read(t, p, corev1.PodLogOptions{Timestamps: true})) {
		stamp, _, _ := strings.Cut(line, " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil || len(stamp) != len("2006-01-02T15:04:05.000000000Z") || !at.After(last) {
			t.Errorf("line %q after %s: %v", line, last, err)
		}
		last = at
	}

	// Over several chunks.
	const lines = 40_000
	if !p.Fill(lines, func(i int) string { return fmt.Sprintf("%0120d", i) }) {
		t.Fatal("not written")
	}
	for _, tail := range []int{1, lines / 2, lines} {
		i := lines - tail
		for line := range strings.Lines(e.read(t, p, corev1.PodLogOptions{TailLines: ptr(int64(tail))})) {
			if want := fmt.Sprintf("%0120d\n", i); line != want {
				t.Fatalf("tail %d: got %q, want %q", tail, line, want)
			}
			i++
		}
		equal(t, i, lines)
	}
}

func testSince(t *testing.T, e *logsEnv) {
	p := e.pod(t)
	noon := time.Now().Truncate(time.Second).Add(-time.Hour)
	p.WriteAt(noon.Add(-time.Nanosecond), "before")
	p.WriteAt(noon, "at", "at")
	p.WriteAt(noon.Add(-time.Minute), "the clock was changed")
	p.WriteAt(noon.Add(30*time.Minute), "after")
	since := metav1.NewTime(noon.Add(900 * time.Millisecond)) // whole seconds arrive
	equal(t, e.read(t, p, corev1.PodLogOptions{SinceTime: &since}), "at\nat\nafter\n")
	equal(t, e.read(t, p, corev1.PodLogOptions{SinceTime: &since, TailLines: ptr[int64](2)}), "after\n")
	stamp := noon.UTC().Format("2006-01-02T15:04:05.000000000Z")
	got := e.read(t, p, corev1.PodLogOptions{SinceTime: &since, TailLines: ptr[int64](4), Timestamps: true, LimitBytes: ptr[int64](68)})
	equal(t, got, stamp+" at\n"+stamp+" at\n")
	equal(t, e.read(t, p, corev1.PodLogOptions{SinceSeconds: ptr[int64](60)}), "")
	equal(t, e.read(t, p, corev1.PodLogOptions{SinceSeconds: ptr[int64](3000)}), "after\n")
}

func testBytes(t *testing.T, e *logsEnv) {
	p := e.pod(t)
	s := e.follow(t, p, corev1.PodLogOptions{})
	p.WriteRaw([]byte("be"))
	p.WriteRaw([]byte("gun\xff\x00\r"))
	p.Write(" and ended")
	p.WriteRaw([]byte("a\n\nb\nrest"))
	s.want("begun\xff\x00\r and ended\na\n\nb\n")
	done(t, p.Restart(t.Context()))
	equal(t, s.rest(), "rest")
	equal(t, e.read(t, p, corev1.PodLogOptions{Previous: true, TailLines: ptr[int64](2)}), "b\nrest")
}

// A line of 100 MB lies in the log in pieces and is read as one.
func testHugeLine(t *testing.T, e *logsEnv) {
	p := e.pod(t)
	const size, record = 100 << 20, 16 << 10
	line := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	copy(line[size-2:], "!\n")
	p.WriteRaw(line)
	p.Write("next")
	s := e.follow(t, p, corev1.PodLogOptions{})
	s.wantBytes(line)
	s.want("next\n")

	// Three pieces from the end are two of the line and the next line.
	tail := e.read(t, p, corev1.PodLogOptions{TailLines: ptr[int64](3)})
	if want := string(line[size-2*record:]) + "next\n"; tail != want {
		t.Errorf("got %d bytes, want %d", len(tail), len(want))
	}
	// The line's start is stamped, or the place where a reading begins, and no other.
	want := regexp.MustCompile(`^\S{30} [0-9a-f]+!\n\S{30} next\n$`)
	tail = e.read(t, p, corev1.PodLogOptions{TailLines: ptr[int64](3), Timestamps: true})
	if !want.MatchString(tail) {
		t.Errorf("got %d bytes, %.60q first", len(tail), tail)
	}
	q := e.pod(t)
	q.WriteRaw(line[size-1<<20:])
	q.Write("next")
	if all := e.read(t, q, corev1.PodLogOptions{Timestamps: true}); !want.MatchString(all) || len(all) < 1<<20 {
		t.Errorf("got %d bytes", len(all))
	}
}

func testLabels(t *testing.T, e *logsEnv) {
	k := startKubelet(t, e.cluster, "node-2")
	p := runPod(t, k, testenv.PodOptions{
		Service: "hello", Revision: "hello-00001", Labels: map[string]string{"more": "yes"},
		Containers: []string{"user", "queue-proxy"},
	})
	p.Write("of another node")
	equal(t, e.read(t, p, corev1.PodLogOptions{Container: "user"}), "of another node\n")
	pods := &corev1.PodList{}
	err := e.cluster.Client.List(t.Context(), pods, client.MatchingLabels{
		"serving.knative.dev/service": "hello", "serving.knative.dev/revision": "hello-00001", "more": "yes",
	})
	if err != nil || len(pods.Items) != 1 || pods.Items[0].Name != p.Name() {
		t.Fatalf("got %v, %v", pods.Items, err)
	}
	pod := pods.Items[0]
	equal(t, pod.Status.Phase, corev1.PodRunning)
	equal(t, pod.Spec.NodeName, "node-2")
	if user := pod.Status.ContainerStatuses[0]; user.ContainerID != p.ContainerID() || user.State.Running == nil || !user.Ready {
		t.Errorf("got %+v", user)
	}
	if err := e.refused(t, p, corev1.PodLogOptions{Container: "none"}); !apierrors.IsBadRequest(err) {
		t.Error(err)
	}
	done(t, k.Close()) // its node is gone, and so are the logs
	if err := e.refused(t, p, corev1.PodLogOptions{Container: "user"}); !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}

func testKubectl(t *testing.T, e *logsEnv) {
	kubectl, err := testenv.Kubectl()
	if err != nil {
		t.Fatal(err)
	}
	p := e.pod(t)
	config := filepath.Join(t.TempDir(), "kubeconfig")
	done(t, e.cluster.Kubeconfig(config))
	p.Write("one", "two", "three")
	cmd := exec.CommandContext(t.Context(), kubectl, "--kubeconfig="+config, "--cache-dir="+t.TempDir(),
		"-n", p.Namespace(), "logs", p.Name(), "-c", "app", "--tail=2")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	equal(t, string(out), "two\nthree\n")
}
