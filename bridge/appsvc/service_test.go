package appsvc_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/bridge/appsvc"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

var checkout = subjects.AppID{Project: "shop", Domain: "production", Name: "checkout"}

// cached is an app of the cache, with what change does to it.
func cached(t testing.TB, id subjects.AppID, change ...func(*testenv.App)) *kservice.Service {
	t.Helper()
	a := testenv.App{Project: id.Project, Domain: id.Domain, Name: id.Name}
	for _, c := range change {
		c(&a)
	}
	return serviceFrom(t, a.Service())
}

func TestInfo(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, version, want string }{
		{"a version", "1.2.3", "1.2.3"},
		{"no semantic version", "v1 (dirty)", "0.0.0"},
		{"no version", "", "0.0.0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := serve(t, func(s *setup) { s.cfg.Version = test.version })
			info, err := w.info()
			if err != nil {
				t.Fatal(err)
			}
			if info.Name != appsvc.ServiceName || info.Version != test.want {
				t.Errorf("got %s %s, want %s %s", info.Name, info.Version, appsvc.ServiceName, test.want)
			}
			want := map[string]string{"cluster": clusterName, "version": test.version, "inbox-prefix": "_INBOX", "writes": "true"}
			for key, value := range want {
				if got, ok := info.Metadata[key]; !ok || got != value {
					t.Errorf("metadata %s: got %q, want %q", key, got, value)
				}
			}
			var subject []string
			for _, e := range info.Endpoints {
				subject = append(subject, e.Subject)
				if e.QueueGroup != appsvc.ServiceName {
					t.Errorf("endpoint %s has the queue group %q, want %q", e.Name, e.QueueGroup, appsvc.ServiceName)
				}
			}
			wanted := w.names.APIListFilters()
			for _, op := range []subjects.APIOp{
				subjects.APIGet, subjects.APIReplicas, subjects.APIIngress, subjects.APIDeploy,
				subjects.APIStop, subjects.APIDelete, subjects.APIDeleteReplica,
			} {
				filter, err := w.names.APIFilter(op)
				if err != nil {
					t.Fatal(err)
				}
				wanted = append(wanted, filter)
			}
			slices.Sort(subject)
			slices.Sort(wanted)
			if !slices.Equal(subject, wanted) {
				t.Errorf("it listens on %q, want %q", subject, wanted)
			}
		})
	}
}

func TestStats(t *testing.T) {
	t.Parallel()
	w := serve(t, func(s *setup) { s.cfg.MaxWrites = 7 })
	get := w.subject(subjects.APIGet, checkout)
	w.refused(w.ask(get, "", nil), subjects.CodeNotFound)
	w.refused(w.ask(get, "", []byte("{")), subjects.CodeInvalidArgument)
	read(w, w.ask(w.subject(subjects.APIIngress, checkout), "", nil), &appv1.Ingress{})
	w.refused(w.ask(w.listSubject("", ""), "text/plain", nil), subjects.CodeInvalidArgument)
	soon(t, "what the service counts", func() error {
		msg, err := w.nc.Request("$SRV.STATS."+appsvc.ServiceName, nil, patience)
		if err != nil {
			return err
		}
		var stats micro.Stats
		if err := json.Unmarshal(msg.Data, &stats); err != nil {
			return err
		}
		for _, e := range stats.Endpoints {
			var data appsvc.Stats
			if err := json.Unmarshal(e.Data, &data); err != nil || data != (appsvc.Stats{MaxReads: 4, MaxWrites: 7}) {
				return errors.Join(errNotYet, err)
			}
			// What is refused later than in the handler is in the metrics alone.
			want := map[string][2]int{"get": {2, 0}, "ingress": {1, 0}, "list": {1, 1}}[e.Name]
			if e.NumRequests != want[0] || e.NumErrors != want[1] {
				return errNotYet
			}
		}
		return nil
	})
	for name, want := range map[string]float64{"appbridge_api_requests_total": 4, "appbridge_api_active_writes": 0} {
		soon(t, name, func() error {
			if w.metric(name) != want {
				return errNotYet
			}
			return nil
		})
	}
}

