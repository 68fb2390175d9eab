package logsvc

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/answer"
)

const (
	// ServiceName is what `nats micro` knows the service by, and the queue group
	// in which all replicas share the requests.
	ServiceName = "appbridge-logs"
	// flushTimeout is how long the last messages have to get out.
	flushTimeout = time.Second
)

// Service answers log requests. Make one with New.
type Service struct {
	cfg     Config
	names   subjects.Subjects
	source  LogStreamer
	nc      *nats.Conn
	log     *zap.Logger
	metrics *metrics

	running sync.WaitGroup // of requests

	mu      sync.Mutex
	active  int  // requests
	closing bool // no more requests are taken
}

// New makes a service on a connection of its own: a reader that stalls makes
// the server stall this connection. reg gets its metrics.
func New(cfg Config, source LogStreamer, nc *nats.Conn, log *zap.Logger, reg prometheus.Registerer) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	names, err := subjects.New(cfg.Prefix)
	if err != nil {
		return nil, err
	}
	return &Service{cfg: cfg, names: names, source: source, nc: nc, log: log, metrics: newMetrics(reg)}, nil
}

// Run serves until ctx is done (nil) or the connection is closed for good. It
// is called once, and returns when every stream has been told of the end.
func (s *Service) Run(ctx context.Context) error {
	serving, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	closed := make(chan struct{})
	service, err := s.register(serving, closed)
	if err != nil {
		return err
	}
	s.log.Info("log service listens", zap.Int("maxStreams", s.cfg.MaxStreams), zap.String("inboxPrefix", s.cfg.InboxPrefix))
	select {
	case <-ctx.Done():
	case <-closed:
		err = fmt.Errorf("log service: %w", nats.ErrConnectionClosed)
	}
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	if stopErr := service.Stop(); stopErr != nil && !errors.Is(stopErr, nats.ErrConnectionClosed) {
		s.log.Warn("cannot take the log service off", zap.Error(stopErr))
	}
	end(errShutdown)
	s.running.Wait()
	if !s.nc.IsClosed() {
		_ = s.nc.FlushTimeout(flushTimeout) // the process ends either way
	}
	return err
}

// register makes the micro service; closed is closed when it has ended.
func (s *Service) register(serving context.Context, closed chan struct{}) (micro.Service, error) {
	config := micro.Config{
		Name: ServiceName, QueueGroup: ServiceName, Version: s.cfg.Version,
		Description: "Logs of Flyte's apps: get the last lines, tail or open a stream",
		Metadata: map[string]string{
			"cluster":      s.cfg.ClusterName,
			"inbox-prefix": s.cfg.InboxPrefix,
			// Not an endpoint: each stream listens to its own.
			"stop": s.names.Prefix() + ".logs.stop.<project>.<stream id>",
		},
		StatsHandler: func(*micro.Endpoint) any { return s.stats() },
		DoneHandler:  func(micro.Service) { close(closed) },
	}
	service, err := answer.AddService(s.nc, config)
	if err != nil {
		return nil, fmt.Errorf("add the log service: %w", err)
	}
	for _, op := range []subjects.LogOp{subjects.LogGet, subjects.LogTail, subjects.LogOpen} {
		filter, err := s.names.LogsFilter(op)
		if err == nil {
			err = service.AddEndpoint(string(op), micro.HandlerFunc(func(req micro.Request) { s.handle(serving, op, req) }),
				micro.WithEndpointSubject(filter))
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("add the endpoint %s: %w", op, err), service.Stop())
		}
	}
	return service, nil
}

// Stats are what `nats micro stats` shows for each endpoint.
type Stats struct {
	ActiveStreams    int `json:"active_streams"`
	MaxStreams       int `json:"max_streams"`
	ActivePodStreams int `json:"active_pod_streams"`
	MaxPodStreams    int `json:"max_pod_streams"`
}

// podStreams is what a source tells of its own limit, if it has one.
type podStreams interface {
	PodStreams() (active, most int)
}

func (s *Service) stats() Stats {
	stats := Stats{MaxStreams: s.cfg.MaxStreams}
	s.mu.Lock()
	stats.ActiveStreams = s.active
	s.mu.Unlock()
	if source, ok := s.source.(podStreams); ok {
		stats.ActivePodStreams, stats.MaxPodStreams = source.PodStreams()
	}
	return stats
}

