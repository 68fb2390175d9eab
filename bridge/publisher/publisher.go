package publisher

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

const (
	// publishWindow is how many events may be unacknowledged at once, each of another app.
	publishWindow = 256
	// encodeAhead is how many events may be encoded before they can be sent.
	encodeAhead    = 64
	publishTimeout = 5 * time.Second
	// concludeTimeout bounds how long an ending session waits for answers.
	concludeTimeout = 2 * time.Second
)

// ErrOverflow reports that pending changes were dropped at the hard limit.
var ErrOverflow = errors.New("too many changes wait for the stream; they are dropped and found again by a resync")

// Config is what a publisher needs. All of it is required, but for Lost.
type Config struct {
	NATS       *nats.Conn
	Appends    jetstream.JetStream // of NewJetStream, used by one publisher at a time
	Stream     string
	Subjects   subjects.Subjects
	NewEncoder func(maxSize func() int) *app.Encoder // maxSize returns the present limit of a message in bytes
	Queue      *Queue
	Known      *store.Acknowledged
	Log        *zap.Logger
	Metrics    *Metrics

	// State is that of the stream when it was read: the publisher goes on behind its last message.
	State      jetstream.StreamState
	MaxMsgSize int32                // of the stream; 0 or less: no limit
	Lost       []subjects.LostRange // the ranges that the stream has lost

	// Hold blocks until something may be published.
	Hold func(context.Context) error
	// Doubts reports whether each event of an app has to come back as it was sent before the next is
	// published. The first event of a session has to in any case.
	Doubts func(subjects.AppID) bool
	// Verified is called for an event that has come back.
	Verified func(subjects.AppID)
	// Leads returns nil if this bridge is the one that publishes.
	Leads func(context.Context) error
	// Published reads the last event of an app that the queue does not know.
	Published func(context.Context, subjects.AppID) (*app.Record, error)
	// Sent is called before each append: the stream stores the event at sequence or nowhere.
	Sent func(sequence uint64)
	// Stored is called for each event that is in the stream. ev is nil unless the stream
	// acknowledged it at sequence as no duplicate; it is not changed any more.
	Stored func(sequence uint64, ev *app.Event)
	// KeyMissing is called for an app that exists and of which the bucket seems to have no key, or a wrong one.
	KeyMissing func(subjects.AppID)
}

// Publisher appends the changes of a queue to the stream: one pipeline, in the order of the queue,
// with at most one event of an app in flight. Every append expects the sequence of its app's
// previous event, and that the stream ends at the append before it (fence.go). So the stream is one
// chain: a second writer, a late retry or a bug cannot duplicate or reorder, and a stream that ends
// before what was acknowledged refuses the next append.
//
// On a refusal or a missing answer sending stops. The publisher then reads from the stream's leader
// which of its events were stored (readOutcomes), and goes on behind the last message.
type Publisher struct {
	cfg     Config
	nc      *nats.Conn
	js      jetstream.JetStream
	encoder *app.Encoder
	queue   *Queue
	known   *store.Acknowledged
	log     *zap.Logger
	metrics *Metrics

	highestStored atomic.Uint64
	maxMsgSize    atomic.Int64
	failure       atomic.Pointer[string] // why the last append failed, nil if it did not
	unfit         unfit

	// The rest belongs to the goroutine that sends.
	chain     uint64 // sequence at which the next append expects the stream to end
	accounted uint64 // up to this sequence of the stream every message is accounted for
	first     uint64 // first sequence of the stream, as read last
	end       seenMessage
	connected uint64 // how many reconnects there had been when end was read or compared last
	// confirmed is the first sequence of the stream for which leads was called last.
	confirmed uint64
	flights   []*flight // sent and not answered, oldest first
	window    int       // how many of them there may be, publishWindow at most
	again     []*flight // to be sent again, before anything new
	verified  bool      // an event has come back as it was sent; until then one is sent at a time
}

