package logsvc

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
)

const (
	// firstNote is when the requester gets a note if the app is not found yet: clients give up
	// after some seconds without a message.
	firstNote     = 1500 * time.Millisecond
	listenTimeout = 10 * time.Second // how long an open stream waits for a subscriber
	// pace and paceBurst are the rate of a stream without a window, in bytes per second and
	// bytes: the stock client keeps up with it.
	pace      = 4 << 20
	paceBurst = 1 << 20
	// farDuration is the default duration of a stream to another account, maxFarDuration the
	// longest: such a stream does not notice that its reader is gone.
	farDuration    = 10 * time.Minute
	maxFarDuration = time.Hour
	// outageLimit is how long the service's connection may be lost before a stream ends.
	outageLimit = 15 * time.Second
	// payloadMargin is the part of a message for headers, apart from the list of replicas.
	payloadMargin = 1 << 10
	pendingBytes  = 256 << 10 // bounds the queue of messages that clients send to a stream
)

// stream is one request that is answered with many messages.
type stream struct {
	*Service
	req    *logRequest
	id     string
	target string // the subject that is written to
	ack    string // what a reply subject begins with

	reader  *reader
	window  *window
	out     *outbox
	encoder *encoder
	limiter *rate.Limiter
	seq     uint64
	lines   int64
}

// serve sends the stream until ctx is done, without its end.
func (s *stream) serve(ctx context.Context) error {
	defer s.window.release()
	defer s.out.release()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	unsubscribe, err := s.listen(end)
	if err != nil {
		return err
	}
	defer unsubscribe()
	if d := s.limit(); d > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, d, errMaxDuration)
		defer stop()
	}
	source, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer source.Close()
	s.encoder = newEncoder(s.req, source.Org())
	err = s.transfer(ctx, end, source)
	return cmp.Or(context.Cause(ctx), err)
}

func (s *stream) transfer(ctx context.Context, end context.CancelCauseFunc, source LogStream) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if s.req.op == subjects.LogOpen {
		if err := s.announce(ctx); err != nil {
			return err
		}
	}
	running.Go(func() { s.monitor(ctx, end) })
	if err := s.out.Replicas(ctx, source.Replicas()); err != nil {
		return err
	}
	var readErr error
	running.Go(func() {
		defer s.out.close()
		readErr = source.Run(ctx, s.out)
	})
	err := s.send(ctx)
	if err == nil {
		err = s.window.drain(ctx)
	}
	stop()
	running.Wait()
	return cmp.Or(err, readErr)
}

// limit is how long the stream may last, 0 for no limit.
func (s *stream) limit() time.Duration {
	if !s.req.far() {
		return s.req.maxDuration
	}
	return min(cmp.Or(s.req.maxDuration, farDuration), maxFarDuration)
}

// listen subscribes to the acknowledgements of the stream and to its stop subject.
func (s *stream) listen(end context.CancelCauseFunc) (unsubscribe func(), err error) {
	project := s.req.query.App.Project
	acks, err := s.names.LogsAckFilter(project, s.id)
	if err != nil { // with the id the project is too long
		return nil, request.Errorf(subjects.CodeInvalidArgument, "%v", err)
	}
	s.ack = strings.TrimSuffix(acks, "*")
	stop, err := s.names.LogsStop(project, s.id)
	if err != nil {
		return nil, err
	}
	var subs []*nats.Subscription
	unsubscribe = func() {
		for _, sub := range subs {
			_ = sub.Unsubscribe() // fails on a closed connection only
		}
	}
	for subject, handle := range map[string]nats.MsgHandler{
		acks: s.handleAck,
		stop: func(msg *nats.Msg) {
			end(errStopped)
			if request.CheckReply(s.cfg.InboxPrefix, msg.Reply) == "" {
				_ = msg.Respond([]byte("stopped\n")) // the stream's end reports it, too
			}
		},
	} {
		sub, err := s.nc.Subscribe(subject, handle)
		if err == nil {
			subs = append(subs, sub)
			// Acknowledgements beyond the limits are lost; their messages are sent again.
			err = sub.SetPendingLimits(2*maxWindow, pendingBytes)
		}
		if err != nil {
			unsubscribe()
			return nil, fmt.Errorf("subscribe to %s: %w", subject, err)
		}
	}
	return unsubscribe, nil
}

// open finds the log. The requester of a tail gets a note when that takes long.
func (s *stream) open(ctx context.Context) (LogStream, error) {
	ctx, stop := s.inTime(ctx, s.req, "Kubernetes did not answer")
	defer stop()
	var waiting errgroup.Group
	opened := make(chan struct{})
	waiting.Go(func() error {
		select {
		case <-opened:
			return nil
		case <-time.After(firstNote):
		}
		if s.req.op != subjects.LogTail {
			return nil
		}
		s.encoder = newEncoder(s.req, "")
		return s.sendNote(ctx, parcel{note: subjects.LogNoteWaiting, text: "waiting for Kubernetes"})
	})
	source, err := s.source.Open(ctx, s.req.query)
	close(opened)
	noteErr := waiting.Wait()
	switch {
	case err != nil:
		return nil, late(ctx, err)
	case noteErr != nil:
		source.Close()
		return nil, noteErr
	}
	return source, nil
}

// announce answers an open with the subject of the stream, and waits for a subscriber.
func (s *stream) announce(ctx context.Context) error {
	target, err := s.names.LogsOut(s.req.query.App.Project, s.id)
	if err != nil {
		return err
	}
	err = s.deliver(ctx, &nats.Msg{Subject: s.req.reply, Data: []byte(target), Header: nats.Header{subjects.HeaderLogStream: {s.id}}})
	if err != nil {
		return fmt.Errorf("answer on %s: %w", s.req.reply, err)
	}
	s.target = target
	s.reader.markMissing()
	limit, tick := time.After(listenTimeout), time.Tick(missingInterval/2)
	for {
		s.probe()
		select {
		case <-s.reader.presence():
			return nil
		case <-tick:
		case <-limit:
			return errGone
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *stream) header() nats.Header {
	s.seq++
	return nats.Header{
		subjects.HeaderLogStream: {s.id},
		subjects.HeaderLogSeq:    {strconv.FormatUint(s.seq, 10)},
	}
}
