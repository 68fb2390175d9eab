package bridge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/subjects"
)

// writeWindow is how many bucket writes may be unacknowledged.
const writeWindow = 256

// projector keeps the bucket in step with the stream: it follows the stream
// from what the bucket reflects, and writes the bucket from nothing else.
//
// Every write expects the bucket's sequence of the write before it. So writes
// can be pipelined: when one is lost, or somebody else wrote, all later ones
// are refused, and the projector reads again how far the bucket is and goes
// on from there.
type projector struct {
	nc       *nats.Conn
	bucket   *bucket
	stream   string
	subjects subjects.Subjects
	log      *zap.Logger
	metrics  *metrics

	followed atomic.Uint64          // stream sequence up to which events were read
	written  atomic.Uint64          // stream sequence up to which the bucket is written
	failures atomic.Int32           // restarts since the last progress
	trouble  atomic.Pointer[string] // why it was last restarted
	caughtUp chan struct{}          // closed once everything the stream held has been read
	once     sync.Once

	known   *acknowledged // is notified of what the stream delivers and the bucket acknowledges
	sent    atomic.Uint64 // the bucket's sequence of the newest write that was sent
	lag     lag           // of the bucket behind what this bridge appended
	restart chan error    // asks for a new look at the bucket, and says why

	// lost are ranges of the stream that are missing without being news. It is
	// set before run, which adds to it.
	lost       []subjects.LostRange
	end        uint64        // last sequence of the stream when the first projection started
	started    bool          // end is known
	supersedes bool          // the stream keeps so many events of a subject, by configuration
	reflected  atomic.Uint64 // the highest that written has been

	// accepted is the newest sequence of a history of the cluster that is over. It is set before run.
	accepted uint64
	// purging and purged count the keys that it has begun to remove from the bucket, and that it has
	// removed.
	purging, purged atomic.Uint64
	// atLeast is how many keys the bucket holds at least: those that were read, and those of apps that
	// are new since.
	atLeast atomic.Int64

	mu      sync.Mutex
	records map[subjects.AppID]*record // of apps that exist, or are damaged; nil once taken
	deleted deletion                   // the newest that was published
	// keys are the apps that exist, of which the bucket has, or should have, a key; with a
	// markerMaxAge also those with a delete marker.
	keys map[subjects.AppID]key
	// flying are the writes whose fate is open, by the sequence that they get.
	flying   map[uint64]flying
	admitted bool // a bucket was read: an entry that was not written by this projector since is suspect
	// refused is how large an app's entry was that was refused for its size,
	// until one is written.
	refused map[subjects.AppID]int
	// touched are the apps with messages since it was last asked, with the
	// sequence of the newest.
	touched map[subjects.AppID]uint64
}

func newProjector(nc *nats.Conn, b *bucket, stream string, s subjects.Subjects, snap *snapshot, log *zap.Logger, m *metrics) *projector {
	p := &projector{
		nc: nc, bucket: b, stream: stream, subjects: s, log: log, metrics: m,
		known:    &acknowledged{},
		caughtUp: make(chan struct{}),
		restart:  make(chan error, 1),
		records:  maps.Clone(snap.records),
		deleted:  snap.deleted,
		keys:     map[subjects.AppID]key{},
		flying:   map[uint64]flying{},
		touched:  map[subjects.AppID]uint64{},
		refused:  map[subjects.AppID]int{},
	}
	p.followed.Store(snap.position)
	p.written.Store(snap.position)
	p.reflected.Store(snap.position)
	return p
}

// take hands out what has been published so far of the apps that exist, and the newest deletion, and
// stops collecting them.
func (p *projector) take() (map[subjects.AppID]*record, deletion) {
	p.mu.Lock()
	defer p.mu.Unlock()
	records := p.records
	p.records = nil
	return records, p.deleted
}

