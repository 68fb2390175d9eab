// Package examples_test runs the examples against an API server, bridges and JetStream.
package examples_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

const kill = syscall.SIGKILL

// programs is a folder with the examples.
var programs string

var world = kubesuite.SharedWorld{Prepare: func(ctx context.Context, w *kubesuite.World) (err error) {
	if programs, err = w.Dir("examples"); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", programs, "./...").CombinedOutput(); err != nil {
		return fmt.Errorf("build the examples: %w\n%s", err, out)
	}
	_, err = w.Serve(ctx, nil)
	return err
}}

func TestMain(m *testing.M) { suite.Main(m, world.Stop) }

// start runs an example.
func start(t *testing.T, w *kubesuite.World, name string, args ...string) *kubesuite.Command {
	t.Helper()
	return w.Start(t, "exec "+filepath.Join(programs, name)+" --nats-url "+w.NATS+" "+strings.Join(args, " "))
}

func jetStream(t *testing.T, w *kubesuite.World) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(w.NATS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// app is an app of this test alone.
func app(t *testing.T, w *kubesuite.World, project string) *servingv1.Service {
	t.Helper()
	svc, err := w.Create(t.Context(), testenv.App{Project: project, Domain: "production", Name: "storefront"})
	if err != nil {
		t.Fatal(err)
	}
	return svc
}

func ready(t *testing.T, w *kubesuite.World, svc *servingv1.Service) {
	t.Helper()
	if _, err := w.Ready(t.Context(), svc, "", 1); err != nil {
		t.Fatal(err)
	}
}

// failed lets an app fail, and returns its version.
func failed(t *testing.T, w *kubesuite.World, svc *servingv1.Service) string {
	t.Helper()
	svc, err := w.Failed(t.Context(), svc, "ExitCode1", "it ended")
	if err != nil {
		t.Fatal(err)
	}
	return svc.ResourceVersion
}

// hook is a webhook that acts once for each Idempotency-Key.
type hook struct {
	mu    sync.Mutex
	keys  map[string]bool
	texts []string
}

func (h *hook) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	h.mu.Lock()
	defer h.mu.Unlock()
	if key := r.Header.Get("Idempotency-Key"); !h.keys[key] {
		h.keys[key] = true
		h.texts = append(h.texts, string(body))
	}
}

// of are the texts about the apps of a project.
func (h *hook) of(project string) (texts []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, text := range h.texts {
		if strings.HasPrefix(text, project+"/") {
			texts = append(texts, text)
		}
	}
	return texts
}

// The service calls for every transition, also for those of the time in which it did not run.
func TestReact(t *testing.T) {
	t.Parallel()
	w := world.Get(t)
	h := &hook{keys: map[string]bool{}}
	web := httptest.NewServer(h)
	t.Cleanup(web.Close)
	service := start(t, w, "react", "--hook", web.URL)
	js := jetStream(t, w)
	suite.Eventually(t, suite.Patience, "the service keeps a position", func() error {
		positions, err := js.KeyValue(t.Context(), "positions")
		if err == nil {
			_, err = positions.Get(t.Context(), "react")
		}
		return err
	})
	// A bridge that lists again in between publishes the net difference alone, so the events of the
	// stream are what has to be called for.
	called := func(last, version string) {
		t.Helper()
		suite.Eventually(t, suite.Patience, "the service calls", func() error {
			headers, err := events(t.Context(), js, "react")
			if err != nil {
				return err
			}
			var want []string
			for _, h := range headers {
				if status := h.Get(subjects.HeaderAppStatus); status != h.Get(subjects.HeaderPreviousAppStatus) && (status == "ACTIVE" || status == "FAILED") {
					want = append(want, "react/production/storefront is "+status)
				}
			}
			got := h.of("react")
			if len(got) == 0 || !strings.HasSuffix(got[len(got)-1], last) || !slices.Equal(got, want) {
				return fmt.Errorf("got %q, want %q and %s at the end", got, want, last)
			}
			if read := headers[len(headers)-1].Get(subjects.HeaderResourceVersion); version != "" && read != version {
				return fmt.Errorf("the newest event has version %s, want %s", read, version)
			}
			return nil
		})
	}
	svc := app(t, w, "react")
	ready(t, w, svc)
	called("ACTIVE", "")
	service.Signal(kill)
	failed(t, w, svc)
	ready(t, w, svc)
	start(t, w, "react", "--hook", web.URL)
	called("FAILED", failed(t, w, svc))
}

