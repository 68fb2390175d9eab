package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// recorder reads the stream as a consumer does that wants every message once:
// an ordered consumer from the message after the last one it has, started again
// for as long as it takes. Its position never steps back. What it reads goes
// onto the tape, and stays there when the stream loses it.
type recorder struct {
	*tape
	conn   *nats.Conn
	js     jetstream.JetStream
	fail   func(format string, args ...any)
	bucket bucketTape
	cancel context.CancelFunc
	done   chan struct{} // closed when the reading has ended

	position atomic.Uint64 // the sequence of the last message
	// Messages that came by the tap.
	heardEvents, heardWrites atomic.Int64
}

func newRecorder(url string, names subjects.Subjects, fail func(string, ...any)) (*recorder, error) {
	conn, err := nats.Connect(url, nats.Name("chaos recorder"), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", url, err)
	}
	js, err := jetstream.New(conn)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("use JetStream: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &recorder{tape: newTape(names), conn: conn, js: js, fail: fail, cancel: cancel, done: make(chan struct{})}
	if err := r.listen(); err != nil {
		cancel()
		conn.Close()
		return nil, err
	}
	go func() {
		defer close(r.done)
		for ctx.Err() == nil {
			// Whatever ended it: the stream is not there, or its server is not.
			_ = r.follow(ctx, r.position.Load()+1, r.take)
			_ = testenv.Pause(ctx, 100*time.Millisecond)
		}
	}()
	return r, nil
}

// take is the reader's next message.
func (r *recorder) take(m audit.Message) bool {
	if had := r.position.Load(); m.Sequence <= had {
		r.fail("a reader that was at sequence %d got sequence %d", had, m.Sequence)
	}
	r.position.Store(max(r.position.Load(), m.Sequence))
	r.note(m)
	return true
}

// reread reads the stream once more, from a sequence until it is past another.
func (r *recorder) reread(ctx context.Context, from, until uint64) {
	for past := false; !past && ctx.Err() == nil; _ = testenv.Pause(ctx, sampleInterval) {
		_ = r.follow(ctx, from, func(m audit.Message) bool {
			r.note(m)
			from, past = m.Sequence+1, m.Sequence > until
			return !past
		})
	}
}

// follow reads from a sequence on until something goes wrong, or the message is
// the last one that is wanted.
func (r *recorder) follow(ctx context.Context, from uint64, take func(audit.Message) (more bool)) error {
	look, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	consumer, err := r.js.OrderedConsumer(look, subjects.DefaultStream, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:   from,
	})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages(jetstream.PullHeartbeat(time.Second), jetstream.PullExpiry(5*time.Second))
	if err != nil {
		return err
	}
	defer messages.Stop()
	for {
		msg, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		meta, err := msg.Metadata()
		if err != nil {
			return err
		}
		if !take(audit.Message{
			Subject: msg.Subject(), Sequence: meta.Sequence.Stream, Header: msg.Headers(), Data: msg.Data(), Stored: meta.Timestamp,
		}) {
			return nil
		}
	}
}

// atEnd says why the recorder is not at the end of the stream, "" if it is.
func (r *recorder) atEnd(ctx context.Context) string {
	stream, err := r.js.Stream(ctx, subjects.DefaultStream)
	if err != nil {
		return "look up the stream: " + err.Error()
	}
	state, last := stream.CachedInfo().State, r.position.Load()
	switch {
	case state.LastSeq < last:
		return fmt.Sprintf("the stream ends at sequence %d, but %d was read from it", state.LastSeq, last)
	case state.LastSeq > last && state.Msgs > 0 && state.FirstSeq <= state.LastSeq:
		return fmt.Sprintf("the stream ends at sequence %d, read is %d", state.LastSeq, last)
	}
	return ""
}

// read waits until everything that the stream has now was read. A stream that was made a moment ago
// has messages that came before the tap.
func (r *recorder) read(ctx context.Context) error {
	stream, err := r.js.Stream(ctx, subjects.DefaultStream)
	if err != nil {
		return err
	}
	last := stream.CachedInfo().State.LastSeq
	return poll(ctx, storageTimeout, func(context.Context) string {
		if position := r.position.Load(); position < last {
			return fmt.Sprintf("the stream ends at sequence %d, read is %d", last, position)
		}
		return ""
	})
}

// entries reads the newest message of every key of the bucket.
func (r *recorder) entries(ctx context.Context) ([]audit.Message, error) {
	consumer, err := r.js.OrderedConsumer(ctx, subjects.BucketStream(subjects.DefaultBucket), jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy,
	})
	if err != nil {
		return nil, fmt.Errorf("read the bucket: %w", err)
	}
	info, err := consumer.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the bucket: %w", err)
	}
	var all []audit.Message
	if info.NumPending == 0 {
		return nil, nil
	}
	messages, err := consumer.Messages()
	if err != nil {
		return nil, fmt.Errorf("read the bucket: %w", err)
	}
	defer messages.Stop()
	for {
		msg, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return nil, fmt.Errorf("read the bucket: %w", err)
		}
		meta, err := msg.Metadata()
		if err != nil {
			return nil, fmt.Errorf("read the bucket: %w", err)
		}
		all = append(all, audit.Message{
			Subject: msg.Subject(), Sequence: meta.Sequence.Stream, Header: msg.Headers(), Data: msg.Data(), Stored: meta.Timestamp,
		})
		if meta.NumPending == 0 {
			return all, nil
		}
	}
}

// close ends the reading.
func (r *recorder) close() {
	r.cancel()
	<-r.done
	r.conn.Close()
}

// poll asks again and again until the answer is "", which means yes. The error
// carries the last answer.
func poll(ctx context.Context, patience time.Duration, ask func(context.Context) string) error {
	limit, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		answer := ask(limit)
		if answer == "" {
			return nil
		}
		if testenv.Pause(limit, 100*time.Millisecond) != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return errors.New(strings.TrimSpace(answer))
		}
	}
}
