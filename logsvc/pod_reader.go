package logsvc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
)

// reportLag is for how long a kubelet's report may be behind and go unnoticed.
const reportLag = time.Minute

// podReader reads the log of one replica through everything that happens to it.
// It is for one goroutine.
type podReader struct {
	k        *Kubernetes
	q        Query
	out      Sink
	target   podTarget
	listed   bool // the target's pod was just listed
	cursor   *podCursor
	progress podProgress
	// live: what is read came after the stream began.
	live bool
	// caughtUp: what was there when the stream began is handed out.
	caughtUp bool
	told     string // the instance whose end was told
	outage   podOutage
	pause    *backoff.ExponentialBackOff
	unread   error // why nothing can be read, should that be so in the end

	// kick wakes a reader that waits for its container.
	kick     chan struct{}
	followed podFollow
}

// newPodReader makes a reader; one that is late reads from the beginning of the log,
// because there was none when the stream began.
func (s *podLogs) newPodReader(target podTarget, out Sink, late bool) *podReader {
	r := &podReader{
		k: s.k, q: s.q, out: out, target: target, listed: true, live: late,
		cursor: newPodCursor(s.k.maxLine),
		pause: backoff.NewExponentialBackOff(
			backoff.WithInitialInterval(100*time.Millisecond), backoff.WithMaxInterval(2*time.Second), backoff.WithMaxElapsedTime(0)),
		kick: make(chan struct{}, 1),
	}
	r.cursor.point = fromBeginning()
	if !late {
		r.cursor.point.tail, r.cursor.point.since = s.q.Tail, s.q.Since
		r.cursor.point.silent, r.cursor.point.opened = s.q.Tail == 0, s.opened
	}
	return r
}

// run returns nil when there is nothing to read any more.
func (r *podReader) run(ctx context.Context, follow bool) error {
	step := r.once
	if follow {
		step = r.follow
	}
	err := step(ctx)
	var sink sinkError
	if errors.As(err, &sink) {
		return sink.error
	}
	return err
}

// follow reads on for as long as there may come something.
func (r *podReader) follow(ctx context.Context) error {
	for {
		state, err := r.look(ctx)
		if err != nil {
			return err
		}
		step, id := r.progress.next(state)
		switch step {
		case stepDone:
			return nil
		case stepWait:
			err = r.await(ctx, state)
		case stepBegin:
			err = r.begin(ctx, state, id)
		case stepFollow:
			err = r.readRunning(ctx)
		case stepRest, stepPrevious:
			err = r.readEnded(ctx, step == stepPrevious)
		}
		if err != nil {
			return err
		}
	}
}

// begin goes over to another instance of the container.
func (r *podReader) begin(ctx context.Context, state podState, id string) error {
	first := r.progress.id == ""
	r.progress = podProgress{id: id, before: r.progress.id}
	if first {
		return nil
	}
	r.live = true
	r.k.metrics.resumes.WithLabelValues(resumeRestart).Inc()
	// Where a kubelet is far behind with its report, lines of this instance were
	// taken for some of the last one, and are not to come again. A survey notices
	// that soon; what seems newer than that is a clock that was put back.
	point := &r.cursor.point
	if id != state.current || point.newest.Before(state.started) || point.newest.After(state.started.Add(reportLag)) {
		*point = fromBeginning()
	} else {
		*point = point.other()
	}
	return r.note(ctx, "container "+r.target.container+" started again")
}

// readRunning follows a container that runs, after what there was before.
func (r *podReader) readRunning(ctx context.Context) error {
	if !r.live && !r.caughtUp {
		err := r.readAll(ctx, podRead{})
		r.caughtUp = err == nil
		return r.settle(ctx, err)
	}
	r.caughtUp = true
	pass, err := r.read(ctx, podRead{follow: true, live: true})
	if !pass.opened {
		return r.settle(ctx, err)
	}
	cause := resumeEOF
	if err != nil {
		cause = resumeError
		if final := r.final(ctx, err); final != nil {
			return final
		}
	}
	r.k.metrics.resumes.WithLabelValues(cause).Inc()
	if pass.lines > 0 || pass.took > time.Second {
		r.pause.Reset()
		return nil
	}
	return r.rest(ctx)
}

// readEnded reads what is left of an instance that has ended.
func (r *podReader) readEnded(ctx context.Context, previous bool) error {
	err := r.readAll(ctx, podRead{previous: previous, live: r.live, ends: true})
	if err == nil {
		r.progress.complete, r.caughtUp = true, true
		return nil
	}
	// The kubelet keeps only so many logs.
	lost := apierrors.IsBadRequest(err) || apierrors.IsNotFound(err)
	if lost && r.outage.failed() > r.k.pace.patience {
		r.progress.complete = true
		r.outage.end()
		return r.note(ctx, "the rest of the log of container "+r.target.container+" cannot be read: "+request.PlainText(err))
	}
	return r.settle(ctx, err)
}