// The operator sees an app come, change and go; with --since also what was before.
func TestOperator(t *testing.T) {
	t.Parallel()
	w := world.Get(t)
	live := start(t, w, "operator", "operator")
	live.WaitFor("# up to date at ")
	svc := app(t, w, "operator")
	ready(t, w, svc)
	live.WaitFor(`"operator/production/storefront" created `)
	live.WaitFor("-> ACTIVE")
	start(t, w, "operator", "operator").WaitFor("\"operator/production/storefront\" is ACTIVE\n# up to date at ")
	if err := w.Client.Delete(t.Context(), svc); err != nil {
		t.Fatal(err)
	}
	live.WaitFor("\"operator/production/storefront\" deleted ACTIVE -> \n")
	replay := start(t, w, "operator", "--since", "1h", "operator")
	replay.WaitFor("# up to date at ")
	if got := replay.Stdout(); !strings.Contains(got, " created ") || !strings.Contains(got, "deleted ACTIVE ->") {
		t.Errorf("got %s", got)
	}
}

// A slow dashboard gets to the newest state without the ones between: those of a time in which it did
// not read at all.
func TestDashboard(t *testing.T) {
	t.Parallel()
	w := world.Get(t)
	js := jetStream(t, w)
	slow := start(t, w, "dashboard", "--hold", "300ms")
	svc := app(t, w, "dashboard")
	slow.WaitFor(`"dashboard/production/storefront" `)
	slow.Signal(syscall.SIGSTOP)
	for n := range 40 {
		if _, err := w.Patch(t.Context(), svc, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"change": fmt.Sprint(n)}}}); err != nil {
			t.Fatal(err)
		}
	}
	ready(t, w, svc)
	suite.Eventually(t, suite.Patience, "the newest event is in the stream", func() error {
		stream, err := js.Stream(t.Context(), subjects.DefaultStream)
		if err != nil {
			return err
		}
		msg, err := stream.GetLastMsgForSubject(t.Context(), "flyte.apps.events.dashboard.production.storefront.updated")
		if err == nil && msg.Header.Get(subjects.HeaderAppStatus) != "ACTIVE" {
			err = fmt.Errorf("its status is %q", msg.Header.Get(subjects.HeaderAppStatus))
		}
		return err
	})
	slow.Signal(syscall.SIGCONT)
	slow.WaitFor(`"dashboard/production/storefront" ACTIVE at `)
	lines, skipped := 0, 0
	for line := range strings.Lines(slow.Stdout()) {
		if rest, of := strings.CutPrefix(line, `"dashboard/production/storefront" `); of {
			_, count, _ := strings.Cut(rest, " skipped ")
			n, err := strconv.Atoi(strings.TrimSpace(count))
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			lines, skipped = lines+1, skipped+n
		}
	}
	if skipped == 0 || lines >= 40 {
		t.Errorf("%d lines, %d skipped:\n%s", lines, skipped, slow.Stdout())
	}
}

// Each event has one report, although a worker is killed with events that it did not acknowledge.
func TestQueue(t *testing.T) {
	t.Parallel()
	w := world.Get(t)
	js := jetStream(t, w)
	workers := []*kubesuite.Command{start(t, w, "queue", "--ack-wait", "2s"), start(t, w, "queue", "--ack-wait", "2s")}
	svc := app(t, w, "queue")
	for n := range 40 {
		if _, err := w.Patch(t.Context(), svc, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"change": fmt.Sprint(n)}}}); err != nil {
			t.Fatal(err)
		}
		if n == 20 {
			workers[0].Signal(kill)
		}
	}
	ready(t, w, svc)
	ids := map[string]bool{}
	suite.Eventually(t, suite.Patience, "a report of every event", func() error {
		headers, err := events(t.Context(), js, "queue")
		if err != nil {
			return err
		}
		for _, h := range headers {
			ids[h.Get(subjects.CEID)] = true
		}
		reports, err := js.KeyValue(t.Context(), "reports")
		if err != nil {
			return err
		}
		stream, err := js.Stream(t.Context(), "KV_reports")
		if err != nil {
			return err
		}
		for id := range ids {
			if _, err := reports.Get(t.Context(), id); err != nil {
				return fmt.Errorf("%s: %w", id, err)
			}
		}
		if info, err := stream.Info(t.Context()); err != nil || info.State.LastSeq != info.State.Msgs {
			return fmt.Errorf("%w: a report was written twice: %+v, %w", suite.ErrFatal, info, err)
		}
		return nil
	})
	if len(ids) < 40 {
		t.Errorf("only %d events", len(ids))
	}
}

