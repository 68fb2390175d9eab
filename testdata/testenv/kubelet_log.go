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
	// chunkSize bounds what a log has in one piece, and so what is sent at once.
	chunkSize = 1 << 20
	// stampFormat has the same length at all times, in UTC.
	stampFormat = "2006-01-02T15:04:05.000000000Z "
	stampLength = len(stampFormat)
)

// logFile is the file of one instance of a container between two rotations. It
// only grows; readers keep slices of it while it does.
type logFile struct {
	chunks []*chunk
	stamp  stamper
}

// chunk is a piece of a file as it is sent with timestamps: without them, a
// reader leaves out the first bytes of each line.
type chunk struct {
	first   int // the index of its first record in the file
	data    []byte
	records []record
}

// record is a line of the log's file: a line of the application, or a piece of one.
type record struct {
	nanos int64  // its time
	end   uint32 // where it ends in the chunk's data
	inner bool   // it continues a line, and has no timestamp
}

// len is the number of records.
func (f *logFile) len() int {
	if len(f.chunks) == 0 {
		return 0
	}
	last := f.chunks[len(f.chunks)-1]
	return last.first + len(last.records)
}

func (f *logFile) add(nanos int64, inner bool, text []byte, newline bool) {
	c := f.tip(len(text) + stampLength + 1)
	if !inner {
		c.data = f.stamp.append(c.data, nanos)
	}
	c.data = append(c.data, text...)
	if newline {
		c.data = append(c.data, '\n')
	}
	c.records = append(c.records, record{nanos, uint32(len(c.data)), inner})
}

// tip is the chunk to append so many bytes to.
func (f *logFile) tip(size int) *chunk {
	if n := len(f.chunks); n > 0 && len(f.chunks[n-1].data)+size <= chunkSize {
		return f.chunks[n-1]
	}
	c := &chunk{first: f.len()}
	if len(f.chunks) > 0 {
		// More will come: spare it the growing.
		c.data = make([]byte, 0, chunkSize)
		c.records = make([]record, 0, len(f.chunks[len(f.chunks)-1].records))
	}
	f.chunks = append(f.chunks, c)
	return c
}

// stamper formats times, of which most share their second with the one before.
type stamper struct {
	second int64
	text   []byte
}

func (s *stamper) append(dst []byte, nanos int64) []byte {
	second, rest := nanos/1e9, nanos%1e9
	if s.text == nil || s.second != second {
		s.second = second
		s.text = time.Unix(second, 0).UTC().AppendFormat(s.text[:0], stampFormat)
	}
	dst = append(dst, s.text...)
	for i := len(dst) - len("Z ") - 1; rest > 0; i-- {
		dst[i] = byte('0' + rest%10)
		rest /= 10
	}
	return dst
}

// Write has the app's container write lines, each stamped with the present time
// and later than the line before. It tells whether the container runs; if not,
// nothing is written.
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

// WriteRaw has the app's container write bytes, which need not be text or end
// with a line's end. As with containerd, the beginning of a line is not in the
// log before there are more than 16 KiB of it, or its end, or the container
// ends: the log then ends without a line's end.
func (p *Pod) WriteRaw(data []byte) bool { return p.write(p.app, p.present, data) }

// WriteRawAt is WriteRaw with a time of the caller's choice.
func (p *Pod) WriteRawAt(t time.Time, data []byte) bool {
	nanos := t.UnixNano()
	return p.write(p.app, func() int64 { return nanos }, data)
}

// Fill is Write for millions of lines: those that the function makes from 0 to
// n-1. Other writers may come in between, and so may the container's end.
func (p *Pod) Fill(n int, line func(i int) string) bool { return p.fill(p.present, n, line) }

// FillPast is Fill as of a container that has written a line every so often
// until now.
func (p *Pod) FillPast(n int, every time.Duration, line func(i int) string) bool {
	nanos := time.Now().Add(-time.Duration(n) * every).UnixNano()
	return p.fill(func() int64 {
		nanos += int64(every)
		return nanos
	}, n, line)
}

func (p *Pod) fill(clock func() int64, n int, line func(i int) string) bool {
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

// Rotate takes the current file of the app's log away from new requests, which
// find an empty one. A follow reads the old one to its end before it goes on
// with the file that is then the current one.
func (p *Pod) Rotate() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.app.current != nil {
		p.app.current.file = new(logFile)
		p.wake()
	}
}

// CutLine has the app's container write a line in the middle of which the
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
		if f.follow && f.instance == i {
			f.trap, f.trapAt = i.file, i.file.len()
		}
	}
	i.write(p.present, append([]byte(line), '\n'))
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

// present is the present time, or the next after the last that it was asked
// for. The pod is locked.
func (p *Pod) present() int64 {
	p.last = max(p.last+1, time.Now().UnixNano())
	return p.last
}

func (p *Pod) write(c *container, now func() int64, data []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.current == nil || !c.current.running {
		return false
	}
	c.current.write(now, data)
	p.wake()
	return true
}

// write cuts what a container writes into records, as containerd does.
func (i *instance) write(now func() int64, data []byte) {
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
			i.put(now(), text[:n], false)
			text = text[n:]
		}
		if end >= 0 {
			i.put(now(), text, true)
		} else {
			i.pending = append(i.pending, text...)
		}
	}
}

// put adds a record of what is pending and the text.
func (i *instance) put(nanos int64, text []byte, newline bool) {
	if len(i.pending) > 0 {
		text = append(i.pending, text...)
		i.pending = i.pending[:0]
	}
	i.file.add(nanos, i.inner, text, newline)
	i.inner = !newline
}
