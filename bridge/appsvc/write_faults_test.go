package appsvc_test

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv/network"
)

// fault is what happens to the first request with a method for a resource:
// before is done first, and with lost its answer does not arrive.
type fault struct {
	method, resource string
	before           func()
	lost             bool
	hit              atomic.Bool
}

func (f *fault) wrap(cfg *rest.Config) *rest.Config {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method != f.method || !strings.Contains(r.URL.Path, "/"+f.resource) || f.hit.Swap(true) {
				return next.RoundTrip(r)
			}
			if f.before != nil {
				f.before()
			}
			answer, err := next.RoundTrip(r)
			if f.lost && err == nil {
				_, _ = io.Copy(io.Discard, answer.Body)
				return nil, errors.Join(answer.Body.Close(), errors.New("connection reset by peer"))
			}
			return answer, err
		})
	})
	return cfg
}

// faulty is a service beside the place's own, whose requests to Kubernetes meet
// a fault.
func (p *place) faulty(t *testing.T, f *fault) *world {
	t.Helper()
	w := serve(t, func(s *setup) { s.cfg, s.cache, s.kube = p.cfg, p.bridge, f.wrap(admin(p.Cluster)) })
	t.Cleanup(func() {
		if !f.hit.Load() {
			t.Errorf("there was no %s of %s", f.method, f.resource)
		}
		if got := w.metric("appbridge_api_write_retries_total"); got < 1 && f.resource == "services" {
			t.Errorf("%v retries are counted, want one at least", got)
		}
	})
	return w
}