// events are the headers of the events of a project that has some.
func events(ctx context.Context, js jetstream.JetStream, project string) (headers []nats.Header, err error) {
	stream, err := js.Stream(ctx, subjects.DefaultStream)
	if err != nil {
		return nil, err
	}
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{"flyte.apps.events." + project + ".>"}})
	if err != nil {
		return nil, err
	}
	for {
		msg, err := consumer.Next(jetstream.FetchMaxWait(suite.Patience))
		if err != nil {
			return nil, err
		}
		headers = append(headers, msg.Headers())
		at, err := msg.Metadata()
		if err != nil {
			return nil, err
		}
		if at.NumPending == 0 {
			return headers, nil
		}
	}
}

// Two clusters in one stream, of which one has its subjects transformed. The second cluster is another
// namespace of the first.
func TestClusters(t *testing.T) {
	t.Parallel()
	w := world.Get(t)
	if err := w.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "west"}}); err != nil {
		t.Fatal(err)
	}
	west := w.Beside()
	west.NATS = w.NATS
	if _, err := west.Serve(t.Context(), nil, "--cluster-name", "west", "--namespaces", "west", "--prefix", "west.apps", "--stream", "WEST", "--bucket", "west"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := west.Stop(); err != nil {
			t.Error(err)
		}
	})
	js := jetStream(t, w)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "CENTRAL", Duplicates: 100 * time.Millisecond, Sources: []*jetstream.StreamSource{
			{Name: subjects.DefaultStream, SubjectTransforms: []jetstream.SubjectTransformConfig{{Source: "flyte.apps.events.>", Destination: "east.apps.events.>"}}},
			{Name: "WEST"},
		},
	}); err != nil {
		t.Fatal(err)
	}
	both := start(t, w, "clusters", "--cluster", "east=flyte-apps", "--cluster", "west=west")
	both.WaitFor("east mark ")
	both.WaitFor("west mark ")
	for cluster, namespace := range map[string]string{"east": "", "west": "west"} {
		svc, err := w.Create(t.Context(), testenv.App{Project: "clusters", Domain: "production", Name: "storefront-" + cluster, Namespace: namespace})
		if err != nil {
			t.Fatal(err)
		}
		ready(t, w, svc)
		both.WaitFor(cluster + ` event "clusters/production/storefront-` + cluster + `" created `)
		both.WaitFor(cluster + ` event "clusters/production/storefront-` + cluster + `" updated `)
	}
}

// The auditor's file has every event, also of a bridge.
func TestAudit(t *testing.T) {
	t.Parallel()
	w := world.Get(t)
	file := filepath.Join(t.TempDir(), "apps.db")
	before := time.Now().UTC().Format(time.RFC3339Nano)
	start(t, w, "audit", "--file", file, "record")
	svc := app(t, w, "audit")
	ready(t, w, svc)
	at := func(instant, want string) {
		t.Helper()
		suite.Eventually(t, suite.Patience, "the auditor reports "+want, func() error {
			if out := start(t, w, "audit", "--file", file, "at", "audit/production/storefront", instant).Wait(); !strings.Contains(out, want) {
				return errors.New(out)
			}
			return nil
		})
	}
	at(time.Now().Add(time.Hour).UTC().Format(time.RFC3339Nano), "was ACTIVE since ")
	at(before, "did not exist, or not yet in this file")
}
