package request

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/subjects"
)

const (
	// unknownVersion replaces a version that is not a semantic one.
	unknownVersion = "0.0.0"
	// maxQueued and maxQueuedBytes bound the requests in the queue of an endpoint. The NATS
	// client drops requests beyond them.
	maxQueued      = 16 << 10
	maxQueuedBytes = 16 << 20
	// drainTimeout bounds the refusal of queued requests at shutdown, flushTimeout the sending of
	// the last answers.
	drainTimeout = time.Second
	flushTimeout = time.Second
)

// ErrShutdown is the answer to requests that the end of a service refuses or interrupts, and
// the cause of the context of the latter.
var ErrShutdown = Errorf(subjects.CodeUnavailable, "the service is shutting down, try again")

// Config describes a service.
type Config struct {
	// Name of the micro service, and of the queue group in which replicas share the requests.
	Name, Description string
	// Version of the program. It need not be a semantic one: the metadata have it as it is.
	Version string
	// Metadata that `nats micro info` shows beside the version.
	Metadata map[string]string
	// InboxPrefix is the subject under which reply subjects have to lie.
	InboxPrefix string
	Endpoints   []Endpoint
	// Stats returns what `nats micro stats` shows for each endpoint.
	Stats func() any
	// StopGrace is how long requests may run after the end of the context.
	StopGrace time.Duration
}

// Endpoint receives the requests of a subject. Its functions are called for one request after
// the other and must not block.
type Endpoint struct {
	Name, Subject string
	// MaxBody bounds the body of a request in bytes. 0: the NATS server alone bounds it.
	MaxBody int
	// Begin admits a request. serve runs in a goroutine of its own, until ctx is done with the
	// cause ErrShutdown, and answers the request.
	Begin func(ctx context.Context, r *Request) (serve func(), err error)
	// Refuse answers a request that was not admitted.
	Refuse func(r *Request, err error)
	// Ignore counts a request that must not be answered, by NoReply or ReplyRefused.
	Ignore func(result string)
}

// Request is one request. Headers and Respond are for Begin and Refuse only.
type Request struct {
	Subject, Reply string
	Body           []byte
	Arrived        time.Time

	msg micro.Request
}

// Headers of the request.
func (r *Request) Headers() micro.Headers { return r.msg.Headers() }

// Respond answers with an error, which the statistics of the endpoint count.
func (r *Request) Respond(failure *Error) error {
	return r.msg.Error(failure.Code.HeaderValue(), OneLine(failure.Text), errorBody(failure.Text))
}

// server is a service that runs.
type server struct {
	cfg     Config
	log     *zap.Logger
	running sync.WaitGroup // of requests

	mu      sync.Mutex
	closing bool // requests are refused
}

// Serve serves until ctx is done (nil) or a connection is closed for good. Requests arrive on
// one connection, which Serve drains and closes; the service publishes on answers, which may be
// the same. Serve returns when every request that arrived has its answer.
func Serve(ctx context.Context, requests, answers *nats.Conn, cfg Config, log *zap.Logger) error {
	s := &server{cfg: cfg, log: log}
	serving, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	gone := fmt.Errorf("service %s: %w", cfg.Name, nats.ErrConnectionClosed)
	closed := answers.StatusChanged(nats.CLOSED)
	defer answers.RemoveStatusListener(closed)
	if answers.IsClosed() { // a listener is not told what was before it
		return gone
	}
	stopped := make(chan struct{})
	service, err := s.register(serving, requests, stopped)
	if err != nil {
		return err
	}
	log.Info("request service started", zap.String("service", cfg.Name), zap.String("inboxPrefix", cfg.InboxPrefix))
	select {
	case <-ctx.Done():
	case <-closed:
		err = gone
	case <-stopped:
		err = gone
	}
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	if stopErr := service.Stop(); stopErr != nil && !errors.Is(stopErr, nats.ErrConnectionClosed) {
		log.Warn("cannot stop the request service", zap.String("service", cfg.Name), zap.Error(stopErr))
	}
	grace := time.AfterFunc(cfg.StopGrace, func() { end(ErrShutdown) })
	s.running.Wait()
	grace.Stop()
	drain(requests)
	if !answers.IsClosed() {
		_ = answers.FlushTimeout(flushTimeout) // the process ends either way
	}
	return err
}

// register makes the micro service. It closes stopped when the service has ended.
func (s *server) register(ctx context.Context, nc *nats.Conn, stopped chan struct{}) (micro.Service, error) {
	metadata := map[string]string{"version": s.cfg.Version, "inbox-prefix": s.cfg.InboxPrefix}
	maps.Copy(metadata, s.cfg.Metadata)
	config := micro.Config{
		Name: s.cfg.Name, QueueGroup: s.cfg.Name, Version: s.cfg.Version, Description: s.cfg.Description, Metadata: metadata,
		StatsHandler: func(*micro.Endpoint) any { return s.cfg.Stats() },
		DoneHandler:  func(micro.Service) { close(stopped) },
	}
	service, err := micro.AddService(nc, config)
	if errors.Is(err, micro.ErrConfigValidation) {
		config.Version = unknownVersion
		service, err = micro.AddService(nc, config)
	}
	if err != nil {
		return nil, fmt.Errorf("add service %s: %w", s.cfg.Name, err)
	}
	for _, e := range s.cfg.Endpoints {
		err := service.AddEndpoint(e.Name, micro.HandlerFunc(func(msg micro.Request) { s.handle(ctx, e, msg) }),
			micro.WithEndpointSubject(e.Subject), micro.WithEndpointPendingLimits(maxQueued, maxQueuedBytes))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("add endpoint %s to service %s: %w", e.Name, s.cfg.Name, err), service.Stop())
		}
	}
	return service, nil
}

// handle admits a request or refuses it.
func (s *server) handle(ctx context.Context, e Endpoint, msg micro.Request) {
	r := &Request{Subject: msg.Subject(), Reply: msg.Reply(), Body: msg.Data(), Arrived: time.Now(), msg: msg}
	if result := CheckReply(s.cfg.InboxPrefix, r.Reply); result != "" {
		e.Ignore(result)
		s.log.Debug("request ignored: the reply subject is not an inbox", zap.String("subject", r.Subject), zap.String("reply", r.Reply))
		return
	}
	serve, err := s.begin(ctx, e, r)
	if err != nil {
		e.Refuse(r, err)
		return
	}
	// The body of a message is part of the memory of its headers, which no limit counts.
	r.Body, r.msg = bytes.Clone(r.Body), nil
	go func() {
		defer s.running.Done()
		serve()
	}()
}

// begin counts a request as running if it is admitted.
func (s *server) begin(ctx context.Context, e Endpoint, r *Request) (serve func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing:
		return nil, ErrShutdown
	case e.MaxBody > 0 && len(r.Body) > e.MaxBody:
		return nil, Errorf(subjects.CodeInvalidArgument, "body: %d bytes: want at most %d", len(r.Body), e.MaxBody)
	}
	if serve, err = e.Begin(ctx, r); err == nil {
		s.running.Add(1)
	}
	return serve, err
}

// drain waits until the requests in the queues of the endpoints are refused, and closes the
// connection.
func drain(nc *nats.Conn) {
	closed := nc.StatusChanged(nats.CLOSED)
	if nc.Drain() != nil || nc.IsClosed() {
		return // a connection without a server has no requests
	}
	select {
	case <-closed:
	case <-time.After(drainTimeout):
	}
}
