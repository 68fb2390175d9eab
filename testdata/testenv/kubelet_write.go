package testenv

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// maxRecord is where containerd splits a line: its default.
	maxRecord = 16 << 10
	// maxRead is what conmon, which writes CRI-O's logs, reads of a container's pipe at once.
	maxRead = 8 << 10

	stdout = "stdout"
	stderr = "stderr"
)

// LogForm is who writes a container's log, and so what it looks like.
type LogForm int

const (
	// Containerd stamps each record by itself, in UTC as "Z". A line longer than 16 KiB lies in the log
	// as several records. The beginning of a line is not in the log before there is so much of it, or
	// its end, or the container ends.
	Containerd LogForm = iota
	// CRIO stamps all that is read of the container's pipe at once, at most 8 KiB, with one time, with
	// the offset of its zone ("+00:00"). What a read has of a line is in the log at once.
	CRIO
	// InMemory is containerd's form without a file and without the kubelet's own reader, for benchmarks and
	// for more follows than there are inotify instances. What the reader's oddities are, it knows of
	// reading, and not of rotations.
	InMemory
)

// scheme is how a container's id begins.
func (f LogForm) scheme() string {
	if f == CRIO {
		return "cri-o://"
	}
	return "containerd://"
}

// logStore is where the log of one instance of a container lies. The pod guards it.
type logStore interface {
	// add appends a record. A partial one does not end its line.
	add(at time.Time, partial bool, stream string, text []byte)
	// commit shows readers what was added.
	commit() error
	// rotate has an empty file take the current one's place.
	rotate() error
	// close is called when the container has ended.
	close() error
}

// Record is a line of a log's file: a line of the application, or a piece of one.
type Record struct {
	// Time may have any zone, which is then in the log.
	Time time.Time
	// Partial: the line goes on in the next record.
	Partial bool
	// Stderr: the container wrote it there.
	Stderr bool
	// Text is without a line's end.
	Text string
}

// Write has the app's container write lines, each stamped with the node's time and, unless the test
// sets its clock, later than the line before; see [LogForm] for CRI-O. It reports whether the container
// runs; if not, nothing is written.
func (p *Pod) Write(lines ...string) bool { return p.WriteTo(p.app.name, lines...) }

// WriteTo is Write to the container of that name, which the pod has to have.
func (p *Pod) WriteTo(container string, lines ...string) bool {
	c := p.containerOf(container)
	if c == nil {
		panic(fmt.Sprintf("pod %s has no container %s", p.key, container))
	}
	return p.write(c, p.present, terminated(lines))
}

// WriteAt is Write with a time of the caller's choice, the same for all lines.
// It may lie before that of earlier lines, as after a change of the clock.
func (p *Pod) WriteAt(t time.Time, lines ...string) bool {
	return p.WriteRawAt(t, terminated(lines))
}

// WriteRaw has the app's container write bytes, which need not be text or end with a line's end. What
// is left without one at the container's end is the log's end, without a line's end.
func (p *Pod) WriteRaw(data []byte) bool { return p.write(p.app, p.present, data) }

// WriteRawAt is WriteRaw with a time of the caller's choice.
func (p *Pod) WriteRawAt(t time.Time, data []byte) bool {
	t = t.Round(0) // formats faster
	if t.Location() == time.Local {
		t = t.UTC()
	}
	return p.write(p.app, func() time.Time { return t }, data)
}

// WriteRecords puts records into the log of the app's container as they are.
func (p *Pod) WriteRecords(records ...Record) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.app.current
	if i == nil || !i.running {
		return false
	}
	for _, r := range records {
		stream := stdout
		if r.Stderr {
			stream = stderr
		}
		i.log.add(r.Time, r.Partial, stream, []byte(r.Text))
	}
	p.kubelet.note(i.log.commit())
	p.wake()
	return true
}

// WriteFile appends bytes to the log's file of the app's container as they are, such as the rest of a
// record whose beginning is in a file that was rotated away. The log must not be in memory.
func (p *Pod) WriteFile(data []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.app.current
	if i == nil || !i.running {
		return false
	}
	log := i.log.(*diskLog)
	log.text = append(log.text, data...)
	p.kubelet.note(log.commit())
	return true
}

// Fill is Write for millions of lines: those that the function makes from 0 to
// n-1. Other writers may come in between, and so may the container's end.
func (p *Pod) Fill(n int, line func(i int) string) bool { return p.fill(p.present, n, line) }

