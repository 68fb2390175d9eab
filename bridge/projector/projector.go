package projector

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

// Config is what a projector needs. All of it is required, but for Lost and Accepted.
type Config struct {
	Bucket       *store.Bucket // its JetStream context is for one projector at a time
	Stream       string
	Subjects     subjects.Subjects
	Acknowledged *store.Acknowledged  // is notified of what the stream delivers and the bucket acknowledges
	Lost         []subjects.LostRange // missing ranges of the stream that are reported already
	Accepted     uint64               // the last sequence of a history of the cluster that is over, 0 if none is
	Log          *zap.Logger
	Metrics      *Metrics
}

// Projector keeps the bucket in step with the stream: it follows the stream from what the bucket
// reflects, and writes the bucket from nothing else.
//
// Every write expects the bucket's sequence of the write before it. So writes can be pipelined:
// when one is lost, or another client writes, all later ones are refused. The projector then reads
// the bucket again and goes on from there.
type Projector struct {
	bucket   *store.Bucket
	stream   string
	subjects subjects.Subjects
	log      *zap.Logger
	metrics  *Metrics

	followed atomic.Uint64          // stream sequence up to which events were read
	written  atomic.Uint64          // stream sequence up to which the bucket is written
	failures atomic.Int32           // restarts since the last progress
	trouble  atomic.Pointer[string] // why it was last restarted
	CaughtUp chan struct{}          // closed once everything the stream held has been read
	once     sync.Once

	known   *store.Acknowledged
	sent    atomic.Uint64 // the bucket's sequence of the newest write that was sent
	lag     lag           // of the bucket behind what this bridge appended
	memory  eventCache    // of what this session appended
	restart chan error    // receives why the bucket has to be read again

	// lost are missing ranges of the stream that are reported already. Run adds to it.
	lost       []subjects.LostRange
	end        uint64        // last sequence of the stream when the first projection started
	started    bool          // end is known
	supersedes bool          // the stream keeps so many events of a subject, by configuration
	reflected  atomic.Uint64 // the highest that written has been

	accepted uint64 // the last sequence of a history of the cluster that is over
	// purging and purged count the keys that it has begun to remove from the bucket, and that it
	// has removed.
	purging, purged atomic.Uint64
	// atLeast is how many keys the bucket holds at least: those that were read, and those of apps
	// that are new since.
	atLeast atomic.Int64

	mu      sync.Mutex
	records map[subjects.AppID]*app.Record // of apps that exist, or are damaged; nil once taken
	deleted app.Deletions                  // the newest that were published
	// keys are the apps that exist, of which the bucket has, or should have, a key; with a
	// markerMaxAge also those with a delete marker.
	keys map[subjects.AppID]key
	// flying are the writes whose outcome is open, by the sequence that they get.
	flying   map[uint64]flying
	admitted bool // a bucket was read: an entry that was not written by this projector since is suspect
	// refused is the size of an app's entry that was too large, until one is written.
	refused map[subjects.AppID]int
	// touched are the apps with messages since the last call of TakeTouched, with the sequence of
	// the newest.
	touched map[subjects.AppID]uint64
}

// New makes a projector that goes on from snap, which it is then run with.
func New(cfg Config, snap *store.Snapshot) *Projector {
	p := &Projector{
		bucket: cfg.Bucket, stream: cfg.Stream, subjects: cfg.Subjects, known: cfg.Acknowledged, lost: cfg.Lost,
		accepted: cfg.Accepted, log: cfg.Log, metrics: cfg.Metrics,
		CaughtUp: make(chan struct{}),
		restart:  make(chan error, 1),
		records:  maps.Clone(snap.Records),
		deleted:  snap.Deleted,
		keys:     map[subjects.AppID]key{},
		flying:   map[uint64]flying{},
		touched:  map[subjects.AppID]uint64{},
		memory:   eventCache{limit: memoryBytes, wait: ackTime},
		refused:  map[subjects.AppID]int{},
	}
	p.followed.Store(snap.Position)
	p.written.Store(snap.Position)
	p.reflected.Store(snap.Position)
	return p
}

func (p *Projector) reader() store.Reader {
	return store.NewReader(p.bucket.JS, p.stream, p.subjects)
}

// Position is the sequence of the stream up to which the bucket is written.
func (p *Projector) Position() uint64 { return p.written.Load() }