// Somebody writes between the read and the write: nothing of his is lost.
func TestConflicts(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	ctx := t.Context()
	id := func(name string) subjects.AppID { return subjects.AppID{Project: "shop", Domain: "dev", Name: name} }
	label := func(svc *servingv1.Service) func() {
		return func() {
			if _, err := p.SetLabel(ctx, svc, "team", "ml"); err != nil {
				t.Error(err)
			}
		}
	}
	// taken gives a Service to another app, where it is.
	taken := func(svc *servingv1.Service) func() {
		return func() {
			patch := map[string]any{"metadata": map[string]any{"annotations": map[string]any{kservice.AnnotationAppID: "other/dev/taken"}}}
			if _, err := p.Patch(ctx, svc, patch); err != nil {
				t.Error(err)
			}
		}
	}
	t.Run("update", func(t *testing.T) {
		svc := p.create(p.app(id("update")))
		w := p.faulty(t, &fault{method: http.MethodPut, resource: "services", before: label(svc)})
		w.outcome(w.json(w.subject(subjects.APIDeploy, id("update")), deployment("registry.example.com/hello:2")), subjects.OutcomeUpdated)
		if now := p.present(svc.Name); now.Labels["team"] != "ml" || now.Spec.Template.Spec.Containers[0].Image != "registry.example.com/hello:2" {
			t.Errorf("got %v", now)
		}
	})
	t.Run("update of what is another app's by then", func(t *testing.T) {
		svc := p.create(p.app(id("taken")))
		w := p.faulty(t, &fault{method: http.MethodPut, resource: "services", before: taken(svc)})
		w.refused(w.json(w.subject(subjects.APIDeploy, id("taken")), deployment("registry.example.com/hello:2")), subjects.CodeFailedPrecondition, "belongs to another app")
		if now := p.present(svc.Name); now.Spec.Template.Spec.Containers[0].Image != "registry.example.com/hello:1" {
			t.Errorf("got %v", now)
		}
	})
	t.Run("create", func(t *testing.T) {
		w := p.faulty(t, &fault{method: http.MethodPost, resource: "services", before: func() {
			first := p.app(id("create"))
			first.Labels = map[string]string{"team": "ml"}
			if _, err := p.Create(ctx, first); err != nil {
				t.Error(err)
			}
		}})
		w.outcome(w.json(w.subject(subjects.APIDeploy, id("create")), deployment("registry.example.com/hello:2")), subjects.OutcomeUpdated)
		if now := p.present(kservice.Name(id("create"))); now.Labels["team"] != "ml" || now.Spec.Template.Spec.Containers[0].Image != "registry.example.com/hello:2" {
			t.Errorf("got %v", now)
		}
	})
	t.Run("create of what is another app's by then", func(t *testing.T) {
		one, other := subjects.AppID{Project: "b-c", Domain: "dev", Name: "a"}, subjects.AppID{Project: "c", Domain: "dev", Name: "a-b"}
		var svc *servingv1.Service
		w := p.faulty(t, &fault{method: http.MethodPost, resource: "services", before: func() {
			var err error
			if svc, err = p.Create(ctx, p.app(other)); err != nil {
				t.Error(err)
			}
		}})
		w.refused(w.json(w.subject(subjects.APIDeploy, one), deployment("registry.example.com/hello:2")), subjects.CodeFailedPrecondition, "belongs to another app")
		p.untouched(svc)
	})
	t.Run("stop", func(t *testing.T) {
		svc := p.create(p.app(id("stop")))
		w := p.faulty(t, &fault{method: http.MethodPatch, resource: "services", before: label(svc)})
		w.outcome(w.json(w.subject(subjects.APIStop, id("stop")), nil), subjects.OutcomeStopped)
		if now := p.present(svc.Name); now.Labels["team"] != "ml" || now.Labels[kservice.LabelStopped] != "true" {
			t.Errorf("got %v", now)
		}
	})
	for _, write := range []struct {
		op     subjects.APIOp
		method string
	}{{subjects.APIStop, http.MethodPatch}, {subjects.APIDelete, http.MethodDelete}} {
		t.Run(string(write.op)+" of what is given to another app by then", func(t *testing.T) {
			id := id("given-" + string(write.op))
			svc := p.create(p.app(id))
			w := p.faulty(t, &fault{method: write.method, resource: "services", before: taken(svc)})
			w.outcome(w.json(w.subject(write.op, id), nil), subjects.OutcomeMissing)
			if now := p.present(svc.Name); now.UID != svc.UID || now.Labels[kservice.LabelStopped] != "" || now.Generation != svc.Generation {
				t.Errorf("got %v", now)
			}
		})
	}
	t.Run("stop of what is another app's by then", func(t *testing.T) {
		one, other := subjects.AppID{Project: "v-w", Domain: "dev", Name: "u"}, subjects.AppID{Project: "w", Domain: "dev", Name: "u-v"}
		svc := p.create(p.app(one))
		var theirs *servingv1.Service
		w := p.faulty(t, &fault{method: http.MethodPatch, resource: "services", before: func() {
			err := p.Delete(ctx, svc)
			if err == nil {
				theirs, err = p.Create(ctx, p.app(other))
			}
			if err != nil {
				t.Error(err)
			}
		}})
		w.outcome(w.json(w.subject(subjects.APIStop, one), nil), subjects.OutcomeMissing)
		p.untouched(theirs)
	})
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		t.Run("stop whose Revision is another app's by then, at "+method, func(t *testing.T) {
			id := id("revision-" + strings.ToLower(method))
			svc, err := p.Ready(ctx, p.create(p.app(id)), "", 1)
			p.must(err)
			theirs := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{
				Namespace: p.namespace, Name: svc.Status.LatestReadyRevisionName, Labels: map[string]string{kservice.LabelServiceUID: "another"},
			}}
			theirs.Spec.Containers = []corev1.Container{{Name: "app", Image: "registry.example.com/theirs:1"}}
			w := p.faulty(t, &fault{method: method, resource: "revisions", before: func() {
				err := p.DeleteRevision(ctx, svc)
				if err == nil {
					err = p.Client.Create(ctx, theirs)
				}
				if err != nil {
					t.Error(err)
				}
			}})
			w.outcome(w.json(w.subject(subjects.APIStop, id), nil), subjects.OutcomeStopped)
			p.must(p.Client.Get(ctx, client.ObjectKeyFromObject(theirs), theirs))
		})
	}
	t.Run("delete of what is another app's by then", func(t *testing.T) {
		one, other := subjects.AppID{Project: "y-z", Domain: "dev", Name: "x"}, subjects.AppID{Project: "z", Domain: "dev", Name: "x-y"}
		svc := p.create(p.app(one))
		var theirs *servingv1.Service
		w := p.faulty(t, &fault{method: http.MethodDelete, resource: "services", before: func() {
			err := p.Delete(ctx, svc)
			if err == nil {
				theirs, err = p.Create(ctx, p.app(other))
			}
			if err != nil {
				t.Error(err)
			}
		}})
		w.outcome(w.json(w.subject(subjects.APIDelete, one), nil), subjects.OutcomeMissing)
		p.untouched(theirs)
	})
	t.Run("replica that is another pod by then", func(t *testing.T) {
		svc := p.create(p.app(id("replica")))
		first := p.pod("replica", svc.Name)
		var second *corev1.Pod
		w := p.faulty(t, &fault{method: http.MethodDelete, resource: "pods", before: func() {
			if err := p.Client.Delete(ctx, first); err != nil {
				t.Error(err)
			}
			second = p.pod("replica", svc.Name)
		}})
		w.outcome(w.json(w.subject(subjects.APIDeleteReplica, id("replica")), &appv1.ReplicaIdentifier{Name: "replica"}), subjects.OutcomeMissing)
		p.podStays(second)
	})
}

