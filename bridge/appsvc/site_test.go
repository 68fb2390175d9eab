package appsvc_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/bridge/appsvc"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// site is a namespace of a cluster and a JetStream server, for replicas of
// appbridge: the bridge and the app service, as the program joins them.
type site struct {
	*testenv.Cluster
	t         *testing.T
	namespace string
	url       string // of NATS
	names     subjects.Subjects
}

// newSite makes a site with a namespace of its own, or in the given one, and with
// a NATS server of its own, or at the given URL.
func newSite(t *testing.T, c *testenv.Cluster, namespace, url string) *site {
	t.Helper()
	s := &site{Cluster: c, t: t, namespace: namespace, url: url}
	if namespace == "" {
		s.namespace = newNamespace(t, c)
	}
	if url == "" {
		s.url = suite.NATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()}).ClientURL()
	}
	return s.as(subjects.DefaultPrefix)
}

// dial connects a client, which is closed with the test.
func (s *site) dial(opts ...nats.Option) *nats.Conn {
	s.t.Helper()
	opts = append([]nats.Option{nats.Timeout(patience), nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond), nats.ReconnectJitter(0, 0), nats.ReconnectBufSize(-1)}, opts...)
	nc, err := nats.Connect(s.url, opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(nc.Close)
	return nc
}

// siteReplica is a bridge and an app service at work.
type siteReplica struct {
	bridge  *bridge.Bridge
	service *appsvc.Service
	logs    *observer.ObservedLogs
	metrics *prometheus.Registry // of the app service
}

// siteConfig is how a replica differs from the others.
type siteConfig struct {
	name    string      // of the replica, which then takes part in the leader election
	kube    rest.Config // who it is in Kubernetes; the zero value is an administrator
	bridge  func(*bridge.Config)
	service func(*appsvc.Config)
	user    nats.Option // as whom the bridge connects
	apps    nats.Option // as whom the app service connects
	alone   bool        // the bridge, without an app service
}

func (s *site) bridgeConfig(name string) bridge.Config {
	cfg := bridge.Config{
		ClusterName: clusterName, Namespaces: []string{s.namespace},
		Prefix: subjects.DefaultPrefix, Stream: subjects.DefaultStream, Bucket: subjects.DefaultBucket,
		StreamReplicas: 1, Encoding: bridge.EncodingJSON, App: kservice.Config{BaseDomain: "apps.example.com"},
		WatchBufferSize: 10000, PendingBytes: 256 << 20, FlushTimeout: patience, MaxDelay: patience,
	}
	if name != "" {
		cfg.LeaderElect, cfg.LeaseNamespace, cfg.LeaseName, cfg.Identity = true, s.namespace, "appbridge", name
	}
	return cfg
}

func (s *site) serviceConfig() appsvc.Config {
	return appsvc.Config{
		Prefix: subjects.DefaultPrefix, InboxPrefix: "_INBOX", MaxReads: 4, MaxPendingReads: 400, MaxWrites: 1000,
		Version: "1.2.3", ClusterName: clusterName, App: kservice.Config{BaseDomain: "apps.example.com"},
		EnableWrites: true, Namespaces: []string{s.namespace},
		Deploy: kservice.DeployConfig{
			Namespace: s.namespace, DefaultRequestTimeout: 5 * time.Minute, MaxRequestTimeout: time.Hour,
			SuffixTemplate: "{{ project }}-{{ domain }}",
		},
	}
}

// replica starts a replica and waits until it can be asked. It ends with the test.
func (s *site) replica(cfg siteConfig) *siteReplica {
	s.t.Helper()
	kube := rest.CopyConfig(&cfg.kube)
	if kube.Host == "" {
		kube = rest.CopyConfig(s.Config)
	}
	kube.QPS = -1
	core, logs := observer.New(zap.InfoLevel)
	log := zap.New(core)
	r := &siteReplica{logs: logs, metrics: prometheus.NewRegistry()}
	shared, own := s.bridgeConfig(cfg.name), s.serviceConfig()
	if cfg.bridge != nil {
		cfg.bridge(&shared)
	}
	if cfg.service != nil {
		cfg.service(&own)
	}
	option := func(o nats.Option) nats.Option {
		if o == nil {
			return func(*nats.Options) error { return nil }
		}
		return o
	}
	var err error
	nc := s.dial(append(natsconn.Options("bridge", log), nats.ReconnectWait(20*time.Millisecond), option(cfg.user))...)
	if r.bridge, err = bridge.New(shared, kube, nc, log, prometheus.NewRegistry()); err != nil {
		s.t.Fatal(err)
	}
	if r.service, err = appsvc.New(own, r.bridge, kube, s.dial(option(cfg.apps)), log, r.metrics); err != nil {
		s.t.Fatal(err)
	}
	background(s.t, r.bridge.Run)
	if !cfg.alone {
		background(s.t, r.service.Run)
	}
	s.t.Cleanup(func() {
		if s.t.Failed() {
			for _, e := range logs.FilterLevelExact(zap.WarnLevel).All() {
				s.t.Logf("%s %s %v", cfg.name, e.Message, e.ContextMap())
			}
		}
	})
	soon(s.t, "the replica is ready", func() error {
		return errors.Join(r.bridge.Synced(), r.bridge.Ready())
	})
	return r
}

