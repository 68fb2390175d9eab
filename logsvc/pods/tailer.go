package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/bridge/kube"
	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/subjects"
)

// reportLag is how late a kubelet's report of a restart may be.
const reportLag = time.Minute

// tailer reads the log of one replica, through restarts and failures. It is for one goroutine.
type tailer struct {
	src       *Source
	q         logsvc.Query
	out       logsvc.Sink
	target    podContainer
	listed    bool // the target's pod was just listed
	cursor    *cursor
	progress  progress
	opened    time.Time // when the query came
	following bool
	caughtUp  bool   // what exists of the log was read, and a follow opens behind it
	stuck     bool   // the last follow stood still
	silent    int    // follows in a row that brought nothing
	astray    int    // follows that searched for too long since one found its position
	endNoted  string // the instance whose end was reported
	reported  string // the place that the Sink has
	resumed   bool   // progress.id is from the query
	gone      bool   // the pod is gone
	unread    bool   // a request has failed since all lines came, or none has come
	outage    outage
	pause     *backoff.ExponentialBackOff
	failure   error // why the log could not be read, at the end of a stream that does not follow

	// wake wakes a tailer that waits for its container.
	wake     chan struct{}
	followed followedLog
}

// newTailer makes a tailer. It reads behind the replica's position in the query. A late one reads its log
// from the beginning, because there was none when the stream began; one that a query to resume does not
// have is late as well.
func (s *appLog) newTailer(target podContainer, out logsvc.Sink, late bool) *tailer {
	c := newCursor(s.q.Positions)
	t := &tailer{
		src: s.src, q: s.q, out: out, target: target, listed: true, opened: s.opened, cursor: c,
		pause: backoff.NewExponentialBackOff(
			backoff.WithInitialInterval(100*time.Millisecond), backoff.WithMaxInterval(2*time.Second), backoff.WithMaxElapsedTime(0)),
		wake: make(chan struct{}, 1),
	}
	at, known := s.q.Resume[target.pod.Name]
	switch {
	case at.Place != "":
		t.resume(s.places[target.pod.Name], at.Lines)
	case late, s.q.Resume != nil && !known:
		c.start()
	}
	return t
}

// run returns nil at the end of the log.
func (t *tailer) run(ctx context.Context, follow bool) error {
	read := t.readOnce
	if t.following = follow; follow {
		read = t.follow
	}
	err := read(ctx)
	if sink, ok := errors.AsType[sinkError](err); ok {
		return sink.error
	}
	return err
}

func (t *tailer) follow(ctx context.Context) error {
	for {
		state, err := t.state(ctx)
		if err != nil {
			if err := t.retry(ctx, err); err != nil {
				return err
			}
			continue
		}
		step, id := t.progress.next(state)
		switch step {
		case stepDone:
			if t.gone = state.gone; state.gone && (t.unread || t.outage.reported) {
				return t.noteGone(ctx)
			}
			return nil
		case stepWait:
			err = t.waitStart(ctx, state)
		case stepBegin:
			err = t.switchTo(ctx, state, id)
		case stepFollow:
			err = t.readRunning(ctx)
		case stepRest, stepPrevious:
			err = t.readEnded(ctx, step == stepPrevious)
		}
		if err != nil {
			return err
		}
	}
}

func (t *tailer) switchTo(ctx context.Context, state containerState, id string) error {
	t.unread = true
	if t.progress.id == "" {
		t.progress = progress{id: id, number: state.numberOf(id)}
		return nil
	}
	// When a kubelet reports a restart late, lines of this instance were read as lines of the
	// last one, and must not come twice. A resync finds a restart within reportLag; lines that
	// seem to be newer come from a clock that was set back.
	c := t.cursor
	last := time.Unix(0, c.trail.last)
	doubtful := c.place == placeTrail && id == state.current && !last.Before(state.started) && !last.After(state.started.Add(reportLag))
	if doubtful {
		// Both may begin with the same lines at the same time.
		_, old, err := t.inPrevious(ctx)
		if err != nil {
			return t.retry(ctx, err)
		}
		doubtful = !old
	}
	skips := t.progress.skips(state, id)
	t.progress = progress{id: id, before: t.progress.id, number: state.numberOf(id)}
	t.src.metrics.resumes.WithLabelValues(resumeRestart).Inc()
	t.caughtUp = false
	if c.doubtful = doubtful; !doubtful {
		c.start()
	}
	if err := t.noteStart(ctx, skips); err != nil {
		return err
	}
	return t.reportPlace(ctx)
}

// noteGone notes that the pod is gone before its log was read to the end.
func (t *tailer) noteGone(ctx context.Context) error {
	return t.note(ctx, "gone before all of its log was read; the last lines may be missing")
}

// noteStart notes that another instance is read. skips: lines are missing before it.
func (t *tailer) noteStart(ctx context.Context, skips bool) error {
	text := "container " + t.target.container + " started again"
	if skips {
		text += " more than once meanwhile; lines may be missing here"
	}
	return t.note(ctx, text)
}