// The answer of Kubernetes gets lost: what was done counts as done.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	id := func(name string) subjects.AppID { return subjects.AppID{Project: "shop", Domain: "dev", Name: name} }
	for _, name := range []string{"update", "stop", "delete", "replica"} {
		p.create(p.app(id(name)))
	}
	pod := p.pod("one", kservice.Name(id("replica")))
	t.Run("create", func(t *testing.T) {
		w := p.faulty(t, &fault{method: http.MethodPost, resource: "services", lost: true})
		answer := w.outcome(w.json(w.subject(subjects.APIDeploy, id("create")), deployment("registry.example.com/hello:1")), subjects.OutcomeCreated)
		if got, want := answer.Header.Get(subjects.HeaderUID), string(p.present(kservice.Name(id("create"))).UID); got != want {
			t.Errorf("the answer has the uid %q, want %q", got, want)
		}
		w.outcome(w.json(w.subject(subjects.APIDeploy, id("create")), deployment("registry.example.com/hello:1")), subjects.OutcomeUnchanged)
	})
	t.Run("update", func(t *testing.T) {
		w := p.faulty(t, &fault{method: http.MethodPut, resource: "services", lost: true})
		w.outcome(w.json(w.subject(subjects.APIDeploy, id("update")), deployment("registry.example.com/hello:2")), subjects.OutcomeUpdated)
	})
	t.Run("stop", func(t *testing.T) {
		w := p.faulty(t, &fault{method: http.MethodPatch, resource: "services", lost: true})
		w.outcome(w.json(w.subject(subjects.APIStop, id("stop")), nil), subjects.OutcomeStopped)
		w.outcome(w.json(w.subject(subjects.APIStop, id("stop")), nil), subjects.OutcomeUnchanged)
	})
	t.Run("delete", func(t *testing.T) {
		w := p.faulty(t, &fault{method: http.MethodDelete, resource: "services", lost: true})
		w.outcome(w.json(w.subject(subjects.APIDelete, id("delete")), nil), subjects.OutcomeDeleted)
	})
	t.Run("delete-replica", func(t *testing.T) {
		w := p.faulty(t, &fault{method: http.MethodDelete, resource: "pods", lost: true})
		w.outcome(w.json(w.subject(subjects.APIDeleteReplica, id("replica")), &appv1.ReplicaIdentifier{Name: pod.Name}), subjects.OutcomeDeleted)
		p.podGone(pod)
	})
}

