package logsvc

import (
	"context"
	"crypto/rand"
	"errors"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
)

const (
	// ServiceName is what `nats micro` knows the service by, and the queue group
	// in which all replicas share the requests.
	ServiceName = "appbridge-logs"
	// optionStreams and optionPodStreams are the options that set the limits.
	optionStreams    = "max-log-streams"
	optionPodStreams = "max-pod-streams"
)

// Service answers log requests. Make one with New.
type Service struct {
	cfg      Config
	names    subjects.Subjects
	source   LogStreamer
	requests *nats.Conn // requests arrive on it
	nc       *nats.Conn // everything else
	log      *zap.Logger
	metrics  *metrics

	slots    *request.Limiter // of requests
	turns    *request.Limiter // of what tries expressions
	memory   memory           // of all streams
	encoding chan struct{}    // holds one for each batch that is encoded

	mu      sync.Mutex
	refused int    // requests that were answered with an error
	refusal string // the last of these
}

// New makes a service that receives requests on one connection and sends answers and
// streams on another: when readers stall, or flood what their streams listen to, the
// server holds up that connection or drops messages to it, and requests still arrive.
// Tests may use one connection for both. reg gets the metrics.
func New(cfg Config, source LogStreamer, requests, nc *nats.Conn, log *zap.Logger, reg prometheus.Registerer) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	names, err := subjects.New(cfg.Prefix)
	if err != nil {
		return nil, err
	}
	s := &Service{
		cfg: cfg, names: names, source: source, requests: requests, nc: nc, log: log,
		slots:    request.NewLimiter(request.Limit{Option: optionStreams, What: "log requests", Max: cfg.MaxStreams}),
		turns:    newTurns(),
		encoding: make(chan struct{}, runtime.GOMAXPROCS(0)),
	}
	s.metrics = newMetrics(reg, func() float64 { return float64(s.slots.Usage().Active) })
	return s, nil
}

// Run serves until ctx is done (nil) or a connection is closed for good. It is called once. It
// returns when every stream has ended, and closes the connection of the requests.
func (s *Service) Run(ctx context.Context) error {
	cfg := request.Config{
		Name: ServiceName, Version: s.cfg.Version,
		Description: "Logs of Flyte's apps: get the last lines, tail or open a stream",
		Metadata: map[string]string{
			"cluster": s.cfg.ClusterName,
			// Not an endpoint: each stream listens to its own.
			"stop": s.names.Prefix() + ".logs.stop.<project>.<stream id>",
		},
		InboxPrefix: s.cfg.InboxPrefix,
		Stats:       func() any { return s.stats() },
	}
	for _, op := range []subjects.LogOp{subjects.LogGet, subjects.LogTail, subjects.LogOpen} {
		filter, err := s.names.LogsFilter(op)
		if err != nil {
			return err
		}
		cfg.Endpoints = append(cfg.Endpoints, request.Endpoint{
			Name: string(op), Subject: filter, MaxBody: maxBody,
			Begin:  func(ctx context.Context, r *request.Request) (func(), error) { return s.begin(ctx, op, r) },
			Refuse: func(r *request.Request, err error) { s.refuse(op, r, err) },
			Ignore: func(result string) { s.metrics.requests.WithLabelValues(string(op), result).Inc() },
		})
	}
	return request.Serve(ctx, s.requests, s.nc, cfg, s.log)
}

// Stats are what `nats micro stats` shows for each endpoint.
type Stats struct {
	ActiveStreams    int `json:"active_streams"`
	MaxStreams       int `json:"max_streams"`
	ActivePodStreams int `json:"active_pod_streams"`
	MaxPodStreams    int `json:"max_pod_streams"`
	// Refused counts the requests that were answered with an error, of all endpoints;
	// LastRefusal is the last of these errors. Micro's own counts have only what an
	// endpoint refuses before it hands a request on.
	Refused     int    `json:"refused"`
	LastRefusal string `json:"last_refusal,omitempty"`
}

// podStreams is what a source tells of its own limit, if it has one.
type podStreams interface {
	PodStreams() (active, most int)
}

func (s *Service) stats() Stats {
	usage := s.slots.Usage()
	stats := Stats{ActiveStreams: usage.Active, MaxStreams: usage.Max}
	s.mu.Lock()
	stats.Refused, stats.LastRefusal = s.refused, s.refusal
	s.mu.Unlock()
	if source, ok := s.source.(podStreams); ok {
		stats.ActivePodStreams, stats.MaxPodStreams = source.PodStreams()
	}
	return stats
}

