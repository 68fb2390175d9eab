package watch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/cmd/appbridge/appview"
	"github.com/appbridge/appbridge/subjects/appwatch"
)

// Until is a state of one app that is waited for, and from when on states count. A deploy is
// answered before its event is in the stream, and Kubernetes accepts it before Knative has looked at
// it: for a while the app is ACTIVE, of the new generation, and it is the old revision that is.
type Until struct {
	Status          string // a status word, or [appview.Deleted]
	Generation      uint64 // states of it or a newer one count; 0: all
	ResourceVersion string // likewise; empty: all
	UID             string // states of this object count; empty: of all
	AllowFailed     bool   // FAILED does not end the waiting
}

// since reports whether some states do not count.
func (u *Until) since() bool { return u.Generation > 0 || u.ResourceVersion != "" || u.UID != "" }

// counts reports whether a state or a delete is not older than what is waited for.
func (u *Until) counts(a *appview.App) bool {
	version := a.ResourceVersion
	if a.Gone() && a.DeletedVersion != "" {
		version = a.DeletedVersion
	}
	return (u.UID == "" || a.UID == u.UID) && a.Generation >= u.Generation && (u.ResourceVersion == "" || !olderVersion(version, u.ResourceVersion))
}

func olderVersion(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil || order < 0
}

// waiter follows one app.
type waiter struct {
	*Until
	last *appview.App // nil: there was none
	// before is the last state that does not count, while the status may still be that of it.
	before *appview.App
}

// saw takes the states and events of the app in their order.
func (w *waiter) saw(a *appview.App) {
	previous := w.last
	w.last = a
	if !w.since() || a.Gone() {
		w.before = nil
		return
	}
	switch {
	case !w.counts(a):
		w.before = a
		return
	case w.before == nil && previous == nil && replaced(a):
		// The event before was removed from the stream: what is known of it is in this one.
		w.before = &appview.App{UID: a.UID, Status: a.PreviousStatus, Body: a.Old}
	}
	if w.before != nil && settled(a, w.before) {
		w.before = nil
	}
}

// replaced reports whether an event changed what was deployed. A change of replicas or of the
// status leaves the spec.
func replaced(a *appview.App) bool {
	if a.Old == nil || a.Body == nil {
		return false
	}
	old, now := a.Old(), a.Body()
	return old != nil && now != nil && !proto.Equal(old.GetSpec(), now.GetSpec())
}

// settled reports whether the status of a state is its own, and not what is left of that before. It
// is when the condition changed since, the status did, or another revision serves. A stopped app has
// the time of its Ready condition.
func settled(a, before *appview.App) bool {
	const stopped = "STOPPED"
	switch {
	case a.UID != before.UID, a.Status == stopped:
		return true
	case a.Revision != "" && before.Revision != "" && a.Revision != before.Revision:
		return true
	case before.Status != stopped && a.Status != before.Status:
		return true
	default:
		return newestTransition(a).After(newestTransition(before))
	}
}

func newestTransition(a *appview.App) time.Time {
	var newest time.Time
	if a.Body == nil {
		return newest
	}
	for _, c := range a.Body().GetStatus().GetConditions() {
		if t := c.GetLastTransitionTime(); t != nil && t.AsTime().After(newest) {
			newest = t.AsTime()
		}
	}
	return newest
}

// verdict reports whether the waiting is over, and how. Nothing more is known to follow.
func (w *waiter) verdict() (done bool, err error) {
	a := w.last
	gone := a == nil || a.Gone()
	switch {
	case gone && w.Status == appview.Deleted:
		// Without the app there is nothing to wait for, unless a delete is older than that.
		return a == nil || w.counts(a), nil
	case a == nil:
		return false, nil // it may be on its way
	case a.UID != w.UID && w.UID != "" && w.Status == appview.Deleted:
		return true, nil // another one took its place
	case !w.counts(a) || w.before != nil:
		return false, nil
	case gone:
		return true, fmt.Errorf("%w: %s was deleted", ErrGone, a.ID)
	case a.Status == w.Status:
		return true, nil
	case a.Status == "FAILED" && !w.AllowFailed && w.Status != appview.Deleted:
		return true, fmt.Errorf("%w: %s", ErrFailed, appview.Reason(a))
	default:
		return false, nil
	}
}

