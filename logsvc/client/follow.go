package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
)

const (
	// resumeMargin is how far a resumed request goes back behind the last line: lines
	// lie in a log a little out of order, and a new replica is noticed a little late.
	resumeMargin = 10 * time.Second
	// newcomer is how long a replica may write before it is noticed.
	newcomer = time.Minute
	// progressTime is how long a stream lasts that counts as a success.
	progressTime = 10 * time.Second
	// ResumeTimeout is how long Follow tries to go on while NATS is connected.
	ResumeTimeout = 5 * time.Minute
)

func followTiming() timing {
	t := defaultTiming()
	t.resumes = true
	t.gone = 5 * time.Second // another stream is cheap
	t.quietly = 2 * time.Second
	return t
}

func defaultPause() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(backoff.WithInitialInterval(100*time.Millisecond), backoff.WithRandomizationFactor(0.5),
		backoff.WithMultiplier(2), backoff.WithMaxInterval(10*time.Second), backoff.WithMaxElapsedTime(ResumeTimeout))
}

// Follow reads the log of an app like Tail, and goes on by itself when the stream
// breaks: after the last line that was handed on, without a repeat and without a
// hole. It does so after a lost connection or message, when the replica of the
// service stops, and after every other end that is neither the reader's nor the
// log's own, for ResumeTimeout without success (which begins again with each
// connection to NATS). The errors and the end of the first request are those of Tail.
//
// The handler gets each line once, whole, in the order of its replica's log. What cannot be
// closed is a Note: a log that does not hold the last line any more, or a replica that
// is gone. A Note of kind waiting reports that going on does not succeed at once. A message with
// Lines may have an empty Body. There is one Last message, with what was handed on in all.
//
// Only FormatRaw (or none) can be followed. A position is a time and a count of
// lines: it needs lines with a time, as those of pods have; others come again.
func Follow(ctx context.Context, nc *nats.Conn, req Request, handle Handler) (End, error) {
	return follow(ctx, nc, req, handle, followTiming(), defaultPause())
}

func follow(ctx context.Context, nc *nats.Conn, req Request, handle Handler, t timing, pause *backoff.ExponentialBackOff) (End, error) {
	if req.Format != "" && req.Format != FormatRaw {
		return End{}, fmt.Errorf("log request: format %q: want %s, the only one that can be resumed", req.Format, FormatRaw)
	}
	f := &follower{nc: nc, req: req, handle: handle, timing: t, pause: pause, places: map[string]*place{}}
	end, err := f.run(ctx)
	if f.last == nil || f.failed != nil {
		return end, err
	}
	end.Lines = f.lines
	f.last.End.Lines = f.lines
	if failed := handle(f.last); failed != nil {
		return end, failed
	}
	return end, err
}

// place is a position, and how far it is in the stream that is read now.
type place struct {
	position

	live bool // one of the replicas that are read
	// came is from when on the log is needed while nothing of it was handed on, and
	// least the time before which nothing of it is wanted.
	came    time.Time
	least   stamp
	passage passage
}

// begin begins another reading of the log; one of the same attempt may have met the last line.
func (p *place) begin(pass pass, sure bool) {
	p.passage = passage{position: p.position, skipping: p.any, sure: sure, before: pass == passBacklog}
	if !p.any {
		p.passage.least = p.least
	}
}

// from is from when on the log is needed.
func (p *place) from() time.Time {
	if p.any {
		return p.last.time()
	}
	return p.came
}

// follower is one call of Follow. It is for one goroutine.
type follower struct {
	nc     *nats.Conn
	req    Request
	handle Handler
	timing timing
	pause  *backoff.ExponentialBackOff

	began   time.Time // of the first request
	started bool      // the first stream has begun
	places  map[string]*place
	lines   int64
	failed  error    // of the handler
	last    *Message // the end of the newest stream
	// reconnects of the connection at the last pause.
	reconnects uint64

	pass    pass
	listed  bool      // this stream has named its replicas
	names   string    // of the replicas, as they were handed on last
	noted   time.Time // when
	waiting string    // the newest note of that kind, until something else comes
	pending bool      // the handler expects another message
}

// pass is what a stream is read for.
type pass int

const (
	passFirst pass = iota
	// passBacklog: what there was before the first request, of replicas of which
	// nothing was handed on.
	passBacklog
	// passPrevious: what instances wrote that ended during the interruption.
	passPrevious
	passMain
)

