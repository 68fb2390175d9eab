package client

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/appbridge/appbridge/logsvc/logline"
	"github.com/appbridge/appbridge/subjects"
)

// read reads one stream.
func (f *follower) read(ctx context.Context) (End, error) {
	req := f.request()
	f.answered, f.listed, f.last = false, false, nil
	f.resuming = req.positions != nil && req.positions.resume != nil
	if f.names != "" && !f.resuming && !f.warned && !req.SinceTime.IsZero() {
		f.warned = true
		if err := f.note("the log service is an older one and goes on by time: lines may be repeated or missing"); err != nil {
			return End{}, err
		}
	}
	return tail(ctx, f.nc, req, f.take, f.timing)
}

// take is the handler of a stream.
func (f *follower) take(m *Message) error {
	if m.Kind == Last {
		f.last = m
		return nil
	}
	f.started, f.answered = true, true
	err := f.handleMessage(m)
	if err == nil && !m.More && f.pending {
		err = f.deliver(&Message{Kind: Lines}) // the handler is waiting for more
	}
	return err
}

func (f *follower) handleMessage(m *Message) error {
	switch {
	case m.Kind == Lines:
		return f.takeLines(m)
	case m.Note == subjects.LogNoteReplicas:
		return f.takeReplicas(m)
	case m.Note == subjects.LogNoteWaiting:
		if f.names != "" && f.waiting == string(m.Body) {
			return nil
		}
		f.waiting = string(m.Body)
	}
	return f.deliver(m)
}

func (f *follower) takeLines(m *Message) error {
	f.heard = time.Now()
	if f.old {
		f.takeTimes(m)
	}
	if len(m.Body) > 0 { // else it has a position alone
		if err := f.deliver(m); err != nil {
			return err
		}
		f.lines += int64(bytes.Count(m.Body, []byte("\n")))
		f.waiting = ""
	}
	if position := m.Header.Get(subjects.HeaderLogPosition); position != "" {
		f.positions[m.Replica] = position
	}
	return nil
}

// takeTimes keeps the time of the last line, and removes the times that the reader does not want.
func (f *follower) takeTimes(m *Message) {
	out := m.Body[:0]
	for line := range bytes.Lines(m.Body) {
		at, text := logline.Parse(line)
		if !at.IsZero() {
			f.times[m.Replica] = at
		}
		if f.req.Timestamps {
			text = line
		}
		out = append(out, text...)
	}
	m.Body = out
}

// takeReplicas forgets the replicas that are gone: the service has reported it.
func (f *follower) takeReplicas(m *Message) error {
	first := !f.listed
	f.listed = true
	if first && !f.resuming {
		f.exact = !f.old
		clear(f.positions)
	}
	gone := func(name string) bool { return !slices.Contains(m.Replicas, name) }
	maps.DeleteFunc(f.positions, func(name, _ string) bool { return gone(name) })
	maps.DeleteFunc(f.times, func(name string, _ time.Time) bool { return gone(name) })
	if first && f.exact && !f.resuming {
		for _, name := range m.Replicas {
			f.positions[name] = ""
		}
	}
	names := strings.Join(m.Replicas, ",") + "."
	if first && names == f.names {
		return nil
	}
	f.names, f.waiting = names, ""
	return f.deliver(m)
}

func (f *follower) note(text string) error {
	body := slices.Concat([]byte(subjects.LogNotePrefix), bytes.ReplaceAll([]byte(text), []byte("\n"), []byte(" ")), []byte("\n"))
	return f.deliver(&Message{Kind: Note, Note: subjects.LogNoteWaiting, More: f.pending, Body: body})
}

func (f *follower) deliver(m *Message) error {
	f.failed = f.handle(m)
	f.pending = m.More
	return f.failed
}