// What is not known is asked for again, and nothing is made of it meanwhile.
func TestNotSynced(t *testing.T) {
	t.Parallel()
	cache := &memory{synced: errors.New("starting: the informers are not in sync yet")}
	cache.add(cached(t, checkout))
	w := serve(t, func(s *setup) { s.cache = cache })
	for _, op := range []subjects.APIOp{subjects.APIGet, subjects.APIReplicas, subjects.APIStop, subjects.APIDelete} {
		w.refused(w.ask(w.subject(op, checkout), "", nil), subjects.CodeUnavailable, "not in sync yet")
	}
	w.refused(w.ask(w.listSubject("", ""), "", nil), subjects.CodeUnavailable, "not in sync yet")
	ingress := read(w, w.ask(w.subject(subjects.APIIngress, checkout), "", nil), &appv1.Ingress{})
	if got, want := ingress.GetPublicUrl(), "https://checkout-shop-production.apps.example.com"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPodsNotKnown(t *testing.T) {
	t.Parallel()
	cache := &memory{podsErr: errors.New("the right list on pods in namespace flyte is missing: grant it by RBAC")}
	cache.add(cached(t, checkout))
	w := serve(t, func(s *setup) { s.cache = cache })
	w.refused(w.ask(w.subject(subjects.APIReplicas, checkout), "", nil), subjects.CodeUnavailable, "replicas: the right list on pods")
}

// blocked is a Kubernetes that answers nobody before it is released.
type blocked struct {
	asked    chan struct{} // one item for each request that waits
	released chan struct{}
	endless  bool // a request waits also after its own time is over
}

func newBlocked() *blocked {
	return &blocked{asked: make(chan struct{}, 100), released: make(chan struct{})}
}

func (b *blocked) RoundTrip(r *http.Request) (*http.Response, error) {
	b.asked <- struct{}{}
	done := r.Context().Done()
	if b.endless {
		done = nil
	}
	select {
	case <-b.released:
		return nil, errors.New("released")
	case <-done:
		return nil, r.Context().Err()
	}
}

func (b *blocked) config() *rest.Config {
	return &rest.Config{Host: "http://127.0.0.1:1", Transport: b}
}

// begin begins a stop of the app, and returns when it waits for Kubernetes.
func (w *world) begin(b *blocked) *nats.Subscription {
	w.t.Helper()
	return w.sendUntil(w.subject(subjects.APIStop, checkout), b.asked)
}

func (w *world) next(sub *nats.Subscription) *nats.Msg {
	w.t.Helper()
	msg, err := sub.NextMsg(patience)
	if err != nil {
		w.t.Fatal(err)
	}
	return msg
}

func TestMaxWrites(t *testing.T) {
	t.Parallel()
	kube, cache := newBlocked(), &memory{}
	kube.endless = true
	cache.add(cached(t, checkout))
	w := serve(t, func(s *setup) {
		s.cfg.MaxWrites, s.kube, s.cache, s.queueTimeout = 1, kube.config(), cache, 50*time.Millisecond
	})
	sub := w.begin(kube)
	other := subjects.AppID{Project: "other", Domain: "d", Name: "app"}
	for _, op := range []subjects.APIOp{subjects.APIDelete, subjects.APIStop} {
		w.refused(w.ask(w.subject(op, other), "", nil), subjects.CodeResourceExhausted, "max-app-writes: no turn within 50ms")
	}
	// Reads do not wait for writes.
	read(w, w.ask(w.subject(subjects.APIGet, checkout), "", nil), &appv1.GetResponse{})
	close(kube.released)
	w.refused(w.next(sub), subjects.CodeUnavailable)
	read(w, w.ask(w.subject(subjects.APIGet, checkout), "", nil), &appv1.GetResponse{})
}

// A write that is under way at the end gets its answer, and a new request none of
// the service's.
func TestStopping(t *testing.T) {
	t.Parallel()
	kube := newBlocked()
	w := serve(t, func(s *setup) { s.kube = kube.config() })
	sub := w.begin(kube)
	ended := make(chan error, 1)
	go func() { ended <- w.stop() }()
	soon(t, "the service takes nothing more", func() error {
		msg, err := w.nc.Request(w.subject(subjects.APIStop, subjects.AppID{Project: "p", Domain: "d", Name: "late"}), nil, 50*time.Millisecond)
		if errors.Is(err, nats.ErrNoResponders) {
			return nil
		}
		if err == nil {
			w.refused(msg, subjects.CodeUnavailable, "shutting down")
		}
		return errNotYet
	})
	w.refused(w.next(sub), subjects.CodeUnavailable, "the service is shutting down, try again")
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("it does not end")
	}
}