func (f *follower) run(ctx context.Context) (End, error) {
	f.began = time.Now()
	f.noted = f.began
	said := false
	var broken time.Time // since when no attempt succeeded; zero while one has
	for {
		resumed, began, lines := f.started, time.Now(), f.lines
		end, err := f.attempt(ctx)
		if err = f.settle(err); f.final(ctx, end, err) {
			return end, err
		}
		switch {
		case f.lines > lines, f.listed && time.Since(began) > progressTime:
			f.pause.Reset()
			said, broken = false, time.Time{}
		case f.pass == passMain && f.listed:
			said, broken = false, time.Time{}
		case broken.IsZero() && resumed:
			broken = began
		}
		if !broken.IsZero() && !said && time.Since(broken) >= f.timing.quietly {
			said = true
			if err := f.note("the log stream was interrupted ("+describe(end, err)+"), trying to go on", ""); err != nil {
				return End{}, err
			}
		}
		if stop := f.rest(ctx); stop != nil {
			if ctx.Err() == nil {
				stop = fmt.Errorf("the log stream could not be resumed within %s: %s", ResumeTimeout, describe(end, err))
			}
			return End{}, stop
		}
	}
}

func describe(end End, err error) string {
	if err == nil {
		return "the service ended it: " + string(end.Reason)
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}

// settle ends what a stream that broke has left open with the handler.
func (f *follower) settle(err error) error {
	if f.failed == nil && f.pending {
		if failed := f.hand(&Message{Kind: Lines}); failed != nil {
			return failed
		}
	}
	return err
}

// final reports whether the end is the reader's or the log's own, or one that would
// come again.
func (f *follower) final(ctx context.Context, end End, err error) bool {
	var failure *Error
	var ended *EndError
	switch {
	case f.failed != nil, ctx.Err() != nil, errors.Is(err, nats.ErrConnectionClosed):
		return true
	case err == nil:
		// The service has a limit of its own for readers in other accounts.
		return end.Reason != subjects.LogEndMaxDuration || f.req.MaxDuration > 0 && f.remaining() < time.Second
	case errors.As(err, &ended):
		return !f.started && ended.Reason != subjects.LogEndShutdown && ended.Reason != subjects.LogEndStalled
	case !f.started:
		return true
	case errors.As(err, &failure):
		switch failure.Code {
		case subjects.CodeInvalidArgument, subjects.CodePermissionDenied, subjects.CodeNotFound, subjects.CodeFailedPrecondition:
			return true
		}
		return false
	}
	return !errors.Is(err, ErrGone) && !errors.Is(err, ErrGap) && !errors.Is(err, ErrNoAnswer) && !errors.Is(err, ErrNoService)
}

func (f *follower) remaining() time.Duration { return f.req.MaxDuration - time.Since(f.began) }

// rest pauses before the next attempt, and waits for a connection.
func (f *follower) rest(ctx context.Context) error {
	if n := f.nc.Stats().Reconnects; n != f.reconnects {
		f.reconnects = n
		f.pause.Reset()
	}
	wait := f.pause.NextBackOff()
	if wait == backoff.Stop {
		return ErrGone
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		if f.nc.IsConnected() || f.nc.IsClosed() {
			return nil // of a closed connection the next attempt returns why
		}
		f.pause.Reset()
		timer.Reset(f.timing.look)
	}
}

// attempt reads until the stream ends or breaks.
func (f *follower) attempt(ctx context.Context) (End, error) {
	if f.names == "" && len(f.places) == 0 {
		return f.read(ctx, passFirst, f.req) // nothing is known yet
	}
	req := f.req
	req.Since, req.SinceStart, req.SinceTime, req.Tail = 0, false, f.since(), nil
	for _, p := range f.places {
		p.passage.sure = false
	}
	if f.hasBacklog() {
		backlog := f.req
		backlog.Follow = new(false)
		if err := f.catchUp(ctx, passBacklog, backlog); err != nil {
			return End{}, err
		}
	}
	if !f.req.Previous {
		previous := req
		previous.Previous, previous.Follow = true, new(false)
		if err := f.catchUp(ctx, passPrevious, previous); err != nil {
			return End{}, err
		}
	}
	end, err := f.read(ctx, passMain, req)
	var failure *Error
	if errors.As(err, &failure) && failure.Code == subjects.CodeNotFound {
		// Without an interruption this would have been the end of the log.
		if err := f.note("the app or the replica is gone; its last lines may be missing", ""); err != nil {
			return End{}, err
		}
		end = End{Reason: subjects.LogEndEOF}
		f.last = &Message{Kind: Last, End: end}
		return end, nil
	}
	return end, err
}

// catchUp reads what the resumed stream will not bring. Nothing of that kind is no error.
func (f *follower) catchUp(ctx context.Context, pass pass, req Request) error {
	end, err := f.read(ctx, pass, req)
	var failure *Error
	switch {
	case errors.As(err, &failure) && (failure.Code == subjects.CodeFailedPrecondition || failure.Code == subjects.CodeNotFound):
		return nil
	case err == nil && end.Reason != subjects.LogEndEOF:
		return &EndError{Reason: end.Reason}
	}
	return err
}

// since is from when on the log is needed: for every replica that was read, and
// for those that came meanwhile.
func (f *follower) since() time.Time {
	var first time.Time
	for name, p := range f.places {
		at := p.from()
		switch {
		case p.live && (first.IsZero() || at.Before(first)):
			first = at
		case !p.live && time.Since(at) > time.Hour:
			delete(f.places, name) // it went long ago
		}
	}
	if first.IsZero() {
		first = f.noted // there was none
	}
	return first.Add(-resumeMargin)
}

// hasBacklog reports whether the request began with the last lines of logs of which
// nothing came.
func (f *follower) hasBacklog() bool {
	if f.req.Tail == nil && (f.req.Since != 0 || !f.req.SinceTime.IsZero()) || f.req.Tail != nil && *f.req.Tail == 0 {
		return false // everything from the floor on was wanted
	}
	for _, p := range f.places {
		if p.live && !p.any && p.least != (stamp{}) {
			return true
		}
	}
	return false
}

// floor is from when on everything was wanted of the replicas that there were first.
func (f *follower) floor() time.Time {
	switch {
	case f.req.Tail != nil:
	case f.req.Since != 0:
		return f.began.Add(-f.req.Since)
	case !f.req.SinceTime.IsZero():
		return f.req.SinceTime
	}
	return f.began
}

// read reads one stream.
func (f *follower) read(ctx context.Context, pass pass, req Request) (End, error) {
	f.pass, f.listed, f.last = pass, false, nil
	for _, p := range f.places {
		p.begin(pass, p.passage.sure)
	}
	req.Format, req.Timestamps = FormatRaw, true
	if f.req.MaxDuration > 0 && pass != passFirst {
		req.MaxDuration = max(f.remaining(), time.Millisecond)
	}
	return tail(ctx, f.nc, req, f.take, f.timing)
}

// take is the handler of a stream.
func (f *follower) take(m *Message) error {
	if m.Kind == Last {
		f.last = m
		return nil
	}
	f.started = true
	more := m.More
	err := f.pick(m)
	if err == nil && !more && f.pending {
		err = f.hand(&Message{Kind: Lines}) // the handler is waiting for more
	}
	return err
}

// pick hands on what is new.
func (f *follower) pick(m *Message) error {
	if m.Kind == Lines {
		return f.takeLines(m)
	}
	if f.pass == passPrevious || f.pass == passBacklog {
		return nil // the resumed stream reports the same
	}
	switch m.Note {
	case subjects.LogNoteReplicas:
		return f.takeReplicas(m)
	case subjects.LogNoteWaiting:
		if f.pass != passFirst && f.waiting == string(m.Body) {
			return nil
		}
		f.waiting = string(m.Body)
	}
	return f.hand(m)
}

func (f *follower) takeLines(m *Message) error {
	p := f.places[m.Replica]
	switch {
	case p != nil:
	case f.pass == passBacklog:
		return nil // it came meanwhile, and is read from its first line
	default:
		p = &place{live: true, came: time.Now().Add(-newcomer)}
		f.places[m.Replica] = p
	}
	next := p.passage
	body, lines, hole := next.read(m.Body, f.req.Timestamps)
	if hole {
		if err := f.note("the log does not hold the last line before the interruption any more; lines may be missing here", m.Replica); err != nil {
			return err
		}
	}
	if lines > 0 {
		m.Body = body
		if err := f.hand(m); err != nil {
			return err
		}
		f.lines += int64(lines)
		f.waiting = ""
	}
	p.passage, p.position = next, next.position
	return nil
}

// takeReplicas notes which replicas are read, and reports which of them were lost
// during the interruption.
func (f *follower) takeReplicas(m *Message) error {
	for _, name := range m.Replicas {
		if f.places[name] != nil {
			continue
		}
		p := &place{came: time.Now().Add(-newcomer)}
		if f.pass == passFirst && !f.listed {
			p.came, p.least = f.floor(), stampAt(f.floor())
		}
		f.places[name] = p
	}
	for _, name := range slices.Sorted(maps.Keys(f.places)) {
		p := f.places[name]
		live := slices.Contains(m.Replicas, name)
		if p.live && !live && f.pass == passMain && !f.listed {
			if err := f.note("it is gone since the interruption; its last lines may be missing", name); err != nil {
				return err
			}
		}
		p.live = live
	}
	first := !f.listed
	f.listed, f.noted = true, time.Now()
	names := strings.Join(m.Replicas, ",") + "."
	if first && f.pass == passMain && names == f.names {
		return nil
	}
	f.names, f.waiting = names, ""
	return f.hand(m)
}

// note hands on a note of this side.
func (f *follower) note(text, replica string) error {
	note := &Message{Kind: Note, Note: subjects.LogNoteWaiting, Replica: replica, More: f.pending}
	if replica != "" {
		note.Note, text = subjects.LogNoteReplica, "replica "+replica+": "+text
	}
	note.Body = slices.Concat([]byte(subjects.LogNotePrefix), bytes.ReplaceAll([]byte(text), []byte("\n"), []byte(" ")), []byte("\n"))
	return f.hand(note)
}

func (f *follower) hand(m *Message) error {
	f.failed = f.handle(m)
	f.pending = m.More
	return f.failed
}
