package appsvc_test

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// counted is a Kubernetes that only counts who asks it.
func counted(requests *atomic.Int64) *rest.Config {
	return &rest.Config{Host: "http://127.0.0.1:1", Transport: roundTripper(func(*http.Request) (*http.Response, error) {
		requests.Add(1)
		return &http.Response{StatusCode: http.StatusNotFound, Header: http.Header{"Content-Type": {"application/json"}}, Body: http.NoBody}, nil
	})}
}

// The organization is the one part of an id that no subject bounds: a long one is
// refused, and one that is there already does not keep others' apps from their readers.
func TestLongOrganization(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	cache := &memory{}
	w := serve(t, func(s *setup) { s.cache, s.kube = cache, counted(&requests) })
	request := deployment("registry.example.com/hello:1")
	request.App.Metadata = &appv1.Meta{Id: &appv1.Identifier{Org: strings.Repeat("o", 254)}}
	w.refused(w.json(w.subject(subjects.APIDeploy, checkout), request), subjects.CodeInvalidArgument, "app.metadata.id.org", "254 bytes")
	if got := requests.Load(); got != 0 {
		t.Errorf("%d requests to Kubernetes, want none", got)
	}

	for i, bytes := range []int{1, 20_000, 180_000, 1} {
		id := subjects.AppID{Project: "p", Domain: "d", Name: fmt.Sprintf("app-%d", i)}
		// JSON writes six bytes for each of these.
		cache.add(cached(t, id, func(a *testenv.App) { a.Org = strings.Repeat("\u0001", bytes) }))
	}
	list := &appv1.ListRequest{Request: &appv1.CommonListRequest{Limit: 1}}
	got := 0
	for pages := 1; ; pages++ {
		page, _ := w.page(w.listSubject("", ""), list)
		got += len(page.GetApps())
		list.Request.Token = page.GetToken()
		if page.GetToken() == "" {
			break
		}
		if len(page.GetToken()) > 200 || pages > 4 {
			t.Fatalf("page %d has a token of %d bytes", pages, len(page.GetToken()))
		}
	}
	if want := 3; got != want { // the third does not fit into any message
		t.Errorf("got %d apps, want %d", got, want)
	}
	w.refused(w.ask(w.subject(subjects.APIGet, subjects.AppID{Project: "p", Domain: "d", Name: "app-2"}), "", nil), subjects.CodeInternal, "max_payload")
}

// Knative's validation runs for two requests at one time. The others wait for their turn, and no
// longer than a write may take.
func TestChecksAtOneTime(t *testing.T) {
	t.Parallel()
	const requests, most = 6, 2
	entered, release := make(chan struct{}, requests), make(chan struct{})
	w := serve(t, func(s *setup) {
		s.writeTimeout = 3 * time.Second // two requests must have begun by then
		s.check = func(*servingv1.Service, *appv1.App, kservice.DeployConfig) []string {
			entered <- struct{}{}
			<-release
			return []string{"app.spec: checked"}
		}
	})
	var late, checked atomic.Int64
	var answers sync.WaitGroup
	released := sync.OnceFunc(func() { close(release) })
	t.Cleanup(released)
	for i := range requests {
		subject := w.subject(subjects.APIDeploy, subjects.AppID{Project: "p", Domain: "d", Name: fmt.Sprintf("app-%d", i)})
		body, err := protojson.Marshal(deployment("registry.example.com/hello:1"))
		if err != nil {
			t.Fatal(err)
		}
		answers.Go(func() {
			answer, err := w.nc.RequestMsg(&nats.Msg{Subject: subject, Data: body, Header: nats.Header{subjects.HeaderContentType: {subjects.ContentTypeJSON}}}, patience)
			switch {
			case err != nil:
				t.Error(err)
			case answer.Header.Get(subjects.HeaderServiceErrorCode) == subjects.CodeDeadlineExceeded.HeaderValue():
				late.Add(1)
			case strings.Contains(answer.Header.Get(subjects.HeaderServiceError), "app.spec: checked"):
				checked.Add(1)
			default:
				t.Errorf("got %v", answer.Header)
			}
		})
	}
	soon(t, "the requests without a turn are refused", func() error {
		if got := len(entered); got > most {
			return fmt.Errorf("%w: %d are checked at one time, want %d", suite.ErrFatal, got, most)
		}
		if got := late.Load(); got != requests-most {
			return fmt.Errorf("%d are, %d are checked", got, len(entered))
		}
		return nil
	})
	released()
	answers.Wait()
	if got := checked.Load(); got != most {
		t.Errorf("%d were checked, want %d", got, most)
	}
}

// An answer that no message can hold is an error, not silence.
func TestAnswerTooLarge(t *testing.T) {
	t.Parallel()
	cache := &memory{}
	svc := cached(t, checkout)
	cache.add(svc)
	for i := range 9000 {
		cache.pods = append(cache.pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: svc.Namespace, Name: fmt.Sprintf("%s-%d", svc.Name, i), Labels: map[string]string{kservice.LabelService: svc.Name},
		}})
	}
	w := serve(t, func(s *setup) { s.cache = cache })
	w.refused(w.ask(w.subject(subjects.APIReplicas, checkout), "", nil), subjects.CodeInternal, "max_payload")
}

func TestBodyTooLarge(t *testing.T) {
	t.Parallel()
	w := serve(t, func(s *setup) { s.cache, s.maxPayload = &memory{}, 4<<20 })
	for subject, most := range map[string]int{w.listSubject("", ""): 64 << 10, w.subject(subjects.APIDeploy, checkout): 512 << 10} {
		body := bytes.Repeat([]byte(" "), most+1)
		w.refused(w.ask(subject, "", body), subjects.CodeInvalidArgument, fmt.Sprintf("body: %d bytes: want at most %d", len(body), most))
	}
}

