package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// consumerIdle is how long the server keeps a consumer whose reader vanished.
	consumerIdle = time.Minute
	// quietTime is how long a reader is without a message before it is idle.
	quietTime = 2 * time.Second
	// MaxIdle is how often in a row a reader may be idle although the leader has more, before it
	// removes its consumer: the replica that the consumer is on may never get there.
	MaxIdle = 4
)

// AllMessages matches every message of a stream.
const AllMessages = ">"

var (
	// errEnd ends a follow without an error.
	errEnd = errors.New("end")
	// ErrReplicaBehind reports that a consumer did not deliver what the stream's leader has.
	ErrReplicaBehind = errors.New("the consumer is behind the stream's leader")
)

// LastSequence reads the sequence of the newest message of filter from the leader, 0 without one.
func LastSequence(ctx context.Context, js jetstream.JetStream, stream, filter string) (uint64, error) {
	m, err := OrNone(LastMessage(ctx, js, stream, filter))
	if m == nil {
		return 0, err
	}
	return m.Sequence, nil
}

// Follow calls visit with the messages of a stream, in order and without gaps, until visit, idle or
// the context ends it. It calls idle at the start if the consumer has nothing to deliver, and after
// each quietTime without a message. That alone does not mean that the end of the stream is reached:
// the server may have placed the consumer on a replica that is catching up.
func Follow(ctx context.Context, js jetstream.JetStream, stream string, cfg jetstream.OrderedConsumerConfig,
	idle func() error, visit func(jetstream.Msg, *jetstream.MsgMetadata) error,
) (err error) {
	cfg.InactiveThreshold = consumerIdle
	cfg.MaxResetAttempts = 1 // the caller retries, and knows when to stop
	consumer, err := createConsumer(ctx, js, stream, cfg)
	if err != nil {
		return fmt.Errorf("consume %s: %w", stream, err)
	}
	batch := pullBatch(consumer)
	messages, err := consumer.Messages(jetstream.PullMaxMessages(batch))
	if err != nil {
		return fmt.Errorf("consume %s: %w", stream, err)
	}
	defer func() {
		messages.Stop()
		if info := consumer.CachedInfo(); info != nil {
			if errors.Is(err, ErrReplicaBehind) {
				err = cmp.Or(pullRefused(ctx, js, stream, info.Name, batch), err)
			}
			// Best effort: the server removes it by itself after consumerIdle.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			_ = js.DeleteConsumer(ctx, stream, info.Name)
			cancel()
		}
		if err == errEnd { //nolint:errorlint // the sentinel itself, never wrapped
			err = nil
		}
	}()
	if info := consumer.CachedInfo(); info != nil && info.NumPending == 0 {
		if err := idle(); err != nil {
			return err
		}
	}
	for {
		msg, err := next(ctx, messages)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, context.DeadlineExceeded):
			// The client has made the consumer again, on a server with a smaller limit.
			if limit := pullBatch(consumer); limit < batch {
				return fmt.Errorf("consume %s: %w: max_request_batch is %d now, and was more", stream, ErrPullRefused, limit)
			}
			if err := idle(); err != nil {
				return err
			}
			continue
		case err != nil:
			return fmt.Errorf("consume %s: %w", stream, err)
		}
		meta, err := msg.Metadata()
		if err != nil {
			return fmt.Errorf("consume %s: %w", stream, err)
		}
		if err := visit(msg, meta); err != nil {
			return err
		}
	}
}

// FollowLast calls visit with the newest message of each subject that matches filter, at least as
// far as the stream's leader has them. A subject may be delivered more than once.
func FollowLast(ctx context.Context, js jetstream.JetStream, stream, filter string, headersOnly bool, visit func(*Message) error) error {
	target, err := LastSequence(ctx, js, stream, filter)
	if err != nil {
		return err
	}
	if target == 0 {
		// Of a message that is damaged on the server's disk its leader has none either.
		if _, info, err := LookUp(ctx, js, stream); err != nil || info.State.Msgs == 0 {
			return err
		}
	}
	var read uint64
	idle := 0
	return Follow(ctx, js, stream, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy, FilterSubjects: []string{filter}, HeadersOnly: headersOnly,
	}, func() error {
		// What is missing may have been removed since.
		if target, err = LastSequence(ctx, js, stream, filter); err != nil {
			return err
		}
		if idle++; target <= read {
			return errEnd
		} else if idle >= MaxIdle {
			return fmt.Errorf("%w: it stands at sequence %d of %d", ErrReplicaBehind, read, target)
		}
		return nil
	}, func(msg jetstream.Msg, meta *jetstream.MsgMetadata) error {
		idle, read = 0, meta.Sequence.Stream
		m := &Message{Subject: msg.Subject(), Sequence: read, Header: msg.Headers(), Data: msg.Data(), Stored: meta.Timestamp}
		if err := visit(m); err != nil {
			return err
		}
		if read >= target && meta.NumPending == 0 {
			return errEnd
		}
		return nil
	})
}

// subjectTime is how long the server may take for each subject of a stream to find the last
// messages of all: ten times what it took for two million on a busy machine.
const subjectTime = 10 * time.Microsecond

// createConsumer waits longer for a consumer that begins with the last message of each subject: the
// server goes over all subjects before it answers.
func createConsumer(ctx context.Context, js jetstream.JetStream, stream string, cfg jetstream.OrderedConsumerConfig) (jetstream.Consumer, error) {
	timeout := JetStreamTimeout
	if cfg.DeliverPolicy == jetstream.DeliverLastPerSubjectPolicy {
		_, known, err := LookUp(ctx, js, stream)
		if err != nil {
			return nil, err
		}
		timeout += time.Duration(known.State.NumSubjects) * subjectTime
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return js.OrderedConsumer(ctx, stream, cfg)
}

func next(ctx context.Context, messages jetstream.MessagesContext) (jetstream.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, quietTime)
	defer cancel()
	return messages.Next(jetstream.NextContext(ctx))
}
