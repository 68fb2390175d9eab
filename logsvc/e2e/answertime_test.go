package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"golang.org/x/sync/errgroup"

	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// appService is the name of the service for app operations, which logsvc does not import.
const appService = "flyte-apps"

// question is a request to an endpoint.
type question struct {
	service, endpoint, body string
	// fresh: it is about an app that does not exist.
	fresh bool
}

func (q question) String() string {
	name := q.service + " " + q.endpoint + " " + q.body
	if q.fresh {
		name += " (no app)"
	}
	return name
}

const deployed = `{"app": {"spec": {"container": {"image": "registry.example.com/other:1", "ports": [{"containerPort": 8080}]}}}}`

// questions has at least one for each endpoint. REPLICA stands for the name of the app's pod.
func questions() []question {
	var all []question
	for _, endpoint := range []string{"get", "replicas", "ingress", "stop", "delete", "list", "list-project", "list-domain"} {
		all = append(all, question{service: appService, endpoint: endpoint})
	}
	return append(all,
		question{service: appService, endpoint: "deploy", body: deployed},
		question{service: appService, endpoint: "deploy", body: deployed, fresh: true},
		question{service: appService, endpoint: "delete-replica", body: `{"name": "REPLICA"}`},
		question{service: logsvc.ServiceName, endpoint: "get"},
		question{service: logsvc.ServiceName, endpoint: "get", body: `{"tail": "all"}`},
		question{service: logsvc.ServiceName, endpoint: "get", body: `{"replica": "REPLICA"}`},
		question{service: logsvc.ServiceName, endpoint: "get", fresh: true},
		question{service: logsvc.ServiceName, endpoint: "tail"},
		question{service: logsvc.ServiceName, endpoint: "tail", body: `{"follow": true}`},
		question{service: logsvc.ServiceName, endpoint: "tail", body: `{"follow": false}`},
		question{service: logsvc.ServiceName, endpoint: "open"},
	)
}

const (
	// answerLimit is when the answer to a request is due.
	answerLimit = 4 * time.Second
	// controlTime is how long the control of a request takes: a little less.
	controlTime = answerLimit - 500*time.Millisecond
)

// requester sends requests and measures how long their answers take.
type requester struct {
	nc      *nats.Conn
	control string            // a subject whose responder takes controlTime
	filters map[string]string // of the endpoints, by service and endpoint
}