// Delivered is the sequence up to which the stream has been read.
func (p *Projector) Delivered() uint64 { return p.followed.Load() }

// BehindSince is when the oldest event was acknowledged that the bucket does not reflect yet; zero
// if there is none.
func (p *Projector) BehindSince() time.Time { return p.lag.since(p.written.Load()) }

// NoteSent notes that this session is about to append an event, which gets sequence if the stream
// takes it.
func (p *Projector) NoteSent(sequence uint64) { p.memory.noteSent(sequence, p.connection()) }

// NoteStored notes that an event of this session is in the stream. ev is what the stream has
// acknowledged as no duplicate, and does not change any more; nil if it was found there.
func (p *Projector) NoteStored(sequence uint64, ev *app.Event) {
	p.lag.note(sequence, time.Now())
	p.memory.noteStored(sequence, ev)
}

// IsStuck reports whether the projector starts over again and again without progress.
func (p *Projector) IsStuck() bool { return p.failures.Load() > 3 }

// LastTrouble is why the projector started over last, nil if it never did.
func (p *Projector) LastTrouble() *string { return p.trouble.Load() }

// RemovedRanges are the ranges of the stream that are known to be missing. Call it after the
// end of Run.
func (p *Projector) RemovedRanges() []subjects.LostRange { return p.lost }

// TakeRecords hands out what has been published so far of the apps that exist, and the newest
// deletions, and stops collecting them.
func (p *Projector) TakeRecords() (map[subjects.AppID]*app.Record, app.Deletions) {
	p.mu.Lock()
	defer p.mu.Unlock()
	records := p.records
	p.records = nil
	return records, p.deleted
}

// Run projects until ctx is done, starting from snap. It returns an error
// only when the stream or the bucket is gone, or an entry or events for good.
func (p *Projector) Run(ctx context.Context, snap *store.Snapshot) error {
	pause, report := retry.NewPause(), retry.Log{Logger: p.log}
	for {
		before := p.written.Load()
		var err error
		if snap == nil {
			snap, err = p.bucket.LoadKeeping(ctx, p.markersNeeded())
		}
		if err == nil {
			err = p.project(ctx, snap)
			snap = nil
		}
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("%w: %w", store.ErrGone, err)
		}
		if errors.As(err, new(*store.AlteredError)) || errors.Is(err, errEntryLost) || errors.Is(err, ErrRemoved) || errors.Is(err, store.ErrLostTail) {
			return err
		}
		if p.written.Load() > before {
			pause.Reset()
			p.failures.Store(0)
		}
		p.failures.Add(1)
		p.metrics.restarts.Inc()
		if err != nil {
			text := err.Error()
			p.trouble.Store(&text)
		}
		report.Warn("restarting the bucket's projection", err)
		if retry.Wait(ctx, pause.NextBackOff()) != nil {
			return nil
		}
	}
}

func (p *Projector) lookAgain(why error) {
	select {
	case p.restart <- why:
	default: // a restart is pending
	}
}

// WaitWritten blocks until the bucket reflects sequence.
func (p *Projector) WaitWritten(ctx context.Context, sequence uint64) error {
	for p.written.Load() < sequence {
		if err := retry.Wait(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// lag knows since when the bucket is behind the stream: the acknowledgements
// of events that it does not reflect yet. Safe for concurrent use.
type lag struct {
	mu    sync.Mutex
	marks []mark // oldest first; sequences rise
}

// mark stands for the events up to sequence, the first of which was acknowledged at the time.
type mark struct {
	sequence uint64
	at       time.Time
}

// lagGrain is how many acknowledgements in a row share a mark.
const lagGrain = 250 * time.Millisecond

func (l *lag) note(sequence uint64, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.marks)
	if n > 0 && (now.Sub(l.marks[n-1].at) < lagGrain || sequence <= l.marks[n-1].sequence) {
		l.marks[n-1].sequence = max(l.marks[n-1].sequence, sequence)
		return
	}
	l.marks = append(l.marks, mark{sequence, now})
}

// since is when the oldest event was acknowledged that is newer than what the
// bucket reflects; zero if there is none.
func (l *lag) since(reflected uint64) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.marks) > 0 && l.marks[0].sequence <= reflected {
		l.marks = l.marks[1:]
	}
	if len(l.marks) == 0 {
		return time.Time{}
	}
	return l.marks[0].at
}