// readRunning reads the log of a container that runs: what exists, at the pace of the reader, then as it
// grows.
func (t *tailer) readRunning(ctx context.Context) error {
	if !t.caughtUp {
		err := t.readAll(ctx, readOptions{stuck: t.stuck})
		t.keepUnread(err)
		t.caughtUp, t.stuck = err == nil, false
		if err == nil {
			return t.reportPlace(ctx)
		}
		return t.retry(ctx, err)
	}
	pass, err := t.readFollow(ctx)
	t.keepUnread(err)
	if !pass.opened {
		return t.retry(ctx, err)
	}
	t.stuck = errors.Is(err, errStuck)
	if t.stuck || errors.Is(err, errBehind) || pass.lines == 0 && errors.As(err, new(kubeletError)) {
		t.caughtUp = false
		return nil
	}
	cause := resumeEOF
	if err != nil {
		cause = resumeError
		if err := t.terminal(ctx, err); err != nil {
			return err
		}
	}
	t.src.metrics.resumes.WithLabelValues(cause).Inc()
	if pass.lines > 0 || pass.took > time.Second {
		t.pause.Reset()
		return nil
	}
	return t.backOff(ctx)
}

func (t *tailer) readEnded(ctx context.Context, previous bool) error {
	err := t.readAll(ctx, readOptions{previous: previous, ends: true})
	t.keepUnread(err)
	if err == nil {
		t.progress.complete = true
		return t.reportPlace(ctx)
	}
	if t.lost(err) {
		t.progress.complete, t.unread = true, false
		return t.noteLost(ctx, err)
	}
	return t.retry(ctx, err)
}

// keepUnread keeps whether lines may be unread after a read. A log that is removed does not show that, nor does
// a pod: after the end of a follow that is what comes next.
func (t *tailer) keepUnread(err error) {
	if !removed(err) && !errors.Is(err, errMoved) {
		t.unread = err != nil
	}
}

// lost reports whether the rest of an instance's log cannot be read any more.
func (t *tailer) lost(err error) bool {
	return removed(err) && t.outage.failed() > t.src.timing.patience
}

func (t *tailer) noteLost(ctx context.Context, err error) error {
	t.outage.end()
	return t.note(ctx, "the rest of the log of container "+t.target.container+" cannot be read: "+unreadable(err))
}

// removed reports whether there is no log: the kubelet removes old ones.
func removed(err error) bool {
	return apierrors.IsBadRequest(err) || apierrors.IsNotFound(err) || errors.As(err, new(kubeletError))
}

// readAll reads what exists, in as many requests as it takes to be sure that nothing is missing. A
// follow makes sure by itself.
func (t *tailer) readAll(ctx context.Context, o readOptions) error {
	var before readResult
	for i := range maxPasses {
		o.final = i == maxPasses-1
		pass, err := t.readOn(ctx, o)
		if err != nil {
			return err
		}
		t.pause.Reset()
		empty := t.cursor.place == placeQuery && pass.bytes == 0
		quick := pass.took <= passTime && pass.bytes <= passBytes
		switch {
		case empty && i > 0 && before.bytes == 0:
			t.cursor.start() // all that is written is new
			return nil
		case empty || pass.torn:
		case quick || t.following && !o.ends, i > 0 && (pass.lines == 0 || pass.took > before.took/2):
			return nil
		}
		before = pass
	}
	return nil
}

// readOn makes one request, or as many as it takes to find the place where the last one ended.
func (t *tailer) readOn(ctx context.Context, o readOptions) (readResult, error) {
	switch t.cursor.place {
	case placeQuery:
		return t.readFirst(ctx, o)
	case placeStart:
		return t.readStart(ctx, o)
	default:
		return t.readBehind(ctx, o, firstView)
	}
}

// readOnce reads what exists. If that fails for too long, it sets failure and sends a note.
func (t *tailer) readOnce(ctx context.Context) error {
	if t.q.Tail == 0 && t.cursor.place == placeQuery {
		return nil
	}
	reading := ctx
	if !t.q.Until.IsZero() {
		var stop context.CancelFunc
		reading, stop = context.WithDeadlineCause(ctx, t.q.Until, errLate)
		defer stop()
	}
	for {
		err := t.tryReadOnce(reading)
		switch {
		case err == nil:
			t.failure = nil
			return nil
		case ctx.Err() == nil && reading.Err() != nil:
			if errors.Is(err, errThrottled) {
				t.failure = err
			}
			return t.late(ctx)
		}
		if err := t.terminal(ctx, err); err != nil {
			return err
		}
		t.failure = err
		t.src.metrics.failures.Inc()
		if t.q.Until.IsZero() && t.outage.failed() > t.src.timing.patience {
			return t.note(ctx, "cannot be read: "+unreadable(err))
		}
		if t.backOff(reading) != nil {
			if ctx.Err() == nil {
				return t.late(ctx)
			}
			return context.Cause(ctx)
		}
	}
}

