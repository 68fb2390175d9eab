package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// recorder reads the stream as a consumer does that wants every message once:
// an ordered consumer from the message after the last one it has, begun anew
// for as long as it takes. It keeps what it has read when the stream goes away.
type recorder struct {
	conn   *nats.Conn
	js     jetstream.JetStream
	names  subjects.Subjects
	cancel context.CancelFunc
	done   chan struct{} // closed when the reading has ended

	mu     sync.Mutex
	seen   []audit.Message
	newest map[string]appEvent // by key of the app
	at     time.Time           // of the last message
	// The newest versions that any event told.
	services, revisions int64
}

// appEvent is what an app's newest event says.
type appEvent struct {
	sequence uint64
	appState
}

func newRecorder(url string, names subjects.Subjects) (*recorder, error) {
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
	r := &recorder{conn: conn, js: js, names: names, cancel: cancel, done: make(chan struct{}), newest: map[string]appEvent{}}
	go func() {
		defer close(r.done)
		for ctx.Err() == nil {
			// Whatever ended it: the stream is not there, or its server is not.
			_ = r.follow(ctx)
			_ = testenv.Pause(ctx, 100*time.Millisecond)
		}
	}()
	return r, nil
}

// follow reads until something goes wrong.
func (r *recorder) follow(ctx context.Context) error {
	look, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	consumer, err := r.js.OrderedConsumer(look, subjects.DefaultStream, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:   r.last() + 1,
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
		r.note(audit.Message{
			Subject: msg.Subject(), Sequence: meta.Sequence.Stream, Header: msg.Headers(), Data: msg.Data(), Stored: meta.Timestamp,
		})
	}
}

func (r *recorder) note(m audit.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, m)
	r.at = time.Now()
	if key, state, ok := stateOf(m, r.names); ok {
		r.newest[key] = appEvent{m.Sequence, state}
		r.services = max(r.services, state.version)
		if version, err := strconv.ParseInt(m.Header.Get(subjects.HeaderRevisionResourceVersion), 10, 64); err == nil {
			r.revisions = max(r.revisions, version)
		}
	}
}

// versions are the newest versions of a Knative Service and of a Revision that
// events told.
func (r *recorder) versions() (service, revision int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.services, r.revisions
}

// last is the sequence of the last message.
func (r *recorder) last() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.seen) == 0 {
		return 0
	}
	return r.seen[len(r.seen)-1].Sequence
}

// count is how many messages there are, and since when there is no new one.
func (r *recorder) count() (n int, since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.seen), r.at
}

// apps are the newest events of all apps, by key.
func (r *recorder) apps() map[string]appEvent {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[string]appEvent, len(r.newest))
	for key, e := range r.newest {
		all[key] = e
	}
	return all
}

// messages are all messages so far.
func (r *recorder) messages() []audit.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.seen)
}

// atEnd says why the recorder is not at the end of the stream, "" if it is.
func (r *recorder) atEnd(ctx context.Context) string {
	stream, err := r.js.Stream(ctx, subjects.DefaultStream)
	if err != nil {
		return "look up the stream: " + err.Error()
	}
	state, last := stream.CachedInfo().State, r.last()
	switch {
	case state.LastSeq < last:
		return fmt.Sprintf("the stream ends at sequence %d, but %d was read from it", state.LastSeq, last)
	case state.LastSeq > last && state.Msgs > 0 && state.FirstSeq <= state.LastSeq:
		return fmt.Sprintf("the stream ends at sequence %d, read is %d", state.LastSeq, last)
	}
	return ""
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
