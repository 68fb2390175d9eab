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
	getTimeout = 20 * time.Second // how long a get may take
	// readTimeout is how long a get may read. Then it answers with the lines it has: one node
	// that does not respond must not delay the lines of the others.
	readTimeout = 10 * time.Second
)

var errReadTimeout = fmt.Errorf("not everything could be read within %s", readTimeout)

// get reads the last lines until ctx is done, and makes the answer.
func (s *Service) get(ctx context.Context, req *logRequest) (answer *nats.Msg, lines int64, err error) {
	ctx, stop := context.WithTimeoutCause(ctx, getTimeout, request.Errorf(subjects.CodeDeadlineExceeded, "reading took longer than %s", getTimeout))
	defer stop()
	defer func() {
		if cause := context.Cause(ctx); err != nil && cause != nil {
			err = cause
		}
	}()
	source, err := s.source.Open(ctx, req.query)
	if err != nil {
		return nil, 0, err
	}
	defer source.Close()
	c := newCollector(req, req.matcher(s.turns), &s.memory, int(s.nc.MaxPayload()), source.Replicas(), s.metrics)
	defer func() { c.grow(-c.text, -c.lines) }()
	reading, stopReading := context.WithTimeoutCause(ctx, readTimeout, errReadTimeout)
	defer stopReading()
	if err := source.Run(reading, c); err != nil {
		if ctx.Err() != nil || !errors.Is(context.Cause(reading), errReadTimeout) {
			return nil, 0, err
		}
		if c.lines == 0 {
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