// late ends a query whose time is over before the log is read.
func (t *tailer) late(ctx context.Context) error {
	some, err := t.cursor.place == placeTrail, cmp.Or(t.failure, errLate)
	t.failure = err
	switch {
	case denied(err):
		return t.deniedError(ctx, err)
	case some:
		t.failure = nil // the reader has lines
		return t.note(ctx, "not all of it could be read: "+unreadable(err))
	default:
		return t.note(ctx, "cannot be read: "+unreadable(err))
	}
}

func (t *tailer) tryReadOnce(ctx context.Context) error {
	state, err := t.state(ctx)
	if err != nil {
		return err
	}
	id := state.instance(t.q.Previous)
	switch {
	case state.gone:
		return t.noteGone(ctx)
	case id == "":
		text := "container " + t.target.container + " has not started"
		if state.waiting != "" {
			text += " (" + state.waiting + ")"
		}
		return t.note(ctx, text)
	case id != t.progress.id && t.resumed:
		if err := t.readOld(ctx, state); err != nil {
			return err
		}
	case id != t.progress.id && t.cursor.place == placeTrail:
		return nil // the instance that was read is gone
	}
	t.progress.id, t.resumed = id, false
	return t.readAll(ctx, readOptions{previous: t.q.Previous, ends: true})
}

// state reads the state of the container. The first call uses the pod from the list, which saves
// each stream a request: the instance is confirmed when the log is open.
func (t *tailer) state(ctx context.Context) (containerState, error) {
	if t.listed {
		t.listed = false
		return stateOf(t.target.pod, t.target.pod.UID, t.target.container), nil
	}
	state := containerState{gone: true}
	err := t.src.call(ctx, t.q.App.Project, func(ctx context.Context) error {
		pod, err := t.src.core.Pods(t.target.pod.Namespace).Get(ctx, t.target.pod.Name, metav1.GetOptions{})
		if err == nil {
			state = stateOf(pod, t.target.pod.UID, t.target.container)
		}
		return err
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return state, fmt.Errorf("get the pod: %w", err)
	}
	return state, nil
}

// waitStart waits until the state of a container that does not run may have changed.
func (t *tailer) waitStart(ctx context.Context, state containerState) error {
	t.outage.end()
	if t.progress.id == "" {
		t.cursor.start()
		if err := t.reportPlace(ctx); err != nil {
			return err
		}
	} else if t.endNoted != t.progress.id {
		t.endNoted = t.progress.id
		if err := t.note(ctx, fmt.Sprintf("container %s %s, waiting for it to start again", t.target.container, state.endText())); err != nil {
			return err
		}
	}
	select {
	case <-t.wake:
	case <-time.After(t.src.timing.poll):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// retry returns nil when the tailer should go on, after a pause if err is an error, and err if it
// is terminal.
func (t *tailer) retry(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if err := t.terminal(ctx, err); err != nil {
		return err
	}
	if errors.Is(err, errMoved) || errors.Is(err, errStale) || errors.Is(err, errBehind) {
		return t.backOff(ctx)
	}
	t.src.metrics.failures.Inc()
	if t.outage.failed() > t.src.timing.outage {
		if err := t.reportOutage(ctx, err); err != nil {
			return err
		}
	}
	return t.backOff(ctx)
}

// reportOutage sends one note for each outage of a log that is followed. The log of a replica that has ended does
// not come back: its note is that of its loss.
func (t *tailer) reportOutage(ctx context.Context, err error) error {
	if t.outage.reported || !t.following || t.target.ended() && removed(err) {
		return nil
	}
	t.outage.failed()
	t.outage.reported = true
	return t.note(ctx, "cannot be read: "+unreadable(err)+"; trying again")
}

// terminal returns the error that ends the stream, nil if err can be retried.
func (t *tailer) terminal(ctx context.Context, err error) error {
	switch {
	case errors.As(err, new(sinkError)):
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case denied(err) && t.outage.failed() > t.src.timing.patience/2:
		return t.deniedError(ctx, err)
	}
	return nil
}

func (t *tailer) deniedError(ctx context.Context, err error) error {
	need := kube.Right{Verb: "get", Resource: "pods", Namespace: t.target.pod.Namespace}
	if errors.As(err, new(openError)) {
		need.Resource = "pods/log"
	}
	return apiError(ctx, err, need)
}

func (t *tailer) backOff(ctx context.Context) error {
	select {
	case <-time.After(t.pause.NextBackOff()):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *tailer) note(ctx context.Context, text string) error {
	if err := t.out.Note(ctx, subjects.LogNoteReplica, []string{t.target.pod.Name}, text); err != nil {
		return sinkError{err}
	}
	return nil
}