// Kubernetes does not answer a request: the write is answered before the stock CLI gives up, and the
// answer says whether something may have been written. So is a write of the same app behind it.
func TestKubernetesHangs(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	const written, not = "; it may have been written: ask again", "; nothing was written"
	for _, test := range []struct {
		op                       subjects.APIOp
		method, resource, ending string
	}{
		{subjects.APIDeploy, http.MethodGet, "services", not},
		{subjects.APIDeploy, http.MethodPut, "services", written},
		{subjects.APIStop, http.MethodPatch, "services", written},
		{subjects.APIStop, http.MethodGet, "revisions", written},
		{subjects.APIDelete, http.MethodDelete, "services", written},
		{subjects.APIDeleteReplica, http.MethodGet, "pods", not},
		{subjects.APIDeleteReplica, http.MethodDelete, "pods", written},
	} {
		t.Run(string(test.op)+" at "+test.method+" "+test.resource, func(t *testing.T) {
			t.Parallel()
			id := subjects.AppID{Project: "shop", Domain: "dev", Name: strings.ToLower(string(test.op) + "-" + test.method)}
			svc, err := p.Create(t.Context(), p.app(id))
			p.must(err)
			_, err = p.Ready(t.Context(), svc, "", 1)
			p.must(err)
			pod := p.pod(id.Name, svc.Name)
			hung := make(chan struct{})
			hangs := sync.OnceFunc(func() { close(hung) })
			cfg := admin(p.Cluster)
			cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return roundTripper(func(r *http.Request) (*http.Response, error) {
					answer, err := next.RoundTrip(r)
					if err != nil || r.Method != test.method || !strings.Contains(r.URL.Path, "/"+test.resource+"/") {
						return answer, err
					}
					hangs()
					<-r.Context().Done()
					return nil, errors.Join(answer.Body.Close(), r.Context().Err())
				})
			})
			w := serve(t, func(s *setup) { s.cfg, s.cache, s.kube, s.ownTimeouts = p.cfg, p.bridge, cfg, true })
			body := map[subjects.APIOp]string{
				subjects.APIDeploy:        `{"app": {"spec": {"container": {"image": "registry.example.com/hello:2"}}}}`,
				subjects.APIDeleteReplica: `{"name": "` + pod.Name + `"}`,
			}[test.op]
			var both sync.WaitGroup
			both.Go(func() {
				out := ""
				soon(t, "a request that hangs", func() error { // on a busy machine the time may be over before
					out = w.req(test.op, id, body)
					select {
					case <-hung:
						return nil
					default:
						return errNotYet
					}
				})
				for _, want := range []string{subjects.HeaderServiceErrorCode + ": 50", "kubernetes", test.ending} {
					if !strings.Contains(out, want) {
						t.Errorf("got %s, want %s", out, want)
					}
				}
				if late := strings.Contains(out, subjects.HeaderServiceErrorCode+": 504"); test.ending == written && !late {
					t.Errorf("got %s, want the code 504", out)
				}
			})
			select {
			case <-hung:
			case <-time.After(patience):
				t.Error("nothing hangs")
			}
			both.Go(func() {
				if out := w.req(subjects.APIStop, id, ""); !strings.Contains(out, subjects.HeaderServiceErrorCode) && !strings.Contains(out, subjects.HeaderOutcome) {
					t.Errorf("the stop behind it: got %s, want an answer", out)
				}
			})
			both.Wait()
		})
	}
}

// While Kubernetes is away writes fail soon, without telling where it is; they
// go well when it is back in time.
func TestKubernetesAway(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	at, err := url.Parse(p.Config.Host)
	p.must(err)
	proxy, err := network.NewProxy(at.Host)
	p.must(err)
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	cfg := admin(p.Cluster)
	cfg.Host = "https://" + proxy.Addr()
	w := serve(t, func(s *setup) { s.cfg, s.cache, s.kube = p.cfg, p.bridge, cfg })
	w.outcome(w.json(w.subject(subjects.APIDeploy, checkout), deployment("registry.example.com/hello:1")), subjects.OutcomeCreated)

	p.must(proxy.Cut())
	for _, op := range writeOps()[:2] {
		began := time.Now()
		text := w.refused(w.json(w.subject(op, checkout), map[subjects.APIOp]*appv1.CreateRequest{
			subjects.APIDeploy: deployment("registry.example.com/hello:2"), subjects.APIStop: {},
		}[op]), subjects.CodeUnavailable, "kubernetes: ")
		if took := time.Since(began); took < 2*time.Second || took > patience {
			t.Errorf("%s: it took %s", op, took)
		}
		host, port, _ := strings.Cut(proxy.Addr(), ":")
		if strings.Contains(text, host) || strings.Contains(text, port) || strings.Contains(text, "://") {
			t.Errorf("%s: it tells where Kubernetes is: %q", op, text)
		}
	}

	request, _, err := appv1.Encode(deployment("registry.example.com/hello:2"), subjects.ContentTypeJSON)
	p.must(err)
	for deadline := time.Now().Add(patience); ; {
		p.must(proxy.Cut())
		inbox := w.nc.NewInbox()
		sub, err := w.nc.SubscribeSync(inbox)
		p.must(err)
		before, began := w.metric("appbridge_api_write_retries_total"), time.Now()
		p.must(w.nc.PublishRequest(w.subject(subjects.APIDeploy, checkout), inbox, request))
		soon(t, "it is tried again", func() error {
			if w.metric("appbridge_api_write_retries_total") < before+2 {
				return errNotYet
			}
			return nil
		})
		p.must(proxy.Heal())
		answer := w.next(sub)
		if time.Since(began) > 3*time.Second && answer.Header.Get(subjects.HeaderServiceErrorCode) != "" && time.Now().Before(deadline) {
			continue // a busy machine: it was not back in time
		}
		w.outcome(answer, subjects.OutcomeUpdated)
		return
	}
}