// FillPast is Fill as of a container that has written a line, or what CRI-O reads at once, every so often
// until now.
func (p *Pod) FillPast(n int, every time.Duration, line func(i int) string) bool {
	at := time.Now().UTC().Round(0).Add(-time.Duration(n) * every)
	return p.fill(func() time.Time {
		at = at.Add(every)
		return at
	}, n, line)
}

func (p *Pod) fill(clock func() time.Time, n int, line func(i int) string) bool {
	const batch = 4096
	var text []byte
	for i := range n {
		text = append(append(text, line(i)...), '\n')
		if (i+1)%batch == 0 || i == n-1 {
			if !p.write(p.app, clock, text) {
				return false
			}
			text = text[:0]
		}
	}
	return true
}

// Rotate has the kubelet rotate the app's log, as it does with one of 10 MiB: the file gets another
// name and an empty one takes its place, where requests find nothing of the old. An open follow goes
// on with the new file when it has read the old one; one that is behind by two rotations loses lines
// and repeats others. Of the rotated files three are kept, and all but the last are compressed.
func (p *Pod) Rotate() { p.RotateIf(func() bool { return true }) }

// RotateIf is Rotate if may returns true. No event of a request comes in between, see [Pod.Observe].
func (p *Pod) RotateIf(may func() bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.app.current != nil && may() {
		p.kubelet.note(p.app.current.log.rotate())
		p.wake()
	}
}

// CutLine has the app's container write a line, shorter than 8 KiB, in the middle of which the
// follows that are open at this time break off: each is sent the line's first
// half, after all that comes before it, and its connection is closed. Later
// requests read the whole line.
func (p *Pod) CutLine(line string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.app.current
	if i == nil || !i.running {
		return false
	}
	for f := range p.open {
		if !f.follow || f.instance != i {
			continue
		}
		if m, ok := i.log.(*memoryLog); ok {
			f.trap, f.trapAt = m.file, m.file.len()
		} else {
			f.trapLine.Store(&line)
		}
	}
	i.write(p.present, append([]byte(line), '\n'))
	p.kubelet.note(i.log.commit())
	p.wake()
	return true
}

func terminated(lines []string) []byte {
	if len(lines) == 0 {
		return nil
	}
	return []byte(strings.Join(lines, "\n") + "\n")
}

func (p *Pod) containerOf(name string) *container {
	i := slices.IndexFunc(p.containers, func(c *container) bool { return c.name == name })
	if i < 0 {
		return nil
	}
	return p.containers[i]
}

// present is the node's time. Where the test does not set the clock, it is at least the next after
// the last that it was asked for. The pod is locked.
func (p *Pod) present() time.Time {
	if clock := p.kubelet.clock.Load(); clock != nil {
		return (*clock)()
	}
	p.last = max(p.last+1, time.Now().UnixNano())
	return time.Unix(0, p.last).UTC()
}

func (p *Pod) write(c *container, now func() time.Time, data []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.current == nil || !c.current.running {
		return false
	}
	c.current.write(now, data)
	p.kubelet.note(c.current.log.commit())
	p.wake()
	return true
}

// write cuts what a container writes into records.
func (i *instance) write(now func() time.Time, data []byte) {
	if i.form == CRIO {
		i.writeReads(now, data)
	} else {
		i.writeLines(now, data)
	}
}

// writeReads does it as conmon does.
func (i *instance) writeReads(now func() time.Time, data []byte) {
	for len(data) > 0 {
		read := data[:min(len(data), maxRead)]
		data = data[len(read):]
		at := now()
		for len(read) > 0 {
			text, rest, ended := bytes.Cut(read, []byte("\n"))
			i.log.add(at, !ended, stdout, text)
			read = rest
		}
	}
}

// writeLines does it as containerd does.
func (i *instance) writeLines(now func() time.Time, data []byte) {
	for len(data) > 0 {
		end := bytes.IndexByte(data, '\n')
		text := data
		if end >= 0 {
			text, data = data[:end], data[end+1:]
		} else {
			data = nil
		}
		for len(i.pending)+len(text) > maxRecord {
			n := maxRecord - len(i.pending)
			i.put(now(), text[:n], true)
			text = text[n:]
		}
		if end >= 0 {
			i.put(now(), text, false)
		} else {
			i.pending = append(i.pending, text...)
		}
	}
}

// put adds a record of what is pending and the text.
func (i *instance) put(at time.Time, text []byte, partial bool) {
	if len(i.pending) > 0 {
		text = append(i.pending, text...)
		i.pending = i.pending[:0]
	}
	i.log.add(at, partial, stdout, text)
}