// begin enters the limit of requests and returns what serves the request. A request whose slot is
// revoked ends.
func (s *Service) begin(serving context.Context, op subjects.LogOp, r *request.Request) (serve func(), err error) {
	_, app, err := s.names.ParseLogs(r.Subject)
	if err != nil {
		return nil, Errorf(subjects.CodeInvalidArgument, "%v", err)
	}
	ctx, end := context.WithCancelCause(serving)
	turn, err := s.slots.Enter(request.Claim{Project: app.Project, Units: 1, Revoke: func(cause error) {
		end(beyondShare(optionStreams, app.Project, s.cfg.MaxStreams, "log requests", cause))
	}})
	if err != nil {
		end(nil)
		return nil, err
	}
	return func() {
		defer end(nil)
		result := s.answer(ctx, serving, turn, op, app, r.Body, r.Reply, r.Arrived)
		s.metrics.requests.WithLabelValues(string(op), result).Inc()
	}, nil
}

// answer serves a request once it has its slot.
func (s *Service) answer(ctx, serving context.Context, turn *request.Turn, op subjects.LogOp, app subjects.AppID, body []byte, reply string, arrived time.Time) (result string) {
	slot, err := turn.Wait(ctx)
	if err != nil {
		return s.fail(serving, &logRequest{query: Query{App: app}, end: endOption(body)}, reply, err)
	}
	// A requester that has the end can count on the slot being free.
	conclude := s.serve(ctx, serving, op, app, body, reply, arrived)
	slot.Release()
	return conclude()
}

// serve serves a request until ctx is done, all but the end of its answer.
func (s *Service) serve(ctx, serving context.Context, op subjects.LogOp, app subjects.AppID, body []byte, reply string, arrived time.Time) (conclude func() (result string)) {
	req, err := s.parse(ctx, op, app, body, reply, arrived)
	if err != nil {
		if req == nil {
			req = &logRequest{query: Query{App: app}, end: end503}
		}
		return func() string { return s.fail(serving, req, reply, err) }
	}
	if op == subjects.LogGet {
		return s.get(ctx, serving, req, reply, arrived)
	}
	st := &stream{
		Service: s, op: op, req: req, id: rand.Text(), target: reply, asked: arrived,
		far:     op == subjects.LogTail && strings.HasPrefix(reply, request.FarPrefix),
		reader:  newReader(),
		window:  newWindow(req.window, &s.memory),
		out:     newOutbox(req, newMatcher(req, s.turns), &s.memory, s.metrics),
		limiter: rate.NewLimiter(pace, paceBurst),
	}
	if op == subjects.LogOpen {
		target, err := s.names.LogsOut(req.query.App.Project, st.id)
		if err != nil {
			return func() string { return st.finish(serving, reply, err) }
		}
		st.target = target
	}
	return st.serve(ctx, serving, reply)
}

// parse reads the options of a request. Compiling expressions has to wait for a turn as
// trying them does.
func (s *Service) parse(ctx context.Context, op subjects.LogOp, app subjects.AppID, body []byte, reply string, now time.Time) (*logRequest, error) {
	if fields, _ := objectOf(body); fields["include"] != nil || fields["exclude"] != nil {
		turn, err := s.turns.Acquire(ctx, request.Claim{Project: app.Project, Units: 1})
		if err != nil {
			return nil, err
		}
		defer turn.Release()
	}
	req, err := parseRequest(op, app, body, now)
	if err != nil || !strings.HasPrefix(reply, request.FarPrefix) {
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

// refuse answers a request that begin did not admit, and ends its stream.
func (s *Service) refuse(op subjects.LogOp, r *request.Request, err error) {
	failure := s.failure(&logRequest{}, err)
	end := end503
	if len(r.Body) <= maxBody {
		end = endOption(r.Body)
	}
	for _, msg := range []*nats.Msg{request.ErrorMessage(r.Reply, failure), endMessage(r.Reply, ending{reason: endOf(failure), end: end})} {
		if err := s.nc.PublishMsg(msg); err != nil {
			s.log.Warn("cannot answer a log request", zap.Error(err))
		}
	}
	s.metrics.requests.WithLabelValues(string(op), failure.Code.String()).Inc()
}

// fail answers a request with an error, and ends its stream.
func (s *Service) fail(serving context.Context, req *logRequest, reply string, err error) (result string) {
	failure := s.failure(req, err)
	s.publishError(serving, reply, failure)
	s.publishLast(serving, endMessage(reply, ending{reason: endOf(failure), end: req.end}))
	return failure.Code.String()
}

// failure is what the requester learns of an error.
func (s *Service) failure(req *logRequest, err error) *Error {
	var failure *Error
	switch {
	case errors.As(err, &failure):
	default:
		failure = s.internal(req, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused++
	s.refusal = failure.Code.HeaderValue() + ": " + request.OneLine(failure.Text)
	return failure
}