// An id of which no object can have the name has no app, which Kubernetes need not be asked.
func TestOddIDs(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	w := serve(t, func(s *setup) { s.cache, s.kube = &memory{}, counted(&requests) })
	for _, name := range []string{"a/b", "%2e", "..", "a b", "ä", "Ω?x=1"} {
		id := subjects.AppID{Project: "p", Domain: "d", Name: name}
		w.outcome(w.ask(w.subject(subjects.APIStop, id), "", nil), subjects.OutcomeMissing)
		w.outcome(w.ask(w.subject(subjects.APIDelete, id), "", nil), subjects.OutcomeMissing)
		w.refused(w.json(w.subject(subjects.APIDeploy, id), deployment("registry.example.com/hello:1")), subjects.CodeInvalidArgument, "app.metadata.id.name")
		w.refused(w.ask(w.subject(subjects.APIGet, id), "", nil), subjects.CodeNotFound)
	}
	if got := requests.Load(); got != 0 {
		t.Errorf("%d requests to Kubernetes, want none", got)
	}
}

// The body of an error has every problem, also where the header has no room for them.
func TestEveryProblemIsNamed(t *testing.T) {
	t.Parallel()
	w := serve(t)
	request := deployment("registry.example.com/hello:1")
	resources := &appv1.Resources{}
	for range 30 {
		resources.Limits = append(resources.Limits, &appv1.Resources_ResourceEntry{Name: appv1.Resources_CPU, Value: "lots"})
	}
	request.App.Spec.GetContainer().Resources = resources
	answer := w.json(w.subject(subjects.APIDeploy, checkout), request)
	w.refused(answer, subjects.CodeInvalidArgument, "limits[0].value")
	for i := range resources.Limits {
		if field := fmt.Sprintf("app.spec.container.resources.limits[%d].value", i); !strings.Contains(string(answer.Data), field) {
			t.Errorf("the body does not name %s", field)
		}
	}
}

// Who has the answer to a write reads what was written.
func TestReadYourWrite(t *testing.T) {
	t.Parallel()
	p := newPlace(t, func(s *setup) { s.cacheTimeout = patience })
	for i := range 20 {
		id := subjects.AppID{Project: "shop", Domain: "dev", Name: fmt.Sprintf("app-%d", i)}
		version := ""
		get := func() *appv1.App {
			answer := p.ask(p.subject(subjects.APIGet, id), "", nil)
			if got := answer.Header.Get(subjects.HeaderResourceVersion); got != version {
				t.Errorf("get has version %s, want %s", got, version)
			}
			return read(p.world, answer, &appv1.GetResponse{}).GetApp()
		}
		write := func(op subjects.APIOp, request proto.Message, want subjects.Outcome) {
			version = p.outcome(p.json(p.subject(op, id), request), want).Header.Get(subjects.HeaderResourceVersion)
		}
		write(subjects.APIDeploy, p.deploy(id, "registry.example.com/hello:1"), subjects.OutcomeCreated)
		if got := get().GetSpec().GetContainer().GetImage(); got != "registry.example.com/hello:1" {
			t.Errorf("got image %q", got)
		}
		write(subjects.APIStop, nil, subjects.OutcomeStopped)
		if got := get().GetSpec().GetDesiredState(); got != appv1.Spec_DESIRED_STATE_STOPPED {
			t.Errorf("got %s", got)
		}
		write(subjects.APIDelete, nil, subjects.OutcomeDeleted)
		p.refused(p.ask(p.subject(subjects.APIGet, id), "", nil), subjects.CodeNotFound)
	}
}

// A default timeout that Knative refuses is refused before Kubernetes is asked, and does no harm to
// an app that has its own.
func TestDefaultTimeout(t *testing.T) {
	t.Parallel()
	w := serve(t, func(s *setup) { s.cfg.Deploy.DefaultRequestTimeout, s.writeTimeout = 2*time.Hour, 100*time.Millisecond })
	subject := w.subject(subjects.APIDeploy, checkout)
	w.refused(w.json(subject, deployment("registry.example.com/hello:1")), subjects.CodeInvalidArgument,
		"--default-request-timeout: knative refuses it: expected 0 <= 7200 <= 3600")
	own := deployment("registry.example.com/hello:1")
	own.App.Spec.Timeouts = &appv1.TimeoutConfig{RequestTimeout: durationpb.New(time.Hour)}
	if text := w.json(subject, own).Header.Get(subjects.HeaderServiceError); !strings.Contains(text, "kubernetes") {
		t.Errorf("got %q, want an error of Kubernetes, which is not there", text)
	}
}

// A variable of the app stands in the place of the configured one: the API server lets
// no name come twice.
func TestDefaultEnv(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	w := serve(t, func(s *setup) {
		s.cache, s.kube = p.bridge, admin(p.Cluster)
		s.cfg.Namespaces, s.cfg.Deploy.Namespace = []string{p.namespace}, p.namespace
		s.cfg.Deploy.DefaultEnv = map[string]string{"REGION": "eu", "LEVEL": "info"}
	})
	request := deployment("registry.example.com/hello:1")
	request.App.Spec.GetContainer().Env = []*appv1.KeyValuePair{{Key: "LEVEL", Value: "debug"}, {Key: "MODE", Value: "fast"}}
	w.outcome(w.json(w.subject(subjects.APIDeploy, checkout), request), subjects.OutcomeCreated)
	var got []string
	for _, v := range p.present(kservice.Name(checkout)).Spec.Template.Spec.Containers[0].Env {
		got = append(got, v.Name+"="+v.Value)
	}
	want := []string{"REGION=eu", "LEVEL=debug", "MODE=fast"}
	if len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
		t.Errorf("got %q, want first %q", got, want)
	}
}
