package appsvc_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/appsvc"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

const (
	// patience bounds every wait. Nothing is expected to come near it.
	patience    = suite.Patience
	clusterName = "test"
	// endpoints is how many the service has.
	endpoints = 10
)

var errNotYet = errors.New("not yet")

// memory is a cache without a cluster.
type memory struct {
	mu      sync.Mutex
	synced  error
	apps    map[subjects.AppID]appsvc.Entry
	pods    []corev1.Pod
	podsErr error
}

func (m *memory) Synced() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.synced
}

func (m *memory) App(id subjects.AppID) (appsvc.Entry, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	entry, ok := m.apps[id]
	return entry, ok
}

func (m *memory) Services(match func(*app.CachedService) bool) (found []*app.CachedService) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, entry := range m.apps {
		if match(entry.Service) {
			found = append(found, entry.Service)
		}
	}
	return found
}

func (m *memory) Pods(namespace, service string) ([]corev1.Pod, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var found []corev1.Pod
	for _, pod := range m.pods {
		if pod.Namespace == namespace && pod.Labels[kservice.LabelService] == service {
			found = append(found, pod)
		}
	}
	return found, m.podsErr
}

// keeper converts as the bridge of these tests does.
var keeper = app.Keeper{App: kservice.Config{BaseDomain: "apps.example.com"}, Form: subjects.ContentTypeJSON}

// add puts a Knative Service into the cache when it has an app's id.
func (m *memory) add(svc *kservice.Service) {
	kept := keeper.Keep(svc)
	if !kept.IsApp() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.apps == nil {
		m.apps = map[subjects.AppID]appsvc.Entry{}
	}
	m.apps[kept.ID] = appsvc.Entry{ID: kept.ID, Service: kept}
}

func (m *memory) remove(id subjects.AppID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.apps, id)
}

// setup is what a service is made from.
type setup struct {
	cfg appsvc.Config
	url string // of the NATS server; empty: one of its own
	// clientURL is that of the server of the client; empty: url.
	clientURL string
	// maxPayload of its server; 0: the usual one.
	maxPayload int32
	cache      appsvc.Cache
	kube       *rest.Config
	// The timeouts of the service; 0: much, or with ownTimeouts its own.
	writeTimeout, queueTimeout, readTimeout time.Duration
	ownTimeouts                             bool
	cacheTimeout                            time.Duration                                                        // 0: the service's own
	check                                   func(*servingv1.Service, *appv1.App, kservice.DeployConfig) []string // nil: kservice.Check
}

// world is a service at work and somebody who asks it.
type world struct {
	t       testing.TB
	nc      *nats.Conn // of the client
	names   subjects.Subjects
	cfg     appsvc.Config
	metrics *prometheus.Registry
	service *appsvc.Service
	stop    func() error
}

func dial(t testing.TB, url string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, nats.Timeout(patience), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// background runs something until the returned function, or the end of the test,
// stops it.
func background(t testing.TB, run func(context.Context) error) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(patience):
			return errors.New("it does not stop")
		}
	})
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return stop
}

// serve runs a service, with writes and without a cluster unless a change says
// otherwise.
func serve(t testing.TB, change ...func(*setup)) *world {
	t.Helper()
	s := setup{
		cfg: appsvc.Config{
			Prefix: subjects.DefaultPrefix, InboxPrefix: "_INBOX", MaxReads: 4, MaxPendingReads: 400, MaxWrites: 100,
			Version: "1.2.3", ClusterName: clusterName,
			App:          kservice.Config{BaseDomain: "apps.example.com"},
			EnableWrites: true,
			Deploy: kservice.DeployConfig{
				Namespace: "flyte", DefaultRequestTimeout: 5 * time.Minute, MaxRequestTimeout: time.Hour,
				SuffixTemplate: "{{ project }}-{{ domain }}",
			},
		},
		cache: &memory{},
		kube:  &rest.Config{Host: "http://127.0.0.1:1"},
	}
	for _, c := range change {
		c(&s)
	}
	names, err := subjects.New(s.cfg.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, names: names, cfg: s.cfg, metrics: prometheus.NewRegistry()}
	if s.url == "" {
		s.url = suite.NATS(t, &server.Options{MaxPayload: s.maxPayload}).ClientURL()
	}
	w.nc = dial(t, cmp.Or(s.clientURL, s.url))
	own := dial(t, s.url)
	if w.service, err = appsvc.New(s.cfg, s.cache, s.kube, own, zap.NewNop(), w.metrics); err != nil {
		t.Fatal(err)
	}
	if s.cacheTimeout > 0 {
		w.service.SetCacheTimeout(s.cacheTimeout)
	}
	if s.check != nil {
		w.service.SetCheck(s.check)
	}
	if !s.ownTimeouts {
		w.service.SetWriteTimeout(cmp.Or(s.writeTimeout, patience))
		w.service.SetKubeTimeout(10 * time.Second) // more than its own, for busy machines
		w.service.SetReadTimeouts(cmp.Or(s.queueTimeout, patience), cmp.Or(s.readTimeout, patience))
	}
	w.stop = background(t, w.service.Run)
	soon(t, "the service listens", func() error {
		info, err := w.info()
		if err == nil && len(info.Endpoints) != endpoints {
			err = fmt.Errorf("%d of %d endpoints", len(info.Endpoints), endpoints)
		}
		return err
	})
	return w
}