// A right that is missing is named.
func TestMissingRights(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	user, err := p.User("writer-" + p.namespace)
	p.must(err)
	w := serve(t, func(s *setup) { s.cfg, s.cache, s.kube = p.cfg, p.bridge, user })
	in := " in namespace " + p.namespace
	w.refused(w.json(w.subject(subjects.APIDeploy, checkout), deployment("registry.example.com/hello:1")),
		subjects.CodeInternal, "lacks the right get on services.serving.knative.dev"+in)
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "reader"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{kservice.GroupVersion().Group}, Resources: []string{"services"}, Verbs: []string{"get"}},
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}},
		},
	}
	p.must(p.Client.Create(t.Context(), role))
	p.must(p.Client.Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "writer-" + p.namespace}},
	}))
	soon(t, "the right to get is given", func() error {
		if w.json(w.subject(subjects.APIStop, checkout), nil).Header.Get(subjects.HeaderServiceErrorCode) != "" {
			return errNotYet
		}
		return nil
	})
	w.refused(w.json(w.subject(subjects.APIDeploy, checkout), deployment("registry.example.com/hello:1")),
		subjects.CodeInternal, "lacks the right create on services.serving.knative.dev"+in)
	svc := p.create(p.app(checkout))
	w.refused(w.json(w.subject(subjects.APIDeploy, checkout), deployment("registry.example.com/hello:2")),
		subjects.CodeInternal, "lacks the right update on services.serving.knative.dev"+in)
	w.refused(w.json(w.subject(subjects.APIStop, checkout), nil), subjects.CodeInternal, "lacks the right patch on services.serving.knative.dev"+in)
	w.refused(w.json(w.subject(subjects.APIDelete, checkout), nil), subjects.CodeInternal, "lacks the right delete on services.serving.knative.dev"+in)
	pod := p.pod("one", svc.Name)
	w.refused(w.json(w.subject(subjects.APIDeleteReplica, checkout), &appv1.ReplicaIdentifier{Name: pod.Name}),
		subjects.CodeInternal, "lacks the right delete on pods"+in)
	p.podStays(pod)
	p.untouched(svc)
	stranger := serve(t, func(s *setup) {
		s.cfg, s.cache = p.cfg, p.bridge
		s.kube = rest.AnonymousClientConfig(admin(p.Cluster))
		s.kube.BearerToken = "nonsense"
	})
	text := stranger.refused(stranger.json(stranger.subject(subjects.APIDelete, checkout), nil), subjects.CodeInternal, "does not accept the credentials of appbridge")
	if strings.Contains(text, "nonsense") {
		t.Errorf("it tells the credentials: %q", text)
	}
}

// A write whose time ends while it waits for its turn is late, not an internal error.
func TestLateForItsTurn(t *testing.T) {
	t.Parallel()
	entered, pass := make(chan struct{}, 1), make(chan struct{})
	w := serve(t, func(s *setup) {
		s.cfg.MaxWrites, s.writeTimeout = 1, 200*time.Millisecond
		s.kube = &rest.Config{Host: "http://127.0.0.1:1", QPS: -1, Transport: roundTripper(func(*http.Request) (*http.Response, error) {
			entered <- struct{}{}
			<-pass
			return nil, errors.New("nothing there")
		})}
	})
	first := w.sendUntil(w.subject(subjects.APIStop, checkout), entered)
	w.refused(w.ask(w.subject(subjects.APIStop, subjects.AppID{Project: "p", Domain: "d", Name: "a"}), "", nil), subjects.CodeDeadlineExceeded, "not done within 200ms")
	close(pass)
	w.refused(w.next(first), subjects.CodeDeadlineExceeded)
}