// serve runs an app service on a cache that is there.
func (s *site) serve(cfg appsvc.Config, cache appsvc.Cache, kube *rest.Config, nc *nats.Conn) {
	s.t.Helper()
	service, err := appsvc.New(cfg, cache, kube, nc, zap.NewNop(), prometheus.NewRegistry())
	if err != nil {
		s.t.Fatal(err)
	}
	background(s.t, service.Run)
	// The list of a domain is the endpoint that is registered last.
	ping := s.id("ping")
	subject, err := s.as(cfg.Prefix).names.APIList(ping.Project, ping.Domain)
	if err != nil {
		s.t.Fatal(err)
	}
	soon(s.t, "the app service listens", func() error {
		a, err := s.ask(s.t.Context(), nc, subject, nil)
		if err != nil {
			return err
		}
		return a.err()
	})
}

// as is the site seen by who uses another prefix.
func (s *site) as(prefix string) *site {
	s.t.Helper()
	names, err := subjects.New(prefix)
	if err != nil {
		s.t.Fatal(err)
	}
	other := *s
	other.names = names
	return &other
}

// id is an app of the project shop.
func (s *site) id(name string) subjects.AppID {
	return subjects.AppID{Project: "shop", Domain: "production", Name: name}
}

// app is an app that says in its image who it is and what was wanted of it.
func (s *site) app(id subjects.AppID, version int) testenv.App {
	return testenv.App{
		Project: id.Project, Domain: id.Domain, Name: id.Name, Namespace: s.namespace,
		Image: siteImage(id, version),
	}
}

// siteImage has the id in hex: the name of an image has no upper-case letters.
func siteImage(id subjects.AppID, version int) string {
	return fmt.Sprintf("registry.example.com/%x:v%d", id.String(), version)
}

// siteAnswer is the answer to a request.
type siteAnswer struct {
	code    subjects.Code // 0: it went well
	text    string        // of the error
	outcome subjects.Outcome
	version string // Flyte-Resource-Version
	header  nats.Header
	body    []byte
}

// err is the failure that the answer tells of.
func (a *siteAnswer) err() error {
	if a.code == 0 {
		return nil
	}
	return fmt.Errorf("%d %s: %s", int(a.code), a.code, a.text)
}

// ask makes a request. The error is that of NATS, not of the service.
func (s *site) ask(ctx context.Context, nc *nats.Conn, subject string, body proto.Message) (*siteAnswer, error) {
	msg := nats.NewMsg(subject)
	msg.Header.Set(subjects.HeaderContentType, subjects.ContentTypeProtobuf)
	if body != nil {
		var err error
		if msg.Data, err = proto.Marshal(body); err != nil {
			return nil, err
		}
	}
	got, err := nc.RequestMsgWithContext(ctx, msg)
	if err != nil {
		return nil, err
	}
	a := &siteAnswer{
		text: got.Header.Get(subjects.HeaderServiceError), outcome: subjects.Outcome(got.Header.Get(subjects.HeaderOutcome)),
		version: got.Header.Get(subjects.HeaderResourceVersion), header: got.Header, body: got.Data,
	}
	if code := got.Header.Get(subjects.HeaderServiceErrorCode); code != "" {
		if a.code, err = subjects.ParseCode(code); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// op asks for an operation on an app.
func (s *site) op(nc *nats.Conn, op subjects.APIOp, id subjects.AppID, body proto.Message) (*siteAnswer, error) {
	subject, err := s.names.API(op, id)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	a, err := s.ask(ctx, nc, subject, body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", subject, err)
	}
	return a, nil
}

// well is op, of which a failure is an error as well. It asks again where Kubernetes was too slow and
// nothing was written.
func (s *site) well(nc *nats.Conn, op subjects.APIOp, id subjects.AppID, body proto.Message) (*siteAnswer, error) {
	a, err := s.op(nc, op, id, body)
	for deadline := time.Now().Add(patience); err == nil && a.late() && strings.Contains(a.text, "nothing was written") && time.Now().Before(deadline); {
		a, err = s.op(nc, op, id, body)
	}
	if err == nil && a.err() != nil {
		err = fmt.Errorf("%s %s: %w", op, id, a.err())
	}
	return a, err
}

// late reports whether Kubernetes was too slow for the service; the write may have been done.
func (a *siteAnswer) late() bool {
	return a.code == subjects.CodeUnavailable || a.code == subjects.CodeDeadlineExceeded
}

// wanted is the request for an app.
func wanted(app testenv.App) *appv1.CreateRequest {
	return &appv1.CreateRequest{App: &appv1.App{
		Metadata: &appv1.Meta{Id: &appv1.Identifier{Project: app.Project, Domain: app.Domain, Name: app.Name}},
		Spec: &appv1.Spec{AppPayload: &appv1.Spec_Container{Container: &appv1.Container{
			Image: app.Image, Ports: []*appv1.ContainerPort{{ContainerPort: 8080}},
		}}},
	}}
}

// mustDo ends the test when something that has to work does not.
func mustDo(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func fromUnstructured(from *unstructured.Unstructured, into any) error {
	return runtime.DefaultUnstructuredConverter.FromUnstructured(from.Object, into)
}

// metric is the sum of a metric of the app service over its labels.
func (r *siteReplica) metric(t *testing.T, name string) float64 {
	t.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == name {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}
