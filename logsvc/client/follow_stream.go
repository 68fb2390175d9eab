package client

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/appbridge/appbridge/subjects"
)

func (f *follower) read(ctx context.Context, pass pass, req Request) (End, error) {
	f.pass, f.listed, f.last = pass, false, nil
	for _, p := range f.places {
		p.begin(pass, p.passage.sure)
	}
	req.Format, req.Timestamps = subjects.LogFormatRaw, true
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
	err := f.handleMessage(m)
	if err == nil && !m.More && f.pending {
		err = f.deliver(&Message{Kind: Lines}) // the handler is waiting for more
	}
	return err
}

func (f *follower) handleMessage(m *Message) error {
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
	return f.deliver(m)
}

func (f *follower) takeLines(m *Message) error {
	p := f.places[m.Replica]
	switch {
	case p != nil:
	case f.pass == passBacklog:
		return nil // it is new, and read from its first line
	default:
		p = &place{live: true, since: time.Now().Add(-newcomer)}
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
		if err := f.deliver(m); err != nil {
			return err
		}
		f.lines += int64(lines)
		f.waiting = ""
	}
	p.passage, p.position = next, next.position
	return nil
}

// takeReplicas updates the replicas, and reports those that are gone since the interruption.
func (f *follower) takeReplicas(m *Message) error {
	for _, name := range m.Replicas {
		if f.places[name] != nil {
			continue
		}
		p := &place{since: time.Now().Add(-newcomer)}
		if f.pass == passFirst && !f.listed {
			p.since, p.least = f.floor(), f.floor()
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
	return f.deliver(m)
}

func (f *follower) note(text, replica string) error {
	note := &Message{Kind: Note, Note: subjects.LogNoteWaiting, Replica: replica, More: f.pending}
	if replica != "" {
		note.Note, text = subjects.LogNoteReplica, "replica "+replica+": "+text
	}
	note.Body = slices.Concat([]byte(subjects.LogNotePrefix), bytes.ReplaceAll([]byte(text), []byte("\n"), []byte(" ")), []byte("\n"))
	return f.deliver(note)
}

func (f *follower) deliver(m *Message) error {
	f.failed = f.handle(m)
	f.pending = m.More
	return f.failed
}
