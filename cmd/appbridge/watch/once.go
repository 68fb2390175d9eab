package watch

import (
	"bufio"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/appbridge/appbridge/cmd/appbridge/appview"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
)

// once prints the apps as they are.
func (w *watch) once(ctx context.Context) error {
	states, position, err := w.snapshot(ctx)
	if err != nil || !w.done {
		return err
	}
	return w.list(states, position.String(), time.Time{})
}

// snapshot reads the apps that exist. w.done is set when it is complete and exact: ctx may end before.
func (w *watch) snapshot(ctx context.Context) (map[subjects.AppID]*appview.App, appwatch.Position, error) {
	states := map[subjects.AppID]*appview.App{}
	for it, err := range w.exact(ctx) {
		switch {
		case err != nil:
			return nil, appwatch.Position{}, err
		case it.Type == appwatch.Restart:
			clear(states)
		case it.Type == appwatch.State || it.Type == appwatch.Event:
			if a := appOf(it); it.Exists() && w.passes(a) {
				states[it.ID] = a
			} else {
				delete(states, it.ID)
			}
		case it.Type == appwatch.Mark:
			w.done = true
			return states, it.Position, nil
		}
	}
	return nil, appwatch.Position{}, nil
}

// list prints apps in their order. at is the instant, zero for the present.
func (w *watch) list(states map[subjects.AppID]*appview.App, position string, at time.Time) error {
	out := bufio.NewWriterSize(w.Lines, linesBuffer)
	apps := sorted(states)
	if id, one := w.app(); one && len(apps) == 0 && len(w.Reader.Statuses) == 0 {
		return fmt.Errorf("%w: %s", ErrGone, id)
	}
	switch w.Form {
	case JSON, YAML:
		list := appview.List{Position: position, Apps: []*appview.Fields{}}
		if !at.IsZero() {
			list.At = appview.Instant(at.UTC())
		}
		for _, a := range apps {
			list.Apps = append(list.Apps, appview.FieldsOf(a))
		}
		encode := appview.JSON
		if w.Form == YAML {
			encode = appview.YAML
		}
		text, err := encode(list)
		if err != nil {
			return err
		}
		return write(w.Lines, text)
	case Name:
		for _, a := range apps {
			_, _ = fmt.Fprintln(out, appview.Name(a)) // the writer keeps an error
		}
	default:
		style := w.style()
		if !at.IsZero() {
			style.Now = at
		}
		for _, line := range appview.Table(apps, style) {
			_, _ = fmt.Fprintln(out, line)
		}
	}
	return out.Flush()
}

func sorted(states map[subjects.AppID]*appview.App) []*appview.App {
	apps := make([]*appview.App, 0, len(states))
	for _, a := range states {
		apps = append(apps, a)
	}
	slices.SortFunc(apps, func(a, b *appview.App) int { return appview.Less(a.ID, b.ID) })
	return apps
}

// plain prints the apps as they are, and then a line for each event.
func (w *watch) plain(ctx context.Context) error {
	states := map[subjects.AppID]*appview.App{}
	p := &printer{watch: w, out: bufio.NewWriterSize(w.Lines, linesBuffer)}
	began := false
	for it, err := range w.items(ctx) {
		switch {
		case err != nil:
			return err
		case began:
			err = p.take(it)
		case it.Type == appwatch.State && it.Exists():
			states[it.ID] = appOf(it)
		case it.Type == appwatch.Restart:
			clear(states)
		case it.Type == appwatch.Mark:
			began, p.marked = true, true
			for _, line := range appview.Table(sorted(states), w.style()) {
				_, _ = fmt.Fprintln(p.out, line) // the writer keeps an error
			}
			states = nil
		}
		if p.marked && err == nil {
			err = p.out.Flush()
		}
		if err != nil {
			return err
		}
	}
	return nil
}