// oldest is before any stream.
var oldest = time.Unix(1, 0)

// wait waits for a state of one app and prints its events meanwhile.
func (w *watch) wait(ctx context.Context) error {
	id, _ := w.app()
	follow := &waiter{Until: w.Until}
	if w.Until.since() {
		// The history of the app says whether its status is that of before. It is not in the bucket.
		if err := w.begin(ctx, follow); err != nil {
			return err
		}
	}
	p := &printer{watch: w, out: bufio.NewWriterSize(w.Lines, linesBuffer)}
	for it, err := range w.exact(ctx) {
		if err != nil {
			return err
		}
		switch it.Type {
		case appwatch.State, appwatch.Event:
			follow.saw(appOf(it))
		case appwatch.Restart:
			follow.last, p.marked = nil, false // what there is is known at the next mark
		}
		if p.marked || it.Type == appwatch.Restart { // else a loss is of the past
			w.report(it)
		}
		if err := p.progress(it, follow.last); err != nil {
			return err
		}
		if !p.marked {
			continue
		}
		done, err := follow.verdict()
		if done {
			w.done = true
			return err
		}
		if it.Type == appwatch.Mark && follow.last == nil {
			w.note("no app %s yet", id)
		}
	}
	if follow.last != nil {
		w.state = ": " + appview.Reason(follow.last)
	}
	return nil
}

// begin lets the reader start with the first event that is left of the app. An app that has none is
// as the bucket has it.
func (w *watch) begin(ctx context.Context, follow *waiter) error {
	states, position, err := w.snapshot(ctx)
	w.done = false
	if err != nil || states == nil {
		return err
	}
	for _, a := range states {
		if a.Sequence > 0 && !w.left(ctx, a) {
			follow.saw(a)
			w.Reader.From = position
			return nil
		}
	}
	w.Reader.Since = oldest
	return nil
}

// progress prints the state at the beginning, and every event after it.
func (p *printer) progress(it appwatch.Item, last *appview.App) error {
	past := !p.marked
	if it.Type == appwatch.Mark {
		p.marked = true
	}
	switch {
	case p.Form == Name, past && it.Type != appwatch.Mark, last == nil:
		return nil
	case it.Type == appwatch.Event:
	case past && last.Sequence != p.shown: // a snapshot that is read again may have no news
	default:
		return nil
	}
	p.shown = last.Sequence
	text := []byte(appview.Event(last, p.style()) + "\n")
	if p.Form == JSON || p.Form == YAML {
		encode := appview.JSON
		if p.Form == YAML {
			encode = appview.YAML
		}
		var err error
		if it.Type == appwatch.Event {
			text, err = encodeItem(it, encode)
		} else {
			text, err = encode(appview.Document{Type: appview.TypeState, Fields: appview.FieldsOf(last)})
		}
		if err != nil {
			return err
		}
	}
	return write(p.Lines, text)
}

// readTime bounds a read without which the watch can go on.
const readTime = 5 * time.Second

// left reports whether the stream still has the newest event of an app, or could have it.
func (w *watch) left(ctx context.Context, a *appview.App) bool {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	_, info, err := store.LookUp(ctx, w.js, w.streamName())
	if err != nil {
		return true
	}
	names, err := w.names()
	if err != nil {
		return true
	}
	filter, err := names.EventFilter(a.ID)
	if err != nil {
		return true
	}
	from := a.Sequence
	if len(info.Config.Sources) > 0 {
		from = 1 // the sequence is that of the origin
	}
	_, err = singles{w.js, w.streamName()}.next(ctx, filter, from)
	return !errors.Is(err, store.ErrNoMessage)
}
