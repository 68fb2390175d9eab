package logsvc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
)

const (
	// getTimeout is how long a get may take.
	getTimeout = 20 * time.Second
	// readTimeout is how long a get may read. Then it answers with the lines it has: one node
	// that does not respond must not delay the lines of the others.
	readTimeout = 10 * time.Second
)

var errReadTimeout = fmt.Errorf("not everything could be read within %s", readTimeout)

// get reads the last lines until ctx is done. conclude sends them in one message.
func (s *Service) get(ctx, serving context.Context, req *logRequest) (conclude func() (result string)) {
	ctx, stop := context.WithTimeoutCause(ctx, getTimeout, request.Errorf(subjects.CodeDeadlineExceeded, "reading took longer than %s", getTimeout))
	defer stop()
	msg, lines, err := s.collect(ctx, req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return func() string { return s.fail(serving, req, err) }
	}
	return func() string {
		msg.Subject = req.reply
		if err := s.deliver(serving, msg); err != nil {
			return s.fail(serving, req, err)
		}
		s.metrics.firstLine.Observe(time.Since(req.arrived).Seconds())
		s.metrics.lines.Add(float64(lines))
		s.metrics.bytes.Add(float64(len(msg.Data)))
		return string(subjects.LogEndEOF)
	}
}

// collect reads the lines and makes the answer.
func (s *Service) collect(ctx context.Context, req *logRequest) (*nats.Msg, int, error) {
	source, err := s.source.Open(ctx, req.query)
	if err != nil {
		return nil, 0, err
	}
	defer source.Close()
	c := newCollector(req, req.matcher(s.turns), &s.memory, int(s.nc.MaxPayload()), source.Replicas(), s.metrics)
	defer c.release()
	reading, stop := context.WithTimeoutCause(ctx, readTimeout, errReadTimeout)
	defer stop()
	if err := source.Run(reading, c); err != nil {
		if ctx.Err() != nil || !errors.Is(context.Cause(reading), errReadTimeout) {
			return nil, 0, err
		}
		if c.empty() {
			return nil, 0, request.Errorf(subjects.CodeDeadlineExceeded, "nothing could be read within %s", readTimeout)
		}
		if err := c.Note(ctx, subjects.LogNoteReplica, "", errReadTimeout.Error()); err != nil {
			return nil, 0, err
		}
	}
	done, err := s.acquireEncoder(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer done()
	return c.answer(newEncoder(req, source.Org()))
}
