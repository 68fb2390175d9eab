package main

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/histories/lines"
	"github.com/appbridge/appbridge/testdata/histories/reader"
)

// simple is what one writes who has read the exact start and nothing of losses: the bucket, then an
// ordered consumer. It shares nothing with package appwatch, and is right as long as nothing is lost
// or removed.
func simple(ctx context.Context, o reader.Options, out io.Writer) error {
	conn, err := nats.Connect(o.URL, nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true), nats.ReconnectWait(20*time.Millisecond),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	names, err := subjects.New(o.Prefix)
	if err != nil {
		return err
	}
	s := &simpleReader{js: js, names: names, options: o, out: out}
	if o.From != "" {
		if s.reached, err = strconv.ParseUint(o.From, 10, 64); err != nil {
			return err
		}
	}
	for ctx.Err() == nil {
		if s.reached == 0 {
			err = s.snapshot(ctx)
		} else {
			err = s.follow(ctx)
		}
		if errors.Is(err, io.ErrClosedPipe) {
			return err
		}
	}
	return nil
}

type simpleReader struct {
	js      jetstream.JetStream
	names   subjects.Subjects
	options reader.Options
	out     io.Writer
	reached uint64
}

// consume hands on the messages of a stream until take returns an error.
func (s *simpleReader) consume(ctx context.Context, stream string, cfg jetstream.OrderedConsumerConfig,
	take func(*lines.Line, jetstream.Msg, uint64, bool) error,
) error {
	limit, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	consumer, err := s.js.OrderedConsumer(limit, stream, cfg)
	if err != nil {
		return err
	}
	if cfg.DeliverPolicy == jetstream.DeliverLastPerSubjectPolicy && consumer.CachedInfo().NumPending == 0 {
		return nil
	}
	messages, err := consumer.Messages(jetstream.PullHeartbeat(time.Second), jetstream.PullExpiry(5*time.Second))
	if err != nil {
		return err
	}
	defer messages.Stop()
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		if err := take(s.line(m), m, meta.Sequence.Stream, meta.NumPending == 0); err != nil {
			return err
		}
	}
}

var errLast = errors.New("the last message")

func (s *simpleReader) snapshot(ctx context.Context) error {
	position := uint64(0)
	var states []lines.Line
	err := s.consume(ctx, subjects.BucketStream(s.options.Bucket), jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy},
		func(l *lines.Line, m jetstream.Msg, _ uint64, last bool) error {
			l.Type = lines.State
			l.Sequence, _ = strconv.ParseUint(m.Headers().Get(subjects.HeaderEventSequence), 10, 64)
			position = max(position, l.Sequence)
			if m.Headers().Get(subjects.HeaderKVOperation) == "" && s.wants(l) {
				app := &appv1.App{}
				if err := appv1.Decode(m.Data(), m.Headers().Get(subjects.CEDataContentType), app); err != nil {
					return err
				}
				l.Object, _ = protojson.Marshal(app)
				states = append(states, *l)
			}
			if last {
				return errLast
			}
			return nil
		})
	if err != nil && !errors.Is(err, errLast) {
		return err
	}
	for _, l := range states {
		if err := lines.Write(s.out, l); err != nil {
			return err
		}
	}
	s.reached = position
	mark := lines.Line{Type: lines.Mark, Sequence: position, Position: strconv.FormatUint(position, 10)}
	if err := lines.Write(s.out, mark); err != nil {
		return err
	}
	return s.follow(ctx)
}

func (s *simpleReader) follow(ctx context.Context) error {
	return s.consume(ctx, s.options.Stream, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: s.reached + 1},
		func(l *lines.Line, m jetstream.Msg, sequence uint64, _ bool) error {
			s.reached = sequence
			if _, _, err := s.names.ParseEvent(m.Subject()); err != nil || !s.wants(l) {
				return nil
			}
			l.Type, l.Sequence, l.Position = lines.Event, sequence, strconv.FormatUint(sequence, 10)
			body := &appv1.WatchResponse{}
			if err := appv1.Decode(m.Data(), m.Headers().Get(subjects.CEDataContentType), body); err != nil {
				return err
			}
			app := body.GetCreateEvent().GetApp()
			switch l.Kind {
			case subjects.Updated:
				app = body.GetUpdateEvent().GetUpdatedApp()
				if old := body.GetUpdateEvent().GetOldApp(); old != nil {
					l.Old, _ = protojson.Marshal(old)
				}
			case subjects.Deleted:
				app = body.GetDeleteEvent().GetApp()
			}
			l.Object, _ = protojson.Marshal(app)
			return lines.Write(s.out, *l)
		})
}

func (s *simpleReader) line(m jetstream.Msg) *lines.Line {
	h := m.Headers()
	l := &lines.Line{
		ID: h.Get(subjects.CEID), UID: h.Get(subjects.HeaderUID), ResourceVersion: h.Get(subjects.HeaderResourceVersion), Time: h.Get(subjects.CETime),
		Status: h.Get(subjects.HeaderAppStatus), PreviousStatus: h.Get(subjects.HeaderPreviousAppStatus),
		Synthesized: h.Get(subjects.HeaderSynthesized) != "", FinalStateUnknown: h.Get(subjects.HeaderFinalStateUnknown) != "",
	}
	if id, err := subjects.ParseKey(h.Get(subjects.CESubject)); err == nil {
		l.Project, l.Domain, l.App = id.Project, id.Domain, id.Name
	}
	for _, kind := range []subjects.EventKind{subjects.Created, subjects.Updated, subjects.Deleted} {
		if h.Get(subjects.CEType) == kind.Type() {
			l.Kind = kind
		}
	}
	l.PreviousSequence, _ = strconv.ParseUint(h.Get(subjects.HeaderPreviousSequence), 10, 64)
	l.Merged, _ = strconv.Atoi(h.Get(subjects.HeaderMergedUpdates))
	if fields := h.Get(subjects.HeaderTruncated); fields != "" {
		l.Truncated = strings.Split(fields, ",")
	}
	return l
}

func (s *simpleReader) wants(l *lines.Line) bool {
	o := s.options
	return (o.Project == "" || o.Project == l.Project) && (o.Domain == "" || o.Domain == l.Domain) && (o.App == "" || o.App == l.App) &&
		(len(o.Kinds) == 0 || slices.Contains(o.Kinds, l.Kind)) &&
		(len(o.Statuses) == 0 || slices.Contains(o.Statuses, l.Status) || slices.Contains(o.Statuses, l.PreviousStatus))
}
