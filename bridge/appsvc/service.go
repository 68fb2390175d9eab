package appsvc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/bridge/request"
	requests "github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
)

const (
	// ServiceName is what `nats micro` knows the service by, and the queue group
	// in which all replicas share the requests.
	ServiceName = "flyte-apps"
	// stopGrace is how long a write may go on when the service ends.
	stopGrace = time.Second
	// flushTimeout is how long the last answers have to get out.
	flushTimeout = time.Second
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

	running sync.WaitGroup // of requests

	mu      sync.Mutex
	closing bool // no more requests are taken
}

// New makes a service on a connection of its own. It reads from cache, and
// changes apps through kube. reg gets its metrics.
func New(cfg Config, cache Cache, kube *rest.Config, nc *nats.Conn, log *zap.Logger, reg prometheus.Registerer) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	names, err := subjects.New(cfg.Prefix)
	if err != nil {
		return nil, err
	}
	s := &Service{
		cfg: cfg, names: names, cache: cache, nc: nc, log: log,
		limits: newLimits(cfg), requesters: newRequesters(nc), timeouts: timeouts{queueTimeout, readTimeout, writeTimeout},
	}
	s.metrics = newMetrics(reg, s.limits)
	if cfg.EnableWrites {
		if s.kube, err = newKube(kube); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Run serves until ctx is done (nil) or the connection is closed for good. It
// is called once, and returns when every request that was taken has its answer;
// writes that take long are given up.
func (s *Service) Run(ctx context.Context) (err error) {
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	probing, stopProbing := context.WithCancel(serving)
	probed := make(chan error, 1)
	go func() { probed <- s.requesters.run(probing) }()
	defer func() {
		stopProbing()
		if failed := <-probed; err == nil {
			err = failed
		}
	}()

	closed := make(chan struct{})
	service, err := s.register(serving, closed)
	if err != nil {
		return err
	}
	s.log.Info("app service listens", zap.Bool("writes", s.cfg.EnableWrites), zap.String("inboxPrefix", s.cfg.InboxPrefix))
	select {
	case <-ctx.Done():
	case <-closed:
		err = fmt.Errorf("app service: %w", nats.ErrConnectionClosed)
	}
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	if stopErr := service.Stop(); stopErr != nil && !errors.Is(stopErr, nats.ErrConnectionClosed) {
		s.log.Warn("cannot stop the app service", zap.Error(stopErr))
	}
	grace := time.AfterFunc(stopGrace, end)
	s.running.Wait()
	grace.Stop()
	if !s.nc.IsClosed() {
		_ = s.nc.FlushTimeout(flushTimeout) // the process ends either way
	}
	return err
}

// operation is something that can be asked for.
type operation struct {
	name     string // in the metrics
	endpoint string
	subject  string // that the endpoint listens to
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

// register makes the micro service; closed is closed when it has ended.
func (s *Service) register(serving context.Context, closed chan struct{}) (micro.Service, error) {
	operations, err := s.operations()
	if err != nil {
		return nil, err
	}
	config := micro.Config{
		Name: ServiceName, QueueGroup: ServiceName, Version: s.cfg.Version,
		Description: "Flyte's apps: get, list, replicas, ingress; deploy, stop, delete, delete-replica",
		Metadata: map[string]string{
			"cluster":      s.cfg.ClusterName,
			"inbox-prefix": s.cfg.InboxPrefix,
			"writes":       strconv.FormatBool(s.cfg.EnableWrites),
		},
		StatsHandler: func(*micro.Endpoint) any { return s.stats() },
		DoneHandler:  func(micro.Service) { close(closed) },
	}
	service, err := request.AddService(s.nc, config)
	if err != nil {
		return nil, fmt.Errorf("add the app service: %w", err)
	}
	for _, op := range operations {
		err := request.AddEndpoint(service, op.endpoint, op.subject, func(msg micro.Request) { s.handle(serving, op, msg) })
		if err != nil {
			return nil, errors.Join(fmt.Errorf("add the endpoint %s: %w", op.endpoint, err), service.Stop())
		}
	}
	return service, nil
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

// handle takes a request or refuses it. It does nothing that takes time: the handlers of an
// endpoint are called one after the other.
func (s *Service) handle(serving context.Context, op operation, msg micro.Request) {
	asked := time.Now()
	if result := request.JudgeReply(s.cfg.InboxPrefix, msg.Reply()); result != "" {
		s.metrics.ended(op.name, result, asked)
		s.log.Debug("a request without a reply subject that may be answered", zap.String("subject", msg.Subject()), zap.String("reply", msg.Reply()))
		return
	}
	r, err := s.parse(op, msg)
	if err == nil {
		err = s.begin(op, r)
	}
	if err != nil {
		s.refuse(op, msg, err, asked)
		return
	}
	// What msg holds beside the body, such as headers, need not wait with it.
	r.body = bytes.Clone(r.body)
	go func() {
		defer s.running.Done()
		if op.write {
			rep, err := s.serveWrite(serving, op, r)
			s.limits.dismiss(r)
			s.publish(op, r, rep, err, asked)
			return
		}
		rep, done, err := s.serveRead(serving, op, r)
		// Answers that wait for the connection count, too.
		defer done()
		s.publish(op, r, rep, err, asked)
	}()
}

// begin lets a request in, or refuses it.
func (s *Service) begin(op operation, r *apiRequest) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing:
		return errClosing("")
	case op.write:
		err = s.limits.admit(r)
	default:
		r.turn, err = s.limits.reads.Enter(requests.Claim{Project: r.claimant(), Units: 1})
	}
	if err == nil {
		s.running.Add(1)
	}
	return err
}