func soon(t testing.TB, what string, check func() error) {
	t.Helper()
	suite.Eventually(t, patience, what, check)
}

func (w *world) info() (info micro.Info, err error) {
	msg, err := w.nc.Request("$SRV.INFO."+appsvc.ServiceName, nil, time.Second)
	if err != nil {
		return info, err
	}
	return info, json.Unmarshal(msg.Data, &info)
}

// subject is that of an operation on an app.
func (w *world) subject(op subjects.APIOp, id subjects.AppID) string {
	w.t.Helper()
	subject, err := w.names.API(op, id)
	if err != nil {
		w.t.Fatal(err)
	}
	return subject
}

func (w *world) listSubject(project, domain string) string {
	w.t.Helper()
	subject, err := w.names.APIList(project, domain)
	if err != nil {
		w.t.Fatal(err)
	}
	return subject
}

// ask sends a request with a content type, empty for none, and waits for the answer.
func (w *world) ask(subject, contentType string, body []byte) *nats.Msg {
	w.t.Helper()
	msg := &nats.Msg{Subject: subject, Data: body}
	if contentType != "" {
		msg.Header = nats.Header{subjects.HeaderContentType: {contentType}}
	}
	answer, err := w.nc.RequestMsg(msg, patience)
	if err != nil {
		w.t.Fatalf("%s: %v", subject, err)
	}
	return answer
}

// json asks with a message in JSON, nil for no body.
func (w *world) json(subject string, m proto.Message) *nats.Msg {
	w.t.Helper()
	if m == nil {
		return w.ask(subject, "", nil)
	}
	body, err := protojson.Marshal(m)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.ask(subject, subjects.ContentTypeJSON, body)
}

// read takes an answer that is no error, in the form that it says to have.
func read[T proto.Message](w *world, answer *nats.Msg, into T) T {
	w.t.Helper()
	if code := answer.Header.Get(subjects.HeaderServiceErrorCode); code != "" {
		w.t.Fatalf("got the error %s %s", code, answer.Header.Get(subjects.HeaderServiceError))
	}
	form := answer.Header.Get(subjects.HeaderContentType)
	if err := appv1.Decode(answer.Data, form, into); err != nil {
		w.t.Fatalf("read a %s of the form %q: %v", into.ProtoReflect().Descriptor().Name(), form, err)
	}
	return into
}

// outcome takes the answer of a write, which has to have come to that.
func (w *world) outcome(answer *nats.Msg, want subjects.Outcome) *nats.Msg {
	w.t.Helper()
	if code := answer.Header.Get(subjects.HeaderServiceErrorCode); code != "" {
		w.t.Fatalf("got the error %s %s, want %s", code, answer.Header.Get(subjects.HeaderServiceError), want)
	}
	if got := answer.Header.Get(subjects.HeaderOutcome); got != string(want) {
		w.t.Errorf("it came to %q, want %q", got, want)
	}
	return answer
}

// refused takes an answer that has to be an error which says all of that.
func (w *world) refused(answer *nats.Msg, code subjects.Code, says ...string) string {
	w.t.Helper()
	text := answer.Header.Get(subjects.HeaderServiceError)
	if got := answer.Header.Get(subjects.HeaderServiceErrorCode); got != code.HeaderValue() {
		w.t.Errorf("got the code %q (%s) and %.200q, want %s", got, text, answer.Data, code.HeaderValue())
	}
	for _, s := range says {
		if !strings.Contains(text, s) {
			w.t.Errorf("it says %q, want it to say %q", text, s)
		}
	}
	if err := wellFormed(answer); err != nil {
		w.t.Error(err)
	}
	return text
}

// wellFormed holds an error to its form: one printable line, in the header and
// in the body.
func wellFormed(answer *nats.Msg) error {
	text := answer.Header.Get(subjects.HeaderServiceError)
	switch {
	case !strings.HasSuffix(text, "…") && string(answer.Data) != text+"\n", !strings.HasPrefix(string(answer.Data), strings.TrimSuffix(text, "…")):
		return fmt.Errorf("the body is %q, want the line of the header, %q", answer.Data, text)
	case bytes.Count(answer.Data, []byte("\n")) != 1:
		return fmt.Errorf("the body is %q, want one line", answer.Data)
	case text == "", strings.TrimSpace(text) != text, strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Errorf("the error is %q, want one line of text", text)
	case len(text) > 2<<10:
		return fmt.Errorf("the error is %d bytes long", len(text))
	}
	return nil
}

// identifier is an app's id as a message.
func identifier(id subjects.AppID) *appv1.Identifier {
	return &appv1.Identifier{Project: id.Project, Domain: id.Domain, Name: id.Name}
}

// result is how many requests for an operation have ended in a way.
func (w *world) result(op, result string) (count float64) {
	w.t.Helper()
	families, err := w.metrics.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["op"] == op && labels["result"] == result {
				count += m.GetCounter().GetValue()
			}
		}
	}
	return count
}

// metric is the sum of a metric over its labels.
func (w *world) metric(name string) float64 {
	w.t.Helper()
	families, err := w.metrics.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}
