package appsvc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/appbridge/appbridge/subjects"
)

const (
	// positionIdle is how long the server keeps a consumer whose reader vanished.
	positionIdle = time.Minute
	// positionQuiet is how long no event comes before it is looked whether the
	// consumer is still the one that was made.
	positionQuiet = 500 * time.Millisecond
	// positionLook is how often the stream is looked at.
	positionLook = 10 * time.Second
	// positionWait is how long an answer of JetStream is waited for.
	positionWait = 5 * time.Second
)

// position knows up to which event of the stream a cache has come. The events
// may be those of another bridge, whose cache is ahead of this one.
//
// It follows the stream and keeps the apps of which the cache does not show the
// newest event yet: never more than there are apps, and as a rule none.
type position struct {
	js     jetstream.JetStream
	stream string
	names  subjects.Subjects
	cache  Cache
	// namespaces are those that the cache is of; empty: all.
	namespaces []string
	log        *zap.Logger

	mu sync.Mutex
	// caughtUp is set once everything that the stream held was judged. Nothing
	// is known before.
	caughtUp bool
	followed uint64 // sequence up to which events were judged
	reset    uint64 // sequence up to which events are of a cluster history that is over
	behind   map[subjects.AppID]*positionLag
	// passed is, while the stream is caught up with, the sequence of the newest
	// event of each app that the cache shows. The last events of an app's subjects
	// leave out others in between.
	passed map[subjects.AppID]uint64
}

// positionLag is an app with events that the cache does not show yet.
type positionLag struct {
	first  uint64 // sequence from which on they may be missing
	newest positionEvent
	// gone is the newest observed deletion among those before the newest. A cache
	// that has not seen it may show a state that looks like the newest one: that
	// of an object which was the app before, and became it again. Its sequence is 0
	// if there is none.
	gone positionEvent
}

func newPosition(js jetstream.JetStream, stream string, names subjects.Subjects, cache Cache, namespaces []string, log *zap.Logger) *position {
	p := &position{js: js, stream: stream, names: names, cache: cache, namespaces: namespaces, log: log}
	p.forget()
	return p
}

// reflected is a sequence of the stream: the cache shows every event up to it,
// and goes on doing so. It has to be asked for before the cache is read. 0 while
// nothing is known, which is always true.
func (p *position) reflected() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.caughtUp || p.cache.Synced() != nil {
		return 0
	}
	sequence := p.followed
	for id, lag := range p.behind {
		if p.shows(id, lag) {
			delete(p.behind, id)
			continue
		}
		sequence = min(sequence, lag.first-1)
	}
	return sequence
}

// shows tells whether the cache shows all of a lag's events. mu must be held.
func (p *position) shows(id subjects.AppID, lag *positionLag) bool {
	if g := lag.gone; g.sequence > p.reset && !positionAtLeast(p.cache.Newest(g.namespace), g.deleted) {
		return false
	}
	return lag.newest.shown(p.cache, id, p.reset)
}

// run follows the stream until ctx is done. It tries for ever: JetStream may be
// away, and the stream may have yet to be made.
func (p *position) run(ctx context.Context) {
	pause := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(50*time.Millisecond), backoff.WithMaxInterval(5*time.Second), backoff.WithMaxElapsedTime(0))
	told := ""
	for {
		err := p.follow(ctx)
		if p.forget() {
			pause.Reset()
			told = ""
		}
		if ctx.Err() != nil {
			return
		}
		if err.Error() != told {
			told = err.Error()
			p.log.Log(p.level(err), "following the events starts over; until then lists do not tell the sequence they reflect",
				zap.String("stream", p.stream), zap.Error(err))
		}
		select {
		case <-time.After(pause.NextBackOff()):
		case <-ctx.Done():
			return
		}
	}
}

// level is how loud an error of follow is told. That there is no connection others
// tell, and who makes the stream.
func (p *position) level(err error) zapcore.Level {
	switch {
	case !p.js.Conn().IsConnected() || errors.Is(err, nats.ErrDisconnected):
		return zap.DebugLevel
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return zap.InfoLevel
	default:
		return zap.WarnLevel
	}
}

// forget puts the position back to knowing nothing, and tells whether something
// was known.
func (p *position) forget() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.caughtUp
	p.caughtUp, p.followed, p.reset = false, 0, 0
	p.behind = map[subjects.AppID]*positionLag{}
	p.passed = map[subjects.AppID]uint64{}
	return known
}

// errPositionMoved says that what is followed is no longer what it was: the
// client made another consumer, or somebody another stream, in its place. A new
// consumer of the client goes on behind the sequence of the old one's last
// message, which means nothing in another stream.
var errPositionMoved = errors.New("the stream or the consumer was replaced")

