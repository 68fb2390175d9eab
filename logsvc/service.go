package logsvc

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/logsvc/match"
	"github.com/appbridge/appbridge/subjects"
)

// ServiceName is the name of the micro service, and of the queue group in which all replicas share
// the requests.
const ServiceName = "appbridge-logs"

// Config configures a Service.
type Config struct {
	Prefix      string // of every subject, usually subjects.DefaultPrefix
	MaxStreams  int    // how many requests are served at a time, at least 1
	InboxPrefix string // under which reply subjects have to lie, usually _INBOX
	Version     string // of the program for `nats micro info`; it need not be a semantic one
	ClusterName string // in the service's metadata
	// MaxReply is how many bytes a message may have, its headers included, if the server's
	// max_payload is not less. 0: that of the server.
	MaxReply int64
}

// times are counted from the arrival of a request; tests lengthen them.
type times struct {
	answer time.Duration // request.AnswerTime; all of a get is there by then
	read   time.Duration // when a get stops to read
}

// Service answers log requests. Make one with New.
type Service struct {
	cfg      Config
	names    subjects.Subjects
	source   LogStreamer
	requests *nats.Conn // receives requests
	nc       *nats.Conn // for everything else
	log      *zap.Logger
	metrics  *metrics

	slots    *request.Limiter // for requests
	turns    *request.Limiter // for matching expressions
	memory   memoryUse        // of all streams
	encoding chan struct{}    // holds one token for each batch that is being encoded
	times    times

	mu      sync.Mutex
	refused int    // requests that were answered with an error
	refusal string // the last of these
}

// New makes a service that receives requests on one connection and sends answers and streams on
// another (nc): requests still arrive when slow readers make the server stall nc, or flood its
// subscriptions. Tests may use one connection for both. The metrics are registered with reg.
func New(cfg Config, source LogStreamer, requests, nc *nats.Conn, log *zap.Logger, reg prometheus.Registerer) (*Service, error) {
	names, err := subjects.New(cfg.Prefix)
	if err != nil {
		return nil, err
	}
	s := &Service{
		cfg: cfg, names: names, source: source, requests: requests, nc: nc, log: log,
		slots:    request.NewLimiter(request.Limit{Option: "max-log-streams", What: "log requests", Max: cfg.MaxStreams}),
		turns:    match.NewTurns(),
		encoding: make(chan struct{}, runtime.GOMAXPROCS(0)),
		times:    times{answer: request.AnswerTime, read: 3 * time.Second},
	}
	s.metrics = newMetrics(reg, func() float64 { return float64(s.slots.Usage().Active) }, cfg.MaxStreams)
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

// maxMessage is how many bytes a message may have, its headers included.
func (s *Service) maxMessage() int { return request.MaxReply(s.nc, s.cfg.MaxReply) }

// Stats are what `nats micro stats` shows for each endpoint.
type Stats struct {
	ActiveStreams    int `json:"active_streams"`
	MaxStreams       int `json:"max_streams"`
	ActivePodStreams int `json:"active_pod_streams"`
	MaxPodStreams    int `json:"max_pod_streams"`
	// Refused counts the requests of all endpoints that were answered with an error, and
	// LastRefusal is the last such error. The counters of package micro do not have them.
	Refused     int    `json:"refused"`
	LastRefusal string `json:"last_refusal,omitempty"`
}

// podStreams is implemented by a source with a limit of its own.
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
		return nil, request.Errorf(subjects.CodeInvalidArgument, "%v", err)
	}
	ctx, end := context.WithCancelCause(serving)
	turn, err := s.slots.Enter(request.Claim{Project: app.Project, Units: 1, Revoke: end})
	if err != nil {
		end(nil)
		return nil, err
	}
	req := newRequest(op, app, r)
	return func() {
		defer end(nil)
		body := r.Body
		r.Body = nil // a stream lasts longer than its options are needed
		result := s.answer(ctx, serving, turn, req, body)
		s.metrics.requests.WithLabelValues(string(op), result).Inc()
	}, nil
}

