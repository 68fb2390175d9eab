package watch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/appbridge/appbridge/cmd/appbridge/appview"
	"github.com/appbridge/appbridge/subjects/appwatch"
)

const linesBuffer = 64 << 10

// lines prints events as they come, and for programs the states before them. With Once it ends with
// the present.
func (w *watch) lines(ctx context.Context) error {
	p := &printer{watch: w, out: bufio.NewWriterSize(w.Lines, linesBuffer)}
	for it, err := range w.items(ctx) {
		if err != nil {
			return errors.Join(err, p.out.Flush())
		}
		if err := p.take(it); err != nil {
			return err
		}
		// States wait for the mark, and events of the past for the present.
		if it.Type == appwatch.Mark || p.marked {
			if err := p.out.Flush(); err != nil {
				return err
			}
		}
		if it.Type == appwatch.Mark && w.Once {
			w.done = true
			return nil
		}
	}
	return p.out.Flush()
}

// printer prints items.
type printer struct {
	*watch
	out    *bufio.Writer
	marked bool   // no more is known to wait
	shown  uint64 // the sequence of the state or the event that progress printed last
}

// take prints an item.
func (p *printer) take(it appwatch.Item) error {
	switch it.Type {
	case appwatch.Mark:
		p.marked = true
	case appwatch.Restart:
		p.marked = false
	}
	switch p.Form {
	case JSON:
		return p.document(it, appview.JSON)
	case YAML:
		return p.document(it, appview.YAML)
	}
	p.report(it)
	if p.Form == Name {
		if it.Type == appwatch.Event || it.Type == appwatch.State && it.Exists() && !p.Events {
			_, err := fmt.Fprintln(p.out, appview.Name(appOf(it)))
			return err
		}
		return nil
	}
	switch it.Type {
	case appwatch.Event:
		return p.event(it)
	case appwatch.State: // after a restart; the first snapshot is no event
		if it.Changed {
			return p.event(it)
		}
	}
	return nil
}

func (p *printer) event(it appwatch.Item) error {
	_, err := fmt.Fprintln(p.out, appview.Event(appOf(it), p.style()))
	return err
}

// report prints to people what happened to the stream. Any other item is not reported.
func (w *watch) report(it appwatch.Item) {
	if it.Reason == nil {
		return
	}
	lost := ""
	if it.Lost.From > 0 {
		lost = " (sequences " + it.Lost.String() + ")"
	}
	switch it.Type {
	case appwatch.Loss:
		w.note("events are lost%s: %s", lost, it.Reason)
	case appwatch.Restart:
		w.note("reading all apps again%s: %s", lost, it.Reason)
	}
}

func (p *printer) document(it appwatch.Item, encode func(any) ([]byte, error)) error {
	text, err := encodeItem(it, encode)
	if err != nil {
		return err
	}
	_, err = p.out.Write(text)
	return err
}

// encodeItem is an item as a document.
func encodeItem(it appwatch.Item, encode func(any) ([]byte, error)) ([]byte, error) {
	position := ""
	if !it.Position.IsZero() {
		position = it.Position.String()
	}
	d := appview.Document{Position: position, Reason: reason(it.Reason), From: it.Lost.From, To: it.Lost.To}
	switch it.Type {
	case appwatch.Mark:
		return encode(appview.Mark{Type: appview.TypeMark, Position: position, Sequence: it.Position.Sequence})
	case appwatch.State:
		d.Type = appview.TypeState
	case appwatch.Event:
		d.Type = appview.TypeEvent
	case appwatch.Loss:
		d.Type = appview.TypeLoss
	case appwatch.Restart:
		d.Type = appview.TypeRestart
	}
	if it.Type == appwatch.State || it.Type == appwatch.Event {
		d.Fields = appview.FieldsOf(appOf(it))
	}
	return encode(d)
}

// write writes text, and returns the error of the writer.
func write(out io.Writer, text []byte) error {
	_, err := out.Write(text)
	return err
}
