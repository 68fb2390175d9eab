package main

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// sameLine is the text of all lines that have no number.
const sameLine = "the same"

// numberMark is before the number of a line, which ends it: what is before the mark may be the same in
// many lines.
const numberMark = " n="

// spoken are the texts of notes that lines are missing or repeated.
var spoken = regexp.MustCompile(`may be missing|may be repeated|lines dropped|the rest of the log`)

// figures are what a reader got.
type figures struct {
	lines, lost, repeated, holes, notes int
	missing, notedRepeats, disordered   int
	wrong                               int // what is no line of the log
}

func (f figures) String() string {
	return fmt.Sprintf("lines=%d lost=%d repeated=%d holes=%d notes=%d missing=%d noted-repeats=%d disordered=%d wrong=%d",
		f.lines, f.lost, f.repeated, f.holes, f.notes, f.missing, f.notedRepeats, f.disordered, f.wrong)
}

func (f *figures) add(g figures) {
	f.lines += g.lines
	f.lost += g.lost
	f.repeated += g.repeated
	f.holes += g.holes
	f.notes += g.notes
	f.missing += g.missing
	f.notedRepeats += g.notedRepeats
	f.disordered += g.disordered
	f.wrong += g.wrong
}

func (f figures) good() bool {
	return f.lines > 0 && f.lost == 0 && f.repeated == 0 && f.disordered == 0 && f.wrong == 0
}

// file is a file of a log.
type file struct {
	first   int  // the number of its first line
	begins  bool // it is the first one of a container
	rotated bool // another file took its place while the container ran
	// followed are the follows that read its end when it was rotated.
	followed []*follow
}

// removed reports whether the file was rotated away before a reader could read all of it.
func (f *file) removed() bool {
	return f.rotated && (len(f.followed) == 0 || slices.ContainsFunc(f.followed, func(f *follow) bool { return f.broken }))
}

// follow is a request that follows the log.
type follow struct {
	atEnd     int  // how many lines there were when it had come to the end of the file; -1: it has not
	latest    bool // no request came after it
	reads     bool // the reader got a line that was written after this
	rotations int  // since it was opened
	broken    bool // a fault ended it
}

// written is a numbered line.
type written struct {
	file *file
	same int  // how many lines without a number follow it
	came bool // the reader has it
}

// model knows each line of a log, and judges what a reader gets.
type model struct {
	name   string
	report func(format string, args ...any)
	trace  *trace
	failed chan struct{} // closed at the first fault
	// showHoles has the trace shown at excused holes, too.
	showHoles bool

	mu      sync.Mutex
	file    *file
	follows map[int]*follow // those that are open, by the number of the request
	unasked int             // rotations since a request was opened
	lines   []written
	next    int // the number behind the highest that came
	// Since the last numbered line:
	noted  bool // a note said that lines are missing or repeated
	why    string
	same   int  // lines without a number
	exact  bool // that line was the next one, so that these can be counted
	found  figures
	faults int
}

func newModel(name string, report func(string, ...any)) *model {
	return &model{name: name, report: report, trace: newTrace(), failed: make(chan struct{}), file: &file{begins: true}, follows: map[int]*follow{}}
}

// add makes the next line, which is written with that many identical ones behind it.
func (m *model) add(before string, same int) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lines = append(m.lines, written{file: m.file, same: same})
	return before + numberMark + strconv.Itoa(len(m.lines)-1)
}

// observe keeps what the requests for the log do.
func (m *model) observe(e testenv.RequestEvent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trace.add("request %d is %s after %d bytes: %s", e.Number, e.Step, e.Sent, e.Query)
	if e.Step == testenv.RequestOpened {
		m.unasked = 0
		for _, f := range m.follows {
			f.latest = false
		}
	}
	switch {
	case !e.Follow:
	case e.Step == testenv.RequestOpened:
		m.follows[e.Number] = &follow{atEnd: -1, latest: true}
	case e.Step == testenv.RequestAtEnd:
		m.follows[e.Number].atEnd = len(m.lines)
	case e.Step == testenv.RequestEnded:
		delete(m.follows, e.Number)
	}
}

// breakFollows is called before a fault that ends follows, and after it.
func (m *model) breakFollows(why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trace.add("%s", why)
	for _, f := range m.follows {
		f.broken = true
	}
}

// mostUnasked is how often a log is rotated while no reader asks for it: more would only be lines of which
// nobody can say anything.
const mostUnasked = 2

// rotate begins a file in place of another, and reports whether it may. A follow that is two rotations
// behind loses lines in the kubelet, and the first file of a container leaves nothing behind from which a
// reader could tell that there was one: in both cases nobody can notice.
func (m *model) rotate() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.within() {
		behind := m.file.begins || m.unasked == mostUnasked
		for _, f := range m.follows {
			behind = behind || f.rotations > 0
		}
		if behind {
			return false
		}
	}
	m.file.rotated = true
	m.unasked++
	for _, f := range m.follows {
		f.rotations++
		if f.reads {
			m.file.followed = append(m.file.followed, f)
		}
	}
	m.newFile("rotated", false)
	return true
}

// restart begins the file of a container that starts again, and reports whether it may: the log of the one
// before the last is removed.
func (m *model) restart() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.within() {
		return false
	}
	m.newFile("of the last container", true)
	return true
}

func (m *model) newFile(why string, begins bool) {
	m.trace.add("the file with lines %d to %d is %s, %d follows read its end; the reader has line %d",
		m.file.first, len(m.lines)-1, why, len(m.file.followed), m.next-1)
	m.file = &file{first: len(m.lines), begins: begins}
}