// NewJetStream is a JetStream client for a publisher. It gives up on an acknowledgement after
// publishTimeout.
func NewJetStream(nc *nats.Conn, domain string) (jetstream.JetStream, error) {
	return store.NewJetStream(nc, domain, jetstream.WithDefaultTimeout(store.JetStreamTimeout), jetstream.WithPublishAsyncTimeout(publishTimeout))
}

// New makes a publisher that is not started.
func New(c Config) *Publisher {
	p := &Publisher{
		cfg: c, nc: c.NATS, js: c.Appends, queue: c.Queue, known: c.Known, log: c.Log, metrics: c.Metrics,
		chain: c.State.LastSeq, accounted: c.State.LastSeq, first: c.State.FirstSeq, window: publishWindow,
	}
	p.encoder = c.NewEncoder(func() int { return store.MaxMessage(p.nc, p.maxMsgSize.Load()) })
	p.maxMsgSize.Store(int64(c.MaxMsgSize))
	p.highestStored.Store(c.State.LastSeq)
	return p
}

// Highest is the stream sequence of the newest event that is known to be stored.
func (p *Publisher) Highest() uint64 { return p.highestStored.Load() }

// MaxMsgSize is the stream's limit of a message as the publisher read it last.
func (p *Publisher) MaxMsgSize() int32 { return int32(p.maxMsgSize.Load()) }

// Trouble is why the last append failed, nil if it did not.
func (p *Publisher) Trouble() *string { return p.failure.Load() }

func (p *Publisher) noteTrouble(err error) {
	text := err.Error()
	p.failure.Store(&text)
}

// Run publishes until ctx is done or the session has to end.
func (p *Publisher) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	stop := context.AfterFunc(ctx, p.queue.close)
	defer stop()
	taken := make(chan *flight, store.ReadWindow)
	encoded := make(chan *flight, encodeAhead)
	g.Go(func() error { return p.take(ctx, taken) })
	g.Go(func() error { return p.encode(ctx, taken, encoded) })
	g.Go(func() error { return p.send(ctx, encoded) })
	return g.Wait()
}

// send appends what is encoded. When the pipeline stops it finds out what was stored and goes on;
// it returns an error only if another session has to follow.
func (p *Publisher) send(ctx context.Context, encoded <-chan *flight) error {
	if p.cfg.Hold(ctx) != nil {
		return nil
	}
	p.connected = p.nc.Stats().Reconnects
	p.readEnd(ctx)
	pause := retry.NewPause()
	for {
		reached := p.accounted
		err := p.pipeline(ctx, encoded)
		if ctx.Err() != nil {
			p.conclude(ctx)
			return nil
		}
		if endsSession(err) {
			p.conclude(ctx)
			return err
		}
		if !errors.Is(err, errReconnected) {
			p.report(err)
		}
		p.drain(ctx)
		if err := p.readOutcomes(ctx); err != nil {
			p.removeStored()
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if p.accounted > reached || errors.Is(err, errReconnected) {
			pause.Reset() // something was appended, by this bridge or by another writer
			continue
		}
		if retry.Wait(ctx, pause.NextBackOff()) != nil {
			return nil
		}
	}
}

// conclude gives what was sent the time to be answered when the session ends. The next session then
// knows what was stored, also if the stream does not keep it.
func (p *Publisher) conclude(ctx context.Context) {
	if len(p.flights) == 0 || !p.nc.IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), concludeTimeout)
	defer cancel()
	p.drain(ctx)
	if err := p.look(ctx); err != nil {
		p.log.Debug("cannot read which of the last events were stored", zap.Error(err))
		p.removeStored()
	}
}

// removeStored takes what is known to be stored off the queue when the session ends.
func (p *Publisher) removeStored() {
	for _, f := range p.again {
		if f.stored > 0 {
			p.stored(f)
		}
	}
	p.again = nil
}

func (p *Publisher) report(err error) {
	p.metrics.retries.Inc()
	p.noteTrouble(err)
	level := zap.WarnLevel
	if !p.nc.IsConnected() {
		level = zap.DebugLevel // the lost connection is logged once
	}
	p.log.Log(level, "appending stopped; reading from the stream's leader what was stored",
		zap.Int("unacknowledged", len(p.flights)), zap.Error(err))
}