func newRequester(t *testing.T, url string) *requester {
	t.Helper()
	a := &requester{control: nats.NewInbox(), filters: map[string]string{}}
	dial := func() *nats.Conn {
		t.Helper()
		nc, err := nats.Connect(url, nats.Timeout(patience))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
	a.nc = dial()
	responder := dial()
	_, err := responder.Subscribe(a.control, func(msg *nats.Msg) {
		time.AfterFunc(controlTime, func() { _ = msg.Respond(nil) }) // a request without a control fails
	})
	if err := errors.Join(err, responder.Flush()); err != nil {
		t.Fatal(err)
	}
	a.discover(t)
	return a
}

// discover finds the endpoints of all services.
func (a *requester) discover(t *testing.T) {
	t.Helper()
	infos, err := a.nc.SubscribeSync(a.nc.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	if err := a.nc.PublishRequest(micro.APIPrefix+"."+micro.InfoVerb.String(), infos.Subject, nil); err != nil {
		t.Fatal(err)
	}
	wait := patience
	for services := map[string]bool{}; ; {
		msg, err := infos.NextMsg(wait)
		if errors.Is(err, nats.ErrTimeout) && services[appService] && services[logsvc.ServiceName] {
			return
		}
		if err != nil {
			t.Fatalf("services %v: %v", services, err)
		}
		var info micro.Info
		if err := json.Unmarshal(msg.Data, &info); err != nil {
			t.Fatal(err)
		}
		services[info.Name] = true
		for _, e := range info.Endpoints {
			a.filters[info.Name+" "+e.Name] = e.Subject
		}
		if services[appService] && services[logsvc.ServiceName] {
			wait = time.Second // for one that this test does not know
		}
	}
}

// ask reports an answer that is late. A limit that is too long shows each time, a busy machine does not.
func (a *requester) ask(ctx context.Context, q question, app target) (answer *nats.Msg, err error) {
	for range 3 {
		answer, err = a.askOnce(ctx, q, app)
		if !errors.Is(err, errLate) {
			return answer, err
		}
	}
	return nil, err
}

var errLate = errors.New("late")

func (a *requester) askOnce(ctx context.Context, q question, app target) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	key, err := app.id.Key()
	if err != nil {
		return nil, err
	}
	subject := a.filters[q.service+" "+q.endpoint]
	for _, token := range strings.Split(key, ".") {
		subject = strings.Replace(subject, "*", token, 1)
	}
	answers := make(chan *nats.Msg, 64)
	sub, err := a.nc.ChanSubscribe(a.nc.NewInbox(), answers)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails on a closed connection only
	body := strings.ReplaceAll(q.body, "REPLICA", app.replica())
	began := time.Now()
	if err := a.nc.PublishRequest(subject, sub.Subject, []byte(body)); err != nil {
		return nil, err
	}
	control := make(chan error, 1)
	go func() {
		_, err := a.nc.RequestWithContext(ctx, a.control, nil)
		control <- err
	}()
	var limit <-chan time.Time
	var took time.Duration
	for {
		select {
		case msg := <-answers:
			switch {
			case msg.Header.Get(subjects.HeaderLogNote) == string(subjects.LogNoteWaiting): // the refusal has a limit as well
			case len(msg.Data) == 0 && msg.Header.Get(subjects.HeaderStatus) == subjects.StatusNoResponders && msg.Header.Get(subjects.HeaderLogEnd) == "":
				return nil, fmt.Errorf("%s: nobody serves %s", q, subject)
			default:
				return msg, nil
			}
		case err := <-control:
			if err != nil {
				return nil, fmt.Errorf("the control: %w", err)
			}
			took = time.Since(began)
			// As late as this machine is, the answer may be.
			limit = time.After(answerLimit - controlTime + 2*(took-controlTime))
		case <-limit:
			return nil, fmt.Errorf("%w: %s: no answer after %s; what waits for %s took %s",
				errLate, q, time.Since(began).Round(time.Millisecond), controlTime, took.Round(time.Millisecond))
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// hangs is which requests to the API server hang.
type hangs struct {
	mu    sync.Mutex
	all   bool
	seen  []string        // kinds of requests about the app named watch
	watch string          // an app's name
	apps  map[string]hang // by name
	hit   map[string]int  // how many requests hung, by name of the app
}

// hang is a kind of request of an app, and where it hangs.
type hang struct {
	kind string
	at   testenv.HangPoint
}

func (h *hangs) point(r *http.Request) testenv.HangPoint {
	url := r.URL.String()
	if r.Method == http.MethodPost { // the name of the object is not in its URL
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return testenv.HangNever
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		url += string(body)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all {
		return testenv.HangRequest
	}
	if h.watch != "" && strings.Contains(url, h.watch) {
		h.seen = append(h.seen, kindOf(r, h.watch))
	}
	for name, hang := range h.apps {
		if strings.Contains(url, name) && kindOf(r, name) == hang.kind {
			h.hit[name]++
			return hang.at
		}
	}
	return testenv.HangNever
}

// kindOf is what a request about an app asks for.
func kindOf(r *http.Request, app string) string {
	parts := strings.Split(r.URL.Path, "/")
	for i, part := range parts {
		if strings.Contains(part, app) {
			parts[i] = "{name}"
		}
	}
	// After /api/v1/namespaces/x or /apis/group/v1/namespaces/x.
	i := slices.Index(parts, "namespaces")
	return r.Method + " " + strings.Join(parts[max(0, min(i+2, len(parts)-1)):], "/")
}

// kinds are the requests that a question makes.
func (h *hangs) kinds(t *testing.T, a *requester, q question, app target) []string {
	t.Helper()
	h.mu.Lock()
	h.watch, h.seen = app.id.Name, nil
	h.mu.Unlock()
	answer, err := a.ask(t.Context(), q, app)
	if err != nil {
		t.Fatal(err)
	}
	noApp := q.fresh && q.service == logsvc.ServiceName
	if failed := answer.Header.Get(subjects.HeaderServiceError); failed != "" && !noApp {
		t.Errorf("%s: %s", q, failed)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watch = ""
	slices.Sort(h.seen)
	return slices.Compact(h.seen)
}

// plan has requests of one kind hang for an app.
func (h *hangs) plan(app string, kind hang) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.apps[app] = kind
}

// met reports how many requests of an app hung.
func (h *hangs) met(app string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hit[app]
}

func (h *hangs) hangAll(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = on
}

// target is the app of a question.
type target struct {
	id      subjects.AppID
	service string
	pod     *testenv.Pod // nil: there is no app
}

func (a target) replica() string { return a.service + "-1" }

// answerWorld is a bridge whose API server, kubelet and storage can fail it.
type answerWorld struct {
	*world
	proxy    *testenv.APIProxy
	hangs    hangs
	nats     *suite.ReloadableNATS
	settings func(denied string) string
	apps     atomic.Int64
}

// storage is what JetStream takes from the bridge.
const storage = `["$JS.API.>", "$KV.>", "flyte.apps.events.>"]`

func newAnswerWorld(t *testing.T) *answerWorld {
	t.Helper()
	dir := t.TempDir()
	w := &answerWorld{
		hangs: hangs{apps: map[string]hang{}, hit: map[string]int{}},
		settings: func(denied string) string {
			return fmt.Sprintf(`
jetstream {store_dir: %q}
authorization {timeout: 300, users: [
	{user: bridge, password: bridge, permissions: {subscribe: ">", publish: {allow: ">", deny: %s}}},
	{user: client, password: client}]}
`, dir, denied)
		},
	}
	beside := sharedWorld(t).Beside()
	w.nats = suite.NATSReloadable(t, w.settings("[]"))
	var err error
	if w.proxy, err = beside.APIProxy(testenv.APIProxyOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.proxy.Heal()
		if err := w.proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	w.proxy.Hang(w.hangs.point)
	files, err := beside.Dir("answers")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(files, "kubeconfig")
	if err := w.proxy.Kubeconfig(kubeconfig); err != nil {
		t.Fatal(err)
	}
	beside.NATS = strings.Replace(w.nats.ClientURL(), "//", "//bridge:bridge@", 1)
	w.world = owned(t, func() (*world, error) {
		return serve(context.Background(), beside, "--kubeconfig", kubeconfig, "--enable-writes", "--max-app-writes", "8", "--flush-timeout", "5m")
	})
	return w
}

// target makes an app for a question.
func (w *answerWorld) target(t *testing.T, q question) target {
	t.Helper()
	// No name is part of another.
	a := testenv.App{Project: "shop", Domain: "production", Name: fmt.Sprintf("answer%dx", w.apps.Add(1))}
	svc := a.Service()
	made := target{id: a.ID(), service: svc.Name}
	if q.fresh {
		return made
	}
	if err := w.Client.Create(t.Context(), svc); err != nil {
		t.Fatal(err)
	}
	made.pod = w.pod(t, svc.Name, made.replica())
	made.pod.Write("hello")
	return made
}

// Whatever outside party hangs, each request to each endpoint of both services has its answer, or its
// refusal, within 4 s.
func TestAnswerTime(t *testing.T) {
	t.Parallel()
	w := newAnswerWorld(t)
	a := newRequester(t, strings.Replace(w.nats.ClientURL(), "//", "//client:client@", 1))
	for endpoint := range a.filters {
		if !slices.ContainsFunc(questions(), func(q question) bool { return q.service+" "+q.endpoint == endpoint }) {
			t.Errorf("there is no question to endpoint %s", endpoint)
		}
	}
	t.Run("requests to the API server", func(t *testing.T) { w.testRequests(t, a) })
	t.Run("kubelet", func(t *testing.T) { w.testKubelet(t, a) })
	// These are last: the caches are behind afterwards.
	t.Run("API server", func(t *testing.T) {
		w.hangs.hangAll(true)
		defer w.hangs.hangAll(false)
		w.testCrowd(t, a)
	})
	t.Run("storage", func(t *testing.T) {
		w.nats.Reload(t, w.settings(storage))
		w.testCrowd(t, a)
		w.nats.Reload(t, w.settings("[]"))
		eventually(t, "the bridge is ready", func() error {
			text, status, err := w.bridge.Get(t.Context(), "/readyz")
			if err == nil && status != http.StatusOK {
				err = errors.New(text)
			}
			return err
		})
	})
}

// testRequests has each request that an operation makes hang, one at a time: before the API server has
// it, before the answer, and inside the answer.
func (w *answerWorld) testRequests(t *testing.T, a *requester) {
	methods := map[string]bool{}
	var group errgroup.Group
	group.SetLimit(6) // fewer than the requests that the log service makes at a time
	for _, q := range questions() {
		kinds := w.hangs.kinds(t, a, q, w.target(t, q))
		t.Logf("%s: %q", q, kinds)
		for _, kind := range kinds {
			method, path, _ := strings.Cut(kind, " ")
			methods[method] = true
			methods[path] = true
			for _, at := range []testenv.HangPoint{testenv.HangRequest, testenv.HangAnswer, testenv.HangBody} {
				app := w.target(t, q)
				w.hangs.plan(app.id.Name, hang{kind, at})
				group.Go(func() error {
					if _, err := a.ask(t.Context(), q, app); err != nil {
						t.Errorf("%s hangs at %d: %v", kind, at, err)
					}
					// A stream goes on to make requests after its first answer.
					if w.hangs.met(app.id.Name) == 0 && q.endpoint != "tail" && q.endpoint != "open" {
						t.Errorf("%s: no %s hung", q, kind)
					}
					return nil
				})
			}
		}
	}
	_ = group.Wait() // returns no error
	for _, want := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, "pods/{name}/log"} {
		if !methods[want] {
			t.Errorf("no operation made a %s", want)
		}
	}
}

// testKubelet has the logs of a replica hang, alone and beside one that can be read.
func (w *answerWorld) testKubelet(t *testing.T, a *requester) {
	var group errgroup.Group
	for name, hinder := range map[string]func(*testenv.Pod){
		"hangs":     func(p *testenv.Pod) { p.Hang(true) },
		"is silent": func(p *testenv.Pod) { p.Silence(true) },
		"is slow":   func(p *testenv.Pod) { p.Slow(time.Second, time.Second) },
	} {
		for _, q := range questions() {
			if q.service != logsvc.ServiceName || q.fresh {
				continue
			}
			app := w.target(t, q)
			if !strings.Contains(q.body, "replica") {
				w.pod(t, app.service, app.service+"-2").Write("hello")
			}
			app.pod.Write("more", "and more", "and more", "and more", "and more")
			hinder(app.pod)
			t.Cleanup(func() {
				app.pod.Hang(false)
				app.pod.Silence(false)
				app.pod.Slow(0, 0)
			})
			group.Go(func() error {
				if _, err := a.ask(t.Context(), q, app); err != nil {
					t.Errorf("the kubelet %s: %v", name, err)
				}
				return nil
			})
		}
	}
	_ = group.Wait() // returns no error
}

// testCrowd sends each question several times at once: requests wait for those before them, too.
func (w *answerWorld) testCrowd(t *testing.T, a *requester) {
	const each = 5
	var group errgroup.Group
	for _, q := range questions() {
		app := w.target(t, q)
		for range each {
			group.Go(func() error {
				if _, err := a.ask(t.Context(), q, app); err != nil {
					t.Error(err)
				}
				return nil
			})
		}
	}
	_ = group.Wait() // returns no error
}