// within reports whether the reader has come to the current file.
func (m *model) within() bool { return m.next > m.file.first }

// fault reports what is wrong, the first time with what came before it.
func (m *model) fault(format string, args ...any) {
	const most = 50
	if m.faults++; m.faults <= most {
		m.report("%s: "+format, append([]any{m.name}, args...)...)
	}
	select {
	case <-m.failed:
	default:
		close(m.failed)
		m.report("%s: before that:\n%s", m.name, m.trace)
	}
}

// note judges a note of the stream.
func (m *model) note(text string, dropped bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.found.notes++
	m.trace.add("a note after line %d: %s", m.next-1, strings.TrimSpace(text))
	if dropped || spoken.MatchString(text) {
		m.noted, m.why = true, text
	}
}

// read judges whole lines.
func (m *model) read(body []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for line := range bytes.Lines(body) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		m.found.lines++
		if string(line) == sameLine {
			m.same++
			continue
		}
		n, err := -1, error(nil)
		if i := bytes.LastIndex(line, []byte(numberMark)); i >= 0 {
			n, err = strconv.Atoi(string(line[i+len(numberMark):]))
		}
		if err != nil || n < 0 || n >= len(m.lines) {
			m.found.wrong++
			m.fault("not a line of the log, after line %d: %.200q", m.next-1, line)
			continue
		}
		m.number(n)
	}
}

// number judges the line with that number.
func (m *model) number(n int) {
	line := &m.lines[n]
	switch {
	case n == m.next:
		m.between(n)
		m.next++
		m.noted, m.exact = false, true
	case n > m.next:
		m.hole(n)
		m.next = n + 1
		m.noted, m.exact = false, true
	case line.came && m.noted:
		m.found.notedRepeats++
		m.exact = false
	case line.came:
		m.found.repeated++
		m.fault("line %d comes again after line %d", n, m.next-1)
		m.exact = false
	default:
		m.found.disordered++
		m.fault("line %d comes after line %d", n, m.next-1)
		m.exact = false
	}
	line.came = true
	m.same = 0
	for _, f := range m.follows {
		f.reads = f.reads || f.latest && f.atEnd >= 0 && n >= f.atEnd
	}
}

// between judges the lines without a number before the next one.
func (m *model) between(n int) {
	if n == 0 || !m.exact {
		return
	}
	switch more := m.same - m.lines[n-1].same; {
	case more > 0 && m.noted:
		m.found.notedRepeats += more
	case more > 0:
		m.found.repeated += more
		m.fault("%d identical lines behind line %d, written %d", m.same, n-1, m.lines[n-1].same)
	case more < 0 && m.noted && m.excused(n-1, n):
		m.found.holes++
		m.found.missing -= more
	case more < 0:
		m.found.lost -= more
		m.fault("%d identical lines behind line %d, written %d, noted: %t", m.same, n-1, m.lines[n-1].same, m.noted)
	}
}

// hole judges the lines that are missing before line n.
func (m *model) hole(n int) {
	missing, lost := 0, 0
	files := map[*file]bool{}
	for i := m.next; i < n; i++ {
		files[m.lines[i].file] = true
		if m.noted && m.excused(i, n) {
			missing += 1 + m.lines[i].same
		} else {
			lost += 1 + m.lines[i].same
		}
	}
	if missing > 0 {
		m.found.holes++
		m.found.missing += missing
		if m.showHoles {
			m.report("%s: before the next hole:\n%s", m.name, m.trace)
		}
		m.report("%s: a hole of %d lines, %d to %d, over %d files; the note: %q", m.name, missing, m.next, n-1, len(files), m.why)
	}
	if lost > 0 {
		m.found.lost += lost
		m.fault("lines %d to %d are missing, %d with those between them are lost, noted: %t", m.next, n-1, lost, m.noted)
	}
}

// excused reports whether line i was in a file that a reader of line n could not read any more.
func (m *model) excused(i, n int) bool {
	return m.lines[i].file.removed() && m.lines[i].file != m.lines[n].file
}

func (m *model) figures() figures {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.found
}

// watch waits until something is wrong or ctx is done. It is wrong that the reader makes no progress for so
// long.
func (m *model) watch(ctx context.Context, patience time.Duration) {
	progress, last := time.Now(), -1
	for testenv.Pause(ctx, 50*time.Millisecond) == nil {
		select {
		case <-m.failed:
			return
		default:
		}
		m.mu.Lock()
		switch {
		case m.next > last:
			progress, last = time.Now(), m.next
		case time.Since(progress) > patience:
			m.fault("nothing came for %s after line %d of %d", patience, m.next-1, len(m.lines)-1)
		}
		m.mu.Unlock()
	}
}

// settle waits until the reader has all lines, or makes no progress for so long. What did not come then
// is lost.
func (m *model) settle(ctx context.Context, patience time.Duration) {
	progress, last := time.Now(), -1
	for {
		m.mu.Lock()
		next, all := m.next, len(m.lines)
		m.mu.Unlock()
		switch {
		case next == all:
			return
		case next > last:
			progress, last = time.Now(), next
		case time.Since(progress) > patience:
			m.mu.Lock()
			defer m.mu.Unlock()
			for _, line := range m.lines[m.next:] {
				m.found.lost += 1 + line.same
			}
			m.fault("nothing came after line %d of %d", m.next-1, all-1)
			return
		}
		if testenv.Pause(ctx, 50*time.Millisecond) != nil {
			return
		}
	}
}