// follow judges the last event of each subject, then everything new, until
// something fails. It never returns nil.
func (p *position) follow(ctx context.Context) error {
	if !p.js.Conn().IsConnected() {
		return nats.ErrDisconnected // else the client waits, whatever ctx says
	}
	stream, err := p.look(ctx)
	if err != nil {
		return err
	}
	consumer, err := p.js.OrderedConsumer(ctx, p.stream, jetstream.OrderedConsumerConfig{
		FilterSubjects:    []string{p.names.Events()},
		DeliverPolicy:     jetstream.DeliverLastPerSubjectPolicy,
		HeadersOnly:       true,
		InactiveThreshold: positionIdle,
		MaxResetAttempts:  1,
	})
	if err != nil {
		return fmt.Errorf("follow stream %s: %w", p.stream, err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		return fmt.Errorf("follow stream %s: %w", p.stream, err)
	}
	info := consumer.CachedInfo()
	defer func() {
		messages.Stop()
		if p.js.Conn().IsConnected() {
			// Best effort: the server removes it by itself after positionIdle.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			_ = p.js.DeleteConsumer(ctx, p.stream, consumer.CachedInfo().Name)
			cancel()
		}
	}()

	// Every event up to the end that the stream had before is delivered, or
	// followed by another one on its subject, or no longer there.
	end := stream.State.LastSeq
	pending, delivered, looked := info.NumPending, uint64(0), time.Now()
	reached := false
	for {
		if pending == 0 && !reached {
			p.reach(end)
			reached = true
		}
		msg, err := p.next(ctx, messages)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, context.DeadlineExceeded):
			if consumer.CachedInfo().Name != info.Name {
				return errPositionMoved
			}
			if pending > 0 { // what was to come may have been purged
				now, err := p.consumerInfo(ctx, consumer)
				if err != nil {
					return err
				}
				if now.Delivered.Consumer == delivered { // else there is more on its way
					pending = now.NumPending
				}
			}
		case err != nil:
			return fmt.Errorf("follow stream %s: %w", p.stream, err)
		default:
			meta, err := msg.Metadata()
			if err != nil {
				return fmt.Errorf("follow stream %s: %w", p.stream, err)
			}
			if meta.Consumer != info.Name {
				return errPositionMoved
			}
			p.judge(msg.Subject(), meta.Sequence.Stream, msg.Headers())
			pending, delivered = meta.NumPending, meta.Sequence.Consumer
		}
		if time.Since(looked) > positionLook {
			now, err := p.look(ctx)
			if err != nil {
				return err
			}
			if !now.Created.Equal(stream.Created) || now.State.LastSeq < end {
				return errPositionMoved
			}
			end, looked = now.State.LastSeq, time.Now()
		}
	}
}

// next waits for a message, for positionQuiet at most.
func (p *position) next(ctx context.Context, messages jetstream.MessagesContext) (jetstream.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, positionQuiet)
	defer cancel()
	return messages.Next(jetstream.NextContext(ctx))
}

func (p *position) consumerInfo(ctx context.Context, consumer jetstream.Consumer) (*jetstream.ConsumerInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, positionWait)
	defer cancel()
	info, err := consumer.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("look up the consumer of stream %s: %w", p.stream, err)
	}
	return info, nil
}

// look reads the stream's state, and which part of it is of an earlier history.
func (p *position) look(ctx context.Context) (*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, positionWait)
	defer cancel()
	stream, err := p.js.Stream(ctx, p.stream)
	if err != nil {
		return nil, fmt.Errorf("look up stream %s: %w", p.stream, err)
	}
	info := stream.CachedInfo()
	reset, err := strconv.ParseUint(info.Config.Metadata[subjects.MetadataResetSequence], 10, 64)
	if err != nil {
		reset = 0 // it never was
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reset = reset
	return info, nil
}

// reach notes that everything up to sequence was judged, and that nothing more
// waits.
func (p *position) reach(sequence uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.followed = max(p.followed, sequence)
	p.caughtUp, p.passed = true, nil
}

// judge takes in a message of the stream.
func (p *position) judge(subject string, sequence uint64, h nats.Header) {
	id, event, ok := positionEventOf(p.names, subject, sequence, h)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.followed = max(p.followed, sequence)
	if !ok || len(p.namespaces) > 0 && !slices.Contains(p.namespaces, event.namespace) {
		return // nothing that this cache could show
	}
	lag := p.behind[id]
	if lag == nil {
		lag = &positionLag{first: sequence}
		if !p.caughtUp {
			lag.first = p.passed[id] + 1
		}
	} else if lag.newest.kind == subjects.Deleted && lag.newest.deleted != "" {
		lag.gone = lag.newest
	}
	lag.newest = event
	if p.cache.Synced() == nil && p.shows(id, lag) {
		delete(p.behind, id)
		if !p.caughtUp {
			p.passed[id] = sequence
		}
		return
	}
	p.behind[id] = lag
}
