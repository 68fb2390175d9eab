package logsvc

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
)

// early is an error that ends a stream before the end of its log and is no failure: its reason.
type early subjects.LogEnd

const (
	errStopped     = early(subjects.LogEndStopped)
	errMaxDuration = early(subjects.LogEndMaxDuration)
	errStalled     = early(subjects.LogEndStalled)
	// errGone: the reader is gone, and receives no end.
	errGone early = "gone"
)

func (e early) Error() string { return string(e) }

// ending is how an answer ends.
type ending struct {
	target string    // the subject of the last messages
	answer *nats.Msg // of a get: the lines, which need no end
	id     string    // of the stream; empty: it has not begun
	seq    uint64
	lines  int64
}

// finish sends the end of an answer, after the error if there is one. Without it the requester
// would wait forever, so it is retried while the connection is lost, until ctx is done.
func (s *Service) finish(ctx context.Context, req *logRequest, end ending, err error) (result string) {
	if err == nil && end.answer != nil {
		end.answer.Subject = end.target
		if err = s.deliver(ctx, end.answer); err == nil {
			s.metrics.firstLine.Observe(time.Since(req.arrived).Seconds())
			s.metrics.lines.Add(float64(end.lines))
			s.metrics.bytes.Add(float64(len(end.answer.Data)))
			return string(subjects.LogEndEOF)
		}
		end.lines = 0
	}
	reason := early(subjects.LogEndEOF)
	switch {
	case err == nil, errors.As(err, &reason):
	case errors.Is(err, nats.ErrConnectionClosed):
		reason = errGone
	case end.id != "" && (errors.Is(err, request.ErrShutdown) || errors.Is(err, context.Canceled)):
		reason = early(subjects.LogEndShutdown)
	default:
		failure := s.failure(req.query.App, err)
		for _, msg := range end.messages(failure, req.end) {
			_ = s.deliver(ctx, msg) // an error has no receiver
		}
		return failure.Code.String()
	}
	if reason != errGone {
		_ = s.deliver(ctx, end.message(subjects.LogEnd(reason), req.end)) // here, too
	}
	return string(reason)
}

// messages returns the last messages of an answer that ends with an error.
func (e ending) messages(failure *request.Error, option string) []*nats.Msg {
	reason := subjects.LogEndError
	if failure.Code == subjects.CodeResourceExhausted {
		reason = subjects.LogEndLimit
	}
	return []*nats.Msg{request.ErrorMessage(e.target, failure), e.message(reason, option)}
}

// message returns the last message. The option is that of the request.
func (e ending) message(reason subjects.LogEnd, option string) *nats.Msg {
	status := subjects.StatusNoResponders
	if option == endEmpty {
		status = subjects.StatusNoContent
	}
	header := nats.Header{
		subjects.HeaderStatus:   {status},
		subjects.HeaderLogEnd:   {string(reason)},
		subjects.HeaderLogLines: {strconv.FormatInt(e.lines, 10)},
	}
	if e.id != "" {
		header[subjects.HeaderLogStream] = []string{e.id}
		header[subjects.HeaderLogSeq] = []string{strconv.FormatUint(e.seq, 10)}
	}
	return &nats.Msg{Subject: e.target, Header: header}
}