// handle answers what can be answered at once and starts the rest: the handlers of an
// endpoint are called one after the other.
func (s *Service) handle(serving context.Context, op subjects.LogOp, msg micro.Request) {
	asked := time.Now()
	reply := msg.Reply()
	if result := answer.JudgeReply(s.cfg.InboxPrefix, reply); result != "" {
		s.metrics.requests.WithLabelValues(string(op), result).Inc()
		s.log.Debug("a log request without a reply subject that may be answered", zap.String("subject", msg.Subject()), zap.String("reply", reply))
		return
	}
	req, err := s.parse(op, msg, asked)
	if err == nil {
		err = s.begin()
	}
	if err != nil {
		s.refuse(op, msg, req, err)
		return
	}
	go func() {
		defer s.running.Done()
		// Whoever hears of the end can count on what was taken being back.
		conclude := s.serve(serving, op, req, reply, asked)
		s.release()
		s.metrics.requests.WithLabelValues(string(op), conclude()).Inc()
	}()
}

func (s *Service) serve(serving context.Context, op subjects.LogOp, req *request, reply string, asked time.Time) (conclude func() (result string)) {
	if op == subjects.LogGet {
		return s.get(serving, req, reply, asked)
	}
	st := &stream{
		Service: s, op: op, req: req, id: rand.Text(), target: reply, asked: asked,
		far:     op == subjects.LogTail && strings.HasPrefix(reply, answer.FarPrefix),
		reader:  newReader(),
		window:  newWindow(req.window),
		out:     newOutbox(req, s.metrics),
		limiter: rate.NewLimiter(pace, paceBurst),
	}
	if op == subjects.LogOpen {
		target, err := s.names.LogsOut(req.query.App.Project, st.id)
		if err != nil {
			return func() string { return st.finish(serving, reply, err) }
		}
		st.target = target
	}
	return st.serve(serving, reply)
}

func (s *Service) parse(op subjects.LogOp, msg micro.Request, now time.Time) (*request, error) {
	_, app, err := s.names.ParseLogs(msg.Subject())
	if err != nil {
		return nil, Errorf(subjects.CodeInvalidArgument, "%v", err)
	}
	req, err := parseRequest(op, app, msg.Data(), now)
	if err != nil || !strings.HasPrefix(msg.Reply(), answer.FarPrefix) {
		return req, err
	}
	switch {
	case op == subjects.LogOpen:
		return req, Errorf(subjects.CodeInvalidArgument, "open: a reader in another account cannot listen to the stream, want tail")
	case req.window > 0:
		return req, Errorf(subjects.CodeInvalidArgument, "window: %d: a reader in another account cannot acknowledge, want none (appbridge logs: --window 0)", req.window)
	}
	return req, nil
}

// refuse answers a request that is not served, and ends its stream.
func (s *Service) refuse(op subjects.LogOp, msg micro.Request, req *request, err error) {
	var failure *Error
	if !errors.As(err, &failure) {
		failure = Errorf(subjects.CodeInternal, "%v", err)
	}
	text := answer.OneLine(failure.Text)
	if err := msg.Error(failure.Code.HeaderValue(), text, []byte(text+"\n")); err != nil {
		s.log.Warn("cannot answer a log request", zap.Error(err))
	}
	end := end503
	if req != nil {
		end = req.end
	}
	if err := s.nc.PublishMsg(endMessage(msg.Reply(), ending{reason: endOf(failure), end: end})); err != nil {
		s.log.Warn("cannot end a log request", zap.Error(err))
	}
	s.metrics.requests.WithLabelValues(string(op), failure.Code.String()).Inc()
}

// begin takes a slot; release gives it back.
func (s *Service) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing:
		return errGoingAway()
	case s.active >= s.cfg.MaxStreams:
		return Errorf(subjects.CodeResourceExhausted, "max-log-streams: %d of %d log requests are being served, try again later", s.active, s.cfg.MaxStreams)
	}
	s.active++
	s.running.Add(1)
	s.metrics.streams.Set(float64(s.active))
	return nil
}

func (s *Service) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active--
	s.metrics.streams.Set(float64(s.active))
}
