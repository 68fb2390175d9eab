package watch

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"github.com/appbridge/appbridge/cmd/appbridge/appview"
)

const (
	// drawEvery bounds how often a live table is drawn. A terminal that became larger or smaller is
	// noticed as fast.
	drawEvery = 100 * time.Millisecond
	// agesEvery is how often it is drawn without a change.
	agesEvery = time.Second
	// repaintEvery is how often it is written although it has not changed: other programs may have
	// written over it.
	repaintEvery = 5 * time.Second
)

// live draws the table until ctx ends or a key ends it, and leaves the terminal as it was. What
// remains is the number of apps.
func (w *watch) live(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m := newModel(w.Reader.Statuses)
	failed := make(chan error, 1)
	var reading sync.WaitGroup
	reading.Go(func() {
		for it, err := range w.items(ctx) {
			if err != nil {
				failed <- err
				return
			}
			m.take(it, w.Now())
		}
	})
	err := w.draw(ctx, m, failed)
	cancel()
	reading.Wait()
	if err == nil {
		_, err = fmt.Fprintln(w.Lines, m.summary())
	}
	return err
}

func (w *watch) draw(ctx context.Context, m *model, failed <-chan error) (err error) {
	defer func() {
		if leaveErr := w.Terminal.leave(); err == nil {
			err = leaveErr
		}
	}()
	signals := make(chan os.Signal, 1)
	notify(signals, resized, continued)
	defer signal.Stop(signals)
	keys, err := w.Terminal.enter()
	if err != nil {
		return err
	}
	s := appview.Screen{Style: appview.Style{Wide: w.Form == Wide, Color: w.Terminal.Color}, Filter: w.filter(), Keys: keys != nil}
	tick := time.NewTicker(drawEvery)
	defer tick.Stop()
	var drawn canvas
	for {
		pressed := noKey
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case pressed = <-keys:
		case got := <-signals:
			pressed = keyRepaint
			if got == continued {
				if err := w.Terminal.again(); err != nil {
					return err
				}
			}
		case <-tick.C:
		}
		if pressed == keyEnd {
			return nil
		}
		if err := w.frame(m, &s, pressed, &drawn); err != nil {
			return err
		}
	}
}

// notify passes on the signals that the system has. Without any, signal.Notify would pass on all.
func notify(to chan<- os.Signal, signals ...os.Signal) {
	for _, s := range signals {
		if s != nil {
			signal.Notify(to, s)
		}
	}
}

// canvas is what the terminal shows.
type canvas struct {
	text          string
	changes       int
	columns, rows int
	at            time.Time
	written       time.Time
	apps          int
	trouble       string
}

// frame draws the table if there is a reason: a key, a change, another size, or a second that passed.
// A table that is the same is written again for keyRepaint, and from time to time.
func (w *watch) frame(m *model, s *appview.Screen, pressed key, drawn *canvas) error {
	now := w.Now()
	columns, rows := w.Terminal.Size()
	changes, reading := m.state()
	w.trouble(s, now)
	trouble := s.Connection + s.Failure
	same := changes == drawn.changes && columns == drawn.columns && rows == drawn.rows && trouble == drawn.trouble
	if same && pressed == noKey && now.Sub(drawn.at) < agesEvery {
		return nil
	}
	s.Columns, s.Rows, s.Now = columns, rows, now
	s.First = scrolled(*s, pressed, drawn.apps)
	lines, apps := m.show(*s)
	if reading && apps == 0 && trouble == "" {
		lines[0] = ""
	}
	text := appview.Paint(lines)
	*drawn = canvas{text: drawn.text, changes: changes, columns: columns, rows: rows, at: now, written: drawn.written, apps: apps, trouble: trouble}
	if text == drawn.text && pressed != keyRepaint && now.Sub(drawn.written) < repaintEvery {
		return nil
	}
	drawn.text, drawn.written = text, now
	return w.Terminal.write(text)
}

// scrolled is the first app that is shown after a key.
func scrolled(s appview.Screen, pressed key, apps int) int {
	first := s.First
	switch pressed {
	case keyUp:
		first--
	case keyDown:
		first++
	case keyPageUp:
		first -= s.Page()
	case keyPageDown:
		first += s.Page()
	case keyHome:
		first = 0
	case keyBottom:
		first = s.Last(apps)
	}
	return min(max(first, 0), s.Last(apps))
}

// trouble puts on a screen why nothing can be read at present, and since when.
func (w *watch) trouble(s *appview.Screen, now time.Time) {
	w.link.set(strings.ReplaceAll(w.Down(), "\n", "; "), now)
	s.Connection, s.Since = w.link.get()
	s.Failure = ""
	if s.Connection == "" {
		s.Failure, s.Since = w.failure.get()
	}
}
