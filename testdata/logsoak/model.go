package main

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"strconv"
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
	rotated bool // another file took its place while the container ran
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

	mu    sync.Mutex
	file  *file
	lines []written
	next  int // the number behind the highest that came
	// Since the last numbered line:
	noted bool // a note said that lines are missing or repeated
	why   string
	same  int  // lines without a number
	exact bool // that line was the next one, so that these can be counted
	found figures
}

func newModel(name string, report func(string, ...any)) *model {
	return &model{name: name, report: report, file: &file{}}
}

// add makes the next line, which is written with that many identical ones behind it.
func (m *model) add(before string, same int) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lines = append(m.lines, written{file: m.file, same: same})
	return before + numberMark + strconv.Itoa(len(m.lines)-1)
}

// newFile begins a file, for a rotation or for a container that starts.
func (m *model) newFile(rotated bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.file.rotated = rotated
	m.file = &file{first: len(m.lines)}
}

// within reports whether the reader has come to the current file.
func (m *model) within() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.next > m.file.first
}

// note judges a note of the stream.
func (m *model) note(text string, dropped bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.found.notes++
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
			m.report("%s: not a line of the log, after line %d: %.200q", m.name, m.next-1, line)
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
		m.report("%s: line %d comes again after line %d", m.name, n, m.next-1)
		m.exact = false
	default:
		m.found.disordered++
		m.report("%s: line %d comes after line %d", m.name, n, m.next-1)
		m.exact = false
	}
	line.came = true
	m.same = 0
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
		m.report("%s: %d identical lines behind line %d, written %d", m.name, m.same, n-1, m.lines[n-1].same)
	case more < 0 && m.noted && m.excused(n-1, n):
		m.found.holes++
		m.found.missing -= more
	case more < 0:
		m.found.lost -= more
		m.report("%s: %d identical lines behind line %d, written %d, noted: %t", m.name, m.same, n-1, m.lines[n-1].same, m.noted)
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
		m.report("%s: a hole of %d lines, %d to %d, over %d files; the note: %q", m.name, missing, m.next, n-1, len(files), m.why)
	}
	if lost > 0 {
		m.found.lost += lost
		m.report("%s: lines %d to %d are missing, %d with those between them are lost, noted: %t", m.name, m.next, n-1, lost, m.noted)
	}
}

// excused reports whether line i was in a file that a reader of line n could not read any more.
func (m *model) excused(i, n int) bool {
	return m.lines[i].file.rotated && m.lines[i].file != m.lines[n].file
}

func (m *model) figures() figures {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.found
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
			m.report("%s: nothing came after line %d of %d", m.name, m.next-1, all-1)
			return
		}
		if testenv.Pause(ctx, 50*time.Millisecond) != nil {
			return
		}
	}
}