// run projects until ctx is done, starting from snap. It returns an error
// only when the stream or the bucket is gone, or an entry or events for good.
func (p *projector) run(ctx context.Context, snap *snapshot) error {
	pause, report := retry.NewPause(), retry.Log{Logger: p.log}
	for {
		before := p.written.Load()
		var err error
		if snap == nil {
			snap, err = p.bucket.loadKeeping(ctx, p.markersNeeded())
		}
		if err == nil {
			err = p.project(ctx, snap)
			snap = nil
		}
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("%w: %w", errStorageGone, err)
		}
		if errors.Is(err, errEntryLost) || errors.Is(err, errRemoved) || errors.Is(err, errLostTail) {
			return err
		}
		if p.written.Load() > before {
			pause.Reset()
			p.failures.Store(0)
		}
		p.failures.Add(1)
		wait := pause.NextBackOff()
		p.metrics.projectionRestarts.Inc()
		if err != nil {
			text := err.Error()
			p.trouble.Store(&text)
		}
		report.Warn("the bucket's projection starts over", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// write is a bucket write under way; future is nil for an event that leaves
// the bucket as it is.
type write struct {
	future   jetstream.PubAckFuture
	sequence uint64
	app      subjects.AppID
	exists   bool
	first    bool   // the app has no event before this one
	event    uint64 // the sequence that the message reflects
	size     int    // of the message
	end      bool   // the stream held nothing behind it
}

// entry is what a message of the stream makes of the bucket.
type entry struct {
	msg    *nats.Msg // nil for a message that leaves the bucket as it is
	app    subjects.AppID
	exists bool
	// foreign is true if the message is no event, although it is on app's subject.
	foreign bool
	end     bool // the stream holds nothing behind that message
}

// project follows the stream from snap on until something fails.
func (p *projector) project(ctx context.Context, snap *snapshot) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	window := make(chan write, writeWindow)
	var helpers sync.WaitGroup
	defer helpers.Wait()
	helpers.Go(func() {
		for w := range window {
			if err := p.await(ctx, w); err != nil {
				cancel(err)
			}
		}
	})
	defer close(window)
	ended := make(chan struct{})
	defer close(ended)
	helpers.Go(func() {
		select {
		case err := <-p.restart:
			cancel(err)
		case <-ended:
		}
	})

	p.admit(snap) // first: what snap lacks is known from here on
	p.adopt(snap)
	p.sent.Store(snap.last)
	stream, err := p.lookUp(ctx)
	if err != nil {
		return err
	}
	if !p.started {
		p.started, p.end = true, stream.State.LastSeq
	}
	if had := p.known.get().Bucket; snap.last < had {
		return fmt.Errorf("%w: the stream of bucket %s ends at sequence %d, it had acknowledged %d", errLostTail, p.bucket.name, snap.last, had)
	}
	if snap.position > stream.State.LastSeq {
		return fmt.Errorf("%w: bucket %s reflects sequence %d, stream %s ends at %d", errLostTail, p.bucket.name, snap.position, p.stream, stream.State.LastSeq)
	}
	p.supersedes = stream.Config.MaxMsgsPerSubject > 0
	sweep, stopSweep := context.WithCancel(ctx)
	defer stopSweep()
	helpers.Go(func() { p.sweepMarkers(sweep) })

	send := func(e entry, sequence uint64) error {
		w := write{sequence: sequence, app: e.app, exists: e.exists, end: e.end}
		if e.msg != nil {
			w.size = sizeOfEntry(e.msg)
			w.first = e.exists && e.msg.Header.Get(subjects.HeaderPreviousSequence) == ""
			w.event, _ = strconv.ParseUint(e.msg.Header.Get(subjects.HeaderEventSequence), 10, 64)
			e.msg.Header.Set(subjects.HeaderExpectedLastSequence, strconv.FormatUint(p.sent.Load(), 10))
			p.fly(p.sent.Add(1), flying{e.app, w.event}) // first: the guard must never see more than this
			future, err := p.bucket.js.PublishMsgAsync(e.msg, jetstream.WithRetryAttempts(0))
			if isTooLarge(err) {
				p.tooLarge(w.app, w.size)
			}
			if err != nil {
				return fmt.Errorf("write %s: %w", e.msg.Subject, err)
			}
			w.future = future
		}
		select {
		case window <- w:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	for _, e := range snap.rewrites {
		if p.wasRefused(e) || snap.suspected(e.app) {
			continue // it keeps its encoding, or checkSuspects writes it
		}
		if err := send(e, 0); err != nil {
			return err
		}
	}
	if err := p.restoreDamaged(ctx, snap, send); err != nil {
		return err
	}
	if err := p.checkSuspects(ctx, snap, send); err != nil {
		return err
	}
	// Whoever wrote it, the bucket reflects this much.
	p.followed.Store(max(p.followed.Load(), snap.position))
	if err := send(entry{}, snap.position); err != nil {
		return err
	}

	// The end of the stream is what its leader has: the consumer may be on a
	// replica that is catching up.
	target, err := newestSequence(ctx, p.nc, p.stream, allMessages)
	if err != nil {
		return err
	}
	t := &tail{projector: p, target: target, at: snap.position, checked: max(snap.position, p.reflected.Load())}
	from := jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:   snap.position + 1,
	}
	if snap.position == 0 {
		// The bucket reflects nothing: what was superseded long ago need not be
		// written. An app has three subjects, so at most three messages come of it.
		from = jetstream.OrderedConsumerConfig{
			DeliverPolicy:  jetstream.DeliverLastPerSubjectPolicy,
			FilterSubjects: []string{p.subjects.Events()},
		}
		t.skips = true
	}
	return follow(ctx, p.bucket.js, p.stream, from, func() error { return t.idle(ctx) }, func(msg jetstream.Msg, meta *jetstream.MsgMetadata) error {
		sequence := meta.Sequence.Stream
		if sequence <= t.at {
			return nil // the bucket reflects it
		}
		if err := t.reach(ctx, sequence); err != nil {
			return err
		}
		e := p.apply(msg.Subject(), sequence, msg.Headers(), msg.Data())
		if e.foreign && sequence <= t.skipped {
			if err := p.behindForeign(ctx, &e, sequence); err != nil {
				return err
			}
		}
		e.end = meta.NumPending == 0
		if err := send(e, sequence); err != nil {
			return err
		}
		p.followed.Store(max(p.followed.Load(), sequence))
		p.known.noteStream(sequence)
		if sequence >= t.target && meta.NumPending == 0 {
			t.caughtUp()
		}
		return nil
	})
}

// lookUp reads the stream's state from its leader.
func (p *projector) lookUp(ctx context.Context) (*jetstream.StreamInfo, error) {
	stream, err := p.bucket.js.Stream(ctx, p.stream)
	if err != nil {
		return nil, fmt.Errorf("look up stream %s: %w", p.stream, err)
	}
	return stream.CachedInfo(), nil
}

// adopt takes what another bridge has projected, and this one has not followed,
// into the records. Once they are taken it notes the apps, so that the session
// learns of the other writer.
func (p *projector) adopt(snap *snapshot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	followed := p.followed.Load()
	for id, r := range snap.records {
		switch had := p.records[id]; {
		case r.damaged, r.sequence <= followed && !had.isDamaged():
		case p.records == nil:
			p.touched[id] = max(p.touched[id], r.sequence)
		default:
			p.records[id] = r
			if had != nil && had.foreign > r.sequence {
				p.records[id] = r.behind(had.foreign)
			}
		}
	}
	for id, m := range snap.markers {
		switch {
		case m.event <= followed:
		case p.records == nil:
			p.touched[id] = max(p.touched[id], m.event)
		default:
			delete(p.records, id)
		}
	}
	if snap.position > followed {
		p.deleted.note(snap.deleted.app, snap.deleted.version)
	}
}

// await waits for the fate of a write.
func (p *projector) await(ctx context.Context, w write) error {
	if ctx.Err() != nil {
		return context.Cause(ctx) // an earlier write failed: none after it counts
	}
	if w.future != nil {
		select {
		case ack := <-w.future.Ok():
			p.known.noteBucket(ack.Sequence)
			p.metrics.snapshotWrites.Inc()
			p.failures.Store(0)
			p.stored(w.app, key{exists: w.exists, event: w.event, at: storedAt{ack.Sequence, time.Now()}}, w.first)
		case err := <-w.future.Err():
			if isTooLarge(err) {
				p.tooLarge(w.app, w.size)
			}
			return fmt.Errorf("write the bucket for sequence %d: %w", w.sequence, err)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if w.end {
		p.failures.Store(0) // everything is written, so nothing fails
	}
	if w.sequence > p.written.Load() {
		p.written.Store(w.sequence)
		p.reflected.Store(max(p.reflected.Load(), w.sequence))
		p.lag.since(w.sequence) // forgets what is reflected
	}
	return nil
}

// lookAgain has the projector read the bucket anew.
func (p *projector) lookAgain(why error) {
	select {
	case p.restart <- why:
	default: // it is about to
	}
}

// apply takes a message of the stream into the records and tells what it makes
// of the bucket.
func (p *projector) apply(subject string, sequence uint64, h nats.Header, data []byte) entry {
	switch {
	case p.subjects.IsLost(subject):
		return entry{}
	case p.subjects.IsNotice(subject):
		p.notice(sequence, h.Get(subjects.HeaderLostFrom), h.Get(subjects.HeaderLostTo))
		return entry{}
	}
	id, kind, err := p.subjects.ParseEvent(subject)
	if err != nil {
		p.foreign(subject, sequence, err)
		return entry{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// After a restart of the projection older events come again.
	again := sequence <= p.followed.Load()
	if p.records == nil && !again {
		p.touched[id] = max(p.touched[id], sequence)
	}
	had := p.records[id]
	r, err := recordOfEvent(kind, sequence, h, data)
	if err != nil {
		p.foreign(subject, sequence, err)
		if had != nil {
			// It counts for the fence of the app whose subject it took.
			p.records[id] = had.behind(sequence)
		}
		return entry{app: id, foreign: true}
	}
	if !again || had.isDamaged() || had != nil && had.sequence <= sequence {
		p.collect(id, r)
	}
	return entry{msg: p.entryOf(id, r, h), app: id, exists: r.exists()}
}

// collect makes r the record of an app, or takes the app out of the records if r is a delete, while
// they are collected. mu must be held.
func (p *projector) collect(id subjects.AppID, r *record) {
	switch {
	case p.records == nil:
	case r.kind == subjects.Deleted:
		delete(p.records, id)
		if r.sequence > p.accepted {
			p.deleted.note(id, r.deletedVersion)
		}
	default:
		p.records[id] = r
	}
}

// behindForeign makes the entry of an app whose last event the message at
// sequence, which is none, superseded.
func (p *projector) behindForeign(ctx context.Context, e *entry, sequence uint64) error {
	last, err := (reader{p.nc, p.stream, p.subjects}).lastEventOf(ctx, e.app, 0)
	if err != nil || last == nil || last.record == nil || last.record.sequence > sequence {
		return err
	}
	p.restored(e.app, last)
	p.mu.Lock()
	defer p.mu.Unlock()
	e.msg, e.exists = p.entryOf(e.app, last.record, last.header), last.record.exists()
	return nil
}

// takeTouched returns the apps that messages came for since the last call.
func (p *projector) takeTouched() map[subjects.AppID]uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	touched := p.touched
	p.touched = map[subjects.AppID]uint64{}
	return touched
}

// touch puts an app back for the next call of takeTouched.
func (p *projector) touch(id subjects.AppID, sequence uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.touched[id] = max(p.touched[id], sequence)
}

func (p *projector) foreign(subject string, sequence uint64, err error) {
	p.metrics.foreignMessages.Inc()
	p.log.Error("the stream holds a message that is no app event; it is passed over",
		zap.String("subject", subject), zap.Uint64("sequence", sequence), zap.Error(err))
}

// waitWritten blocks until the bucket reflects sequence.
func (p *projector) waitWritten(ctx context.Context, sequence uint64) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for p.written.Load() < sequence {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