// readAll reads what there is, without waiting for more, until there is no
// reason to believe that something is missing.
func (r *podReader) readAll(ctx context.Context, o podRead) error {
	var before podPass
	for i := range maxPasses {
		o.final = i == maxPasses-1
		pass, err := r.read(ctx, o)
		if err != nil {
			return err
		}
		r.pause.Reset()
		if p := &r.cursor.point; p.missed {
			// Something was written between the request and this look.
			*p = fromTime(p.opened)
			continue
		}
		empty := pass.bytes == 0 && !r.cursor.point.any
		if i > 0 && !pass.torn && (pass.lines == 0 || pass.took > before.took/2) {
			if empty && before.bytes == 0 {
				// Nothing was there: all that will be is new.
				r.cursor.point.tail = -1
			}
			break
		}
		if !empty && !pass.torn && (pass.took <= passTime && pass.bytes <= passBytes || r.atEnd(ctx, o, pass)) {
			break
		}
		before = pass
	}
	r.cursor.point.silent = false
	return nil
}

// once reads what there is. What cannot be read in the end is told, and kept in
// unread.
func (r *podReader) once(ctx context.Context) error {
	if r.q.Tail == 0 {
		return nil
	}
	for {
		err := r.tryOnce(ctx)
		if err == nil {
			return nil
		}
		if final := r.final(ctx, err); final != nil {
			return final
		}
		r.k.metrics.failures.Inc()
		if r.outage.failed() > r.k.pace.patience {
			r.unread = err
			return r.note(ctx, "cannot be read: "+request.PlainText(err))
		}
		if err := r.rest(ctx); err != nil {
			return err
		}
	}
}

func (r *podReader) tryOnce(ctx context.Context) error {
	state, err := r.state(ctx)
	if err != nil {
		return err
	}
	id := state.current
	if r.q.Previous {
		id = state.last
	}
	switch {
	case state.gone:
		return nil
	case id == "":
		text := "container " + r.target.container + " has not started"
		if state.waiting != "" {
			text += " (" + state.waiting + ")"
		}
		return r.note(ctx, text)
	case id != r.progress.id && r.cursor.point.any:
		return nil // what was read is not there any more
	}
	r.progress.id = id
	return r.readAll(ctx, podRead{previous: r.q.Previous, ends: true})
}

// state looks at the pod once. The first time it goes by what the list said, which
// spares each stream a request: whatever is opened is confirmed.
func (r *podReader) state(ctx context.Context) (podState, error) {
	if r.listed {
		r.listed = false
		return stateOf(r.target.pod, r.target.pod.UID, r.target.container), nil
	}
	state := podState{gone: true}
	err := r.k.call(ctx, r.q.App.Project, func(ctx context.Context) error {
		pod, err := r.k.core.Pods(r.target.pod.Namespace).Get(ctx, r.target.pod.Name, metav1.GetOptions{})
		if err == nil {
			state = stateOf(pod, r.target.pod.UID, r.target.container)
		}
		return err
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return state, fmt.Errorf("look at the pod: %w", err)
	}
	return state, nil
}

// look looks at the pod until it is seen.
func (r *podReader) look(ctx context.Context) (podState, error) {
	for {
		state, err := r.state(ctx)
		if err == nil {
			return state, nil
		}
		if err := r.settle(ctx, err); err != nil {
			return state, err
		}
	}
}

// await waits until something may have changed about a container that does not
// run.
func (r *podReader) await(ctx context.Context, state podState) error {
	r.outage.end()
	if r.progress.id == "" {
		// All that it will write is new.
		r.live = true
		r.cursor.point = fromBeginning()
	} else if r.told != r.progress.id {
		r.told = r.progress.id
		err := r.note(ctx, fmt.Sprintf("container %s %s, waiting for it to start again", r.target.container, state.endText()))
		if err != nil {
			return err
		}
	}
	timer := time.NewTimer(r.k.pace.poll)
	defer timer.Stop()
	select {
	case <-r.kick:
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// settle is called with what kept the reader from reading: nil when it is to look
// again, after a pause if there was an error.
func (r *podReader) settle(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if final := r.final(ctx, err); final != nil {
		return final
	}
	if errors.Is(err, errMoved) || errors.Is(err, errStale) {
		return r.rest(ctx)
	}
	r.k.metrics.failures.Inc()
	if r.outage.failed() > r.k.pace.outage && !r.outage.told {
		r.outage.told = true
		if err := r.note(ctx, "cannot be read: "+request.PlainText(err)+"; trying again"); err != nil {
			return err
		}
	}
	return r.rest(ctx)
}

// final is the error that ends the stream, nil when err does not.
func (r *podReader) final(ctx context.Context, err error) error {
	switch {
	case errors.As(err, new(sinkError)):
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case denied(err) && r.outage.failed() > r.k.pace.patience/2:
		return kubernetesError(ctx, err, right{"get", "pods and pods/log", r.target.pod.Namespace})
	}
	return nil
}

// rest pauses before the next try.
func (r *podReader) rest(ctx context.Context) error {
	timer := time.NewTimer(r.pause.NextBackOff())
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *podReader) note(ctx context.Context, text string) error {
	if err := r.out.Note(ctx, subjects.LogNoteReplica, r.target.pod.Name, text); err != nil {
		return sinkError{err}
	}
	return nil
}