// A reply subject that is no inbox gets nothing: nobody has the service write
// where he may not.
func TestReplySubject(t *testing.T) {
	t.Parallel()
	w := serve(t, func(s *setup) { s.cfg.InboxPrefix = "_INBOX.apps" })
	event, err := w.names.Event(checkout, subjects.Created)
	if err != nil {
		t.Fatal(err)
	}
	everything, err := w.nc.SubscribeSync(">")
	if err != nil {
		t.Fatal(err)
	}
	var sent []string
	for _, reply := range []string{event, "_INBOX.other.1", "_INBOX.appsx.1", "_INBOX.apps", "$JS.API.STREAM.DELETE." + subjects.DefaultStream} {
		for _, op := range []subjects.APIOp{subjects.APIIngress, subjects.APIStop, subjects.APIGet} {
			subject := w.subject(op, checkout)
			if err := w.nc.PublishRequest(subject, reply, nil); err != nil {
				t.Fatal(err)
			}
			sent = append(sent, subject)
		}
		if err := w.nc.Publish(w.subject(subjects.APIIngress, checkout), nil); err != nil {
			t.Fatal(err)
		}
		sent = append(sent, w.subject(subjects.APIIngress, checkout))
	}
	const inbox = "_INBOX.apps.1"
	if err := w.nc.PublishRequest(w.subject(subjects.APIIngress, checkout), inbox, nil); err != nil {
		t.Fatal(err)
	}
	sent = append(sent, w.subject(subjects.APIIngress, checkout), inbox)
	soon(t, "each request is counted", func() error {
		if w.metric("appbridge_api_requests_total") != float64(len(sent)-1) {
			return errNotYet
		}
		return nil
	})
	if err := w.stop(); err != nil { // then all answers are out
		t.Fatal(err)
	}
	if err := w.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for {
		msg, err := everything.NextMsg(100 * time.Millisecond)
		if err != nil {
			break
		}
		// The service may ask whether a requester is still there.
		if !strings.HasSuffix(msg.Subject, ".trace.none") {
			got = append(got, msg.Subject)
		}
	}
	slices.Sort(got)
	slices.Sort(sent)
	if !slices.Equal(got, sent) {
		t.Errorf("there came %q, want %q", got, sent)
	}
}

// A connection that is closed for good ends the service, which says so.
func TestConnectionClosed(t *testing.T) {
	t.Parallel()
	s := suite.NATS(t, nil)
	own := dial(t, s.ClientURL())
	service, err := appsvc.New(serve(t).cfg, &memory{}, &rest.Config{Host: "http://127.0.0.1:1"}, own, zap.NewNop(), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- service.Run(t.Context()) }()
	client := &world{t: t, nc: dial(t, s.ClientURL())}
	soon(t, "the service listens", func() error { _, err := client.info(); return err })
	own.Close()
	select {
	case err := <-done:
		if !errors.Is(err, nats.ErrConnectionClosed) {
			t.Errorf("got %v, want %v", err, nats.ErrConnectionClosed)
		}
	case <-time.After(patience):
		t.Error("it does not end")
	}
}
