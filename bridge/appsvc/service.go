package appsvc

import (
	"context"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

const (
	// ServiceName is the name of the micro service, and of the queue group in which all replicas
	// share the requests.
	ServiceName = "flyte-apps"
	// stopGrace is how long a write may run after the end of the service.
	stopGrace = time.Second
)

// Service answers requests for app operations. Make one with New.
type Service struct {
	cfg        Config
	names      subjects.Subjects
	cache      Cache
	kube       *kube
	nc         *nats.Conn
	log        *zap.Logger
	metrics    *metrics
	locks      locks
	limits     *limits
	requesters *requesters
	timeouts   timeouts
	check      func(*servingv1.Service, *appv1.App, kservice.DeployConfig) []string // kservice.Check, except in tests
}

// New makes a service on a connection of its own. It reads from cache, and changes apps through
// kube. It registers its metrics with reg.
func New(cfg Config, cache Cache, kube *rest.Config, nc *nats.Conn, log *zap.Logger, reg prometheus.Registerer) (*Service, error) {
	names, err := subjects.New(cfg.Prefix)
	if err != nil {
		return nil, err
	}
	s := &Service{
		cfg: cfg, names: names, cache: cache, nc: nc, log: log,
		limits: newLimits(cfg), requesters: newRequesters(nc), timeouts: timeouts{queueTimeout, request.AnswerTime, request.AnswerTime, cacheTimeout},
		check: kservice.Check,
	}
	s.metrics = newMetrics(reg, s.limits)
	if cfg.EnableWrites {
		if s.kube, err = newKube(kube); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Run serves until ctx is done (nil) or the connection is closed for good. It is called once. It
// returns when every request that arrived has its answer, and closes the connection; it interrupts
// writes that take long.
func (s *Service) Run(ctx context.Context) (err error) {
	cfg, err := s.requestConfig()
	if err != nil {
		return err
	}
	probing, stopProbing := context.WithCancel(context.WithoutCancel(ctx))
	probed := make(chan error, 1)
	go func() { probed <- s.requesters.run(probing) }()
	defer func() {
		stopProbing()
		if failed := <-probed; err == nil {
			err = failed
		}
	}()
	return request.Serve(ctx, s.nc, s.nc, cfg, s.log)
}

// operation is one operation of the service at one endpoint.
type operation struct {
	name     string // in the metrics
	endpoint string
	subject  string // of the endpoint
	serve    func(ctx context.Context, r *apiRequest) (*reply, error)
	write    bool
}

const opList = "list"

func (s *Service) operations() ([]operation, error) {
	all := []operation{
		{name: string(subjects.APIGet), serve: s.get},
		{name: string(subjects.APIReplicas), serve: s.replicas},
		{name: string(subjects.APIIngress), serve: s.ingress},
		{name: string(subjects.APIDeploy), serve: s.deploy, write: true},
		{name: string(subjects.APIStop), serve: s.stop, write: true},
		{name: string(subjects.APIDelete), serve: s.remove, write: true},
		{name: string(subjects.APIDeleteReplica), serve: s.removeReplica, write: true},
	}
	for i := range all {
		filter, err := s.names.APIFilter(subjects.APIOp(all[i].name))
		if err != nil {
			return nil, err
		}
		all[i].endpoint, all[i].subject = all[i].name, filter
	}
	// A list request is for everything, for a project, or for a domain of it.
	for i, filter := range s.names.APIListFilters() {
		all = append(all, operation{name: opList, endpoint: []string{opList, opList + "-project", opList + "-domain"}[i], subject: filter, serve: s.list})
	}
	return all, nil
}

func (s *Service) requestConfig() (request.Config, error) {
	cfg := request.Config{
		Name: ServiceName, Version: s.cfg.Version,
		Description: "Flyte's apps: get, list, replicas, ingress; deploy, stop, delete, delete-replica",
		Metadata:    map[string]string{"cluster": s.cfg.ClusterName, "writes": strconv.FormatBool(s.cfg.EnableWrites)},
		InboxPrefix: s.cfg.InboxPrefix,
		Stats:       func() any { return s.stats() },
		StopGrace:   stopGrace,
	}
	operations, err := s.operations()
	for _, op := range operations {
		cfg.Endpoints = append(cfg.Endpoints, request.Endpoint{
			Name: op.endpoint, Subject: op.subject, MaxBody: s.maxBody(op),
			Begin:  func(ctx context.Context, r *request.Request) (func(), error) { return s.begin(ctx, op, r) },
			Refuse: func(r *request.Request, err error) { s.refuse(op, r, err) },
			Ignore: func(result string) { s.metrics.ended(op.name, result, time.Now()) },
		})
	}
	return cfg, err
}

// Stats are what `nats micro stats` shows for each endpoint.
type Stats struct {
	ActiveReads  int `json:"active_reads"`
	PendingReads int `json:"pending_reads"`
	MaxReads     int `json:"max_reads"`
	ActiveWrites int `json:"active_writes"`
	MaxWrites    int `json:"max_writes"`
}

func (s *Service) stats() Stats {
	reads, writes := s.limits.reads.Usage(), s.limits.writes.Usage()
	return Stats{ActiveReads: reads.Active, PendingReads: reads.Pending, MaxReads: reads.Max, ActiveWrites: writes.Active, MaxWrites: writes.Max}
}

// begin admits a request and returns what serves it.
func (s *Service) begin(ctx context.Context, op operation, msg *request.Request) (serve func(), err error) {
	r, err := s.parse(op, msg)
	if err != nil {
		return nil, err
	}
	if op.write {
		held, err := s.limits.hold(ctx, r)
		if err != nil {
			return nil, err
		}
		return func() {
			rep, err := s.serveWrite(ctx, op, r)
			held.Release()
			s.publish(op, r, rep, err)
		}, nil
	}
	turn, err := s.limits.reads.Enter(request.Claim{Project: r.claimant(), Units: 1})
	if err != nil {
		return nil, err
	}
	return func() {
		rep, done, err := s.serveRead(ctx, op, r, turn)
		// Answers that wait for the connection count, too.
		defer done()
		s.publish(op, r, rep, err)
	}, nil
}

// Config configures a Service. Its values are valid: the options that set them are checked.
// Fields that are not optional must not be zero.
type Config struct {
	Prefix      string // of every subject; subjects.DefaultPrefix unless there is a reason
	InboxPrefix string // of reply subjects, _INBOX unless clients use another one
	Version     string // of the program for `nats micro info`; it need not be a semantic one
	ClusterName string // in the service's metadata
	// MaxReply is how many bytes an answer may have, its headers included, if the server's
	// max_payload is not less. 0: that of the server.
	MaxReply int64
	// MaxReads and MaxWrites bound the reads and writes that are served at one time,
	// MaxPendingReads those that wait. While other projects have requests, one project has at most
	// half of each.
	MaxReads, MaxPendingReads, MaxWrites int

	Namespaces   []string              // that are watched; empty means all
	App          kservice.Config       // of the conversion; zero gives apps without a URL
	EnableWrites bool                  // turns on the operations that change apps
	Deploy       kservice.DeployConfig // of those; its namespace, that of new apps, must be watched
}

// Entry is an app in the cache. Its objects are shared and must not be changed.
type Entry struct {
	ID      subjects.AppID
	Service *app.CachedService
	// Revision gives current_replicas. nil: there is none. During a rollout it may be older than
	// the Revision that the Service names, until the informers have observed that.
	Revision *kservice.Revision
	Pods     kservice.PodCondition // none without --pod-conditions
}

func (e Entry) convert() (*appv1.App, error) {
	encoded, err := app.State{Service: e.Service, Revision: e.Revision, Pods: e.Pods}.App()
	if err != nil {
		return nil, err
	}
	return encoded.App()
}

// Cache reads the caches of the informers, without requests to Kubernetes. It is safe for
// concurrent use.
type Cache interface {
	// Synced returns nil once the cache has everything that exists, else the reason.
	Synced() error
	// App returns one app. Of several Knative Services that claim its id it is the published one.
	App(id subjects.AppID) (Entry, bool)
	// Services returns the Knative Services of all apps that match, in no order. match must be
	// quick, and must not call the Cache.
	Services(match func(*app.CachedService) bool) []*app.CachedService
	// Pods are the pods that carry the name of a Knative Service. The error says why they are not
	// known; for want of a right it is a *kube.DeniedError.
	Pods(namespace, service string) ([]corev1.Pod, error)
}
