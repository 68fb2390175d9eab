package appsvc

import (
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
	"golang.org/x/sync/semaphore"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/answer"
)

const (
	// ServiceName is what `nats micro` knows the service by, and the queue group
	// in which all replicas share the requests.
	ServiceName = "flyte-apps"
	// writeTimeout is how long a write may take.
	writeTimeout = time.Minute
	// heldBytes is how much the bodies of all writes may be that are served at one
	// time, and decodedBytes those of them that are decoded; the others wait.
	heldBytes    = 64 << 20
	decodedBytes = 2 << 20
	// stopGrace is how long a write may go on when the service ends.
	stopGrace = time.Second
	// flushTimeout is how long the last answers have to get out.
	flushTimeout = time.Second
)

// Service answers requests for app operations. Make one with New.
type Service struct {
	cfg     Config
	names   subjects.Subjects
	cache   Cache
	kube    *kube
	nc      *nats.Conn
	log     *zap.Logger
	metrics *metrics
	locks   locks
	// writeTimeout is the constant of that name, except in tests.
	writeTimeout time.Duration

	running sync.WaitGroup // of requests

	bodies *semaphore.Weighted // bytes of bodies of writes that are decoded

	mu      sync.Mutex
	active  int  // writes
	held    int  // bytes of their bodies
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
		cfg: cfg, names: names, cache: cache, nc: nc, log: log, metrics: newMetrics(reg),
		writeTimeout: writeTimeout,
		bodies:       semaphore.NewWeighted(decodedBytes),
	}
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
func (s *Service) Run(ctx context.Context) error {
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()

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
		s.log.Warn("cannot take the app service off", zap.Error(stopErr))
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
	// serve answers. It is called in the handler of the endpoint for a read, and
	// in a goroutine of its own for a write.
	serve func(ctx context.Context, r *request) (*reply, error)
	write bool
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
	service, err := answer.AddService(s.nc, config)
	if err != nil {
		return nil, fmt.Errorf("add the app service: %w", err)
	}
	for _, op := range operations {
		err := service.AddEndpoint(op.endpoint, micro.HandlerFunc(func(msg micro.Request) { s.handle(serving, op, msg) }), micro.WithEndpointSubject(op.subject))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("add the endpoint %s: %w", op.endpoint, err), service.Stop())
		}
	}
	return service, nil
}

// Stats are what `nats micro stats` shows for each endpoint.
type Stats struct {
	ActiveWrites int `json:"active_writes"`
	MaxWrites    int `json:"max_writes"`
}

func (s *Service) stats() Stats {
	stats := Stats{MaxWrites: s.cfg.MaxWrites}
	s.mu.Lock()
	defer s.mu.Unlock()
	stats.ActiveWrites = s.active
	return stats
}

// handle answers a read, and starts a write: the handlers of an endpoint are
// called one after the other.
func (s *Service) handle(serving context.Context, op operation, msg micro.Request) {
	asked := time.Now()
	if result := answer.JudgeReply(s.cfg.InboxPrefix, msg.Reply()); result != "" {
		s.metrics.ended(op.name, result, asked)
		s.log.Debug("a request without a reply subject that may be answered", zap.String("subject", msg.Subject()), zap.String("reply", msg.Reply()))
		return
	}
	r, err := s.parse(op, msg)
	if err == nil {
		err = s.begin(op, len(r.body))
	}
	if err != nil {
		s.respond(op, msg, nil, err, asked)
		return
	}
	if !op.write {
		defer s.running.Done()
		rep, err := op.serve(serving, r)
		s.respond(op, msg, rep, err, asked)
		return
	}
	reply := msg.Reply() // msg is the handler's
	go func() {
		defer s.running.Done()
		ctx, cancel := context.WithTimeout(serving, s.writeTimeout)
		defer cancel()
		rep, err := s.change(ctx, op, r)
		s.release(len(r.body))
		s.publish(op, r, reply, rep, err, asked)
	}()
}

// change serves a write, when there is memory for it: what a body describes takes up to
// a hundred times as much as the body.
func (s *Service) change(ctx context.Context, op operation, r *request) (*reply, error) {
	weight := min(int64(len(r.body))+1, decodedBytes)
	if s.bodies.Acquire(ctx, weight) != nil {
		return nil, s.late(ctx, nil)
	}
	defer s.bodies.Release(weight)
	return op.serve(ctx, r)
}

// begin takes a slot for a write, which release gives back. A read needs none: of
// those an endpoint serves one at a time.
func (s *Service) begin(op operation, size int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing:
		return answer.Errorf(subjects.CodeUnavailable, "the service is going away, ask again")
	case op.write && s.active >= s.cfg.MaxWrites:
		return answer.Errorf(subjects.CodeResourceExhausted, "max-app-writes: %d of %d requests that change apps are being served, try again later", s.active, s.cfg.MaxWrites)
	case op.write && s.held+size > heldBytes:
		return answer.Errorf(subjects.CodeResourceExhausted, "requests of %d bytes are being served, of %d at most, try again later", s.held, heldBytes)
	}
	s.running.Add(1)
	if op.write {
		s.active++
		s.held += size
		s.metrics.active.Set(float64(s.active))
	}
	return nil
}

func (s *Service) release(size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active--
	s.held -= size
	s.metrics.active.Set(float64(s.active))
}