// answer serves a request once it has its slot, until ctx is done.
func (s *Service) answer(ctx, serving context.Context, turn *request.Turn, req *logRequest, body []byte) (result string) {
	end := ending{target: req.reply}
	first, stop := s.inTime(ctx, req, "the service did not get to the request")
	defer stop()
	slot, err := turn.Wait(first)
	if err != nil {
		req.end = endOption(body)
	} else {
		end, err = s.serve(ctx, first, req, body)
		slot.Release() // before the requester receives the end
	}
	return s.finish(serving, req, end, err)
}

// inTime returns a context that ends when the answer to a request is due. The text says what did not happen until
// then.
func (s *Service) inTime(ctx context.Context, req *logRequest, text string) (context.Context, context.CancelFunc) {
	limit := s.times.answer
	return context.WithDeadlineCause(ctx, req.arrived.Add(limit), request.Errorf(subjects.CodeDeadlineExceeded, "%s within %s", text, limit))
}

// late is the error of a request: that its answer is due if it is, unless Kubernetes said more.
func late(ctx context.Context, err error) error {
	failed, ok := errors.AsType[*request.Error](err)
	if err == nil || ok && failed.Code == subjects.CodeUnavailable {
		return err
	}
	return cmp.Or(context.Cause(ctx), err)
}

// serve serves a request without the end of its answer. first ends when the answer is due.
func (s *Service) serve(ctx, first context.Context, req *logRequest, body []byte) (ending, error) {
	end := ending{target: req.reply}
	err := s.parse(first, req, body)
	if err != nil {
		return end, err
	}
	if req.op == subjects.LogGet {
		end.answer, end.lines, err = s.get(ctx, req)
		return end, err
	}
	st := &stream{
		Service: s, req: req, id: rand.Text(), target: req.reply,
		reader:  newReader(),
		window:  newWindow(req.window, &s.memory),
		out:     newOutbox(req, req.matcher(s.turns), &s.memory, s.metrics),
		limiter: rate.NewLimiter(pace, paceBurst),
	}
	err = st.serve(ctx)
	return ending{target: st.target, id: st.id, seq: st.seq + 1, lines: st.reader.delivered(st.lines)}, err
}

// parse reads the options of a request. The compilation of expressions has to wait for a turn.
func (s *Service) parse(ctx context.Context, req *logRequest, body []byte) error {
	fields, err := objectOf(body)
	if err != nil {
		return err
	}
	if fields["include"] != nil || fields["exclude"] != nil {
		turn, err := s.turns.Acquire(ctx, request.Claim{Project: req.query.App.Project, Units: 1})
		if err != nil {
			return err
		}
		defer turn.Release()
	}
	if err := req.parse(fields); err != nil {
		req.end = end503
		return err
	}
	return nil
}

// refuse answers a request that begin did not admit, and ends its stream.
func (s *Service) refuse(op subjects.LogOp, r *request.Request, err error) {
	failure := s.failure(subjects.AppID{}, err)
	end := end503
	if len(r.Body) <= maxBody {
		end = endOption(r.Body)
	}
	for _, msg := range (ending{target: r.Reply}).messages(failure, end) {
		err := s.nc.PublishMsg(msg)
		if err != nil { // nc is lost, and a refusal cannot wait for it
			err = s.requests.PublishMsg(msg)
		}
		if err != nil {
			s.log.Warn("cannot answer a log request", zap.String("subject", r.Subject), zap.Error(err))
		}
	}
	s.metrics.requests.WithLabelValues(string(op), failure.Code.String()).Inc()
}

// failure returns the error for the requester, and logs an internal one.
func (s *Service) failure(app subjects.AppID, err error) *request.Error {
	failure, ok := errors.AsType[*request.Error](err)
	if !ok {
		s.log.Error("log request failed", zap.Stringer("app", app), zap.Error(err))
		failure = request.Errorf(subjects.CodeInternal, "internal error, see the log of the service")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused++
	s.refusal = failure.Code.HeaderValue() + ": " + request.OneLine(failure.Text)
	return failure
}
