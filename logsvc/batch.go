package logsvc

import (
	"bytes"
	"slices"
	"strconv"
	"time"

	"github.com/appbridge/appbridge/subjects"
)

// batchBytes is the size at which a batch is finished.
const batchBytes = 32 << 10

// timeFormat is that of the kubelet, with a fixed length.
const timeFormat = "2006-01-02T15:04:05.000000000Z07:00"

// batch is a group of lines of one replica.
type batch struct {
	replica string
	text    []byte // lines with their line ends
	marks   []mark // one for each line in structured formats, else nil
	lines   int
	live    bool
	first   time.Time // when the first line came in
	cut     int64     // how many bytes of the last line are missing, as its end says
	// reached is the position of the batch's end, and at that of the end of each line. Both are only
	// there if the request has positions.
	reached Position
	at      []Position
}

// size returns the used memory of a batch.
func (b *batch) size() int {
	return len(b.text) + len(b.marks)*markOverhead + len(b.at)*positionOverhead
}

// cost returns the allocated memory of a batch.
func (b *batch) cost() int {
	return batchOverhead + cap(b.text) + cap(b.marks)*markOverhead + cap(b.at)*positionOverhead
}

// clipped returns a copy of a batch without its unused memory, or the batch itself if that is
// little.
func (b *batch) clipped() *batch {
	if b.cost() <= 2*(batchOverhead+b.size()) {
		return b
	}
	c := *b
	c.text, c.marks, c.at = bytes.Clone(b.text), slices.Clone(b.marks), slices.Clone(b.at)
	return &c
}

// mark is the position and time of a line.
type mark struct {
	end  int // of the line in text, its end included
	time time.Time
}

func (b *batch) reset() {
	*b = batch{text: b.text[:0], marks: b.marks[:0], at: b.at[:0]}
}

// appendLine appends a line to a batch in the form of the request.
func (r *logRequest) appendLine(b *batch, line Line) {
	text := line.Text
	if r.format != subjects.LogFormatRaw && line.Cut == 0 {
		text = bytes.TrimSuffix(text, []byte("\r"))
	}
	if r.timestamps && !r.format.Structured() && !line.Time.IsZero() {
		b.text = line.Time.UTC().AppendFormat(b.text, timeFormat)
		b.text = append(b.text, ' ')
	}
	b.text = append(b.text, text...)
	if line.Cut > 0 {
		b.text = appendCut(b.text, line.Cut)
	}
	b.cut = line.Cut
	b.text = append(b.text, '\n')
	b.lines++
	if r.format.Structured() {
		b.marks = append(b.marks, mark{end: len(b.text), time: line.Time})
	}
}

// appendCut appends the note that n bytes of a line are missing.
func appendCut(text []byte, n int64) []byte {
	text = append(text, " [appbridge: "...)
	text = strconv.AppendInt(text, n, 10)
	return append(text, " bytes cut]"...)
}

// halves splits a batch of several lines in two.
func (b *batch) halves() []*batch {
	first, second := *b, *b
	first.lines, first.cut = b.lines/2, 0
	second.lines -= first.lines
	end := 0
	if b.marks != nil {
		end = b.marks[first.lines-1].end
		first.marks, second.marks = b.marks[:first.lines], slices.Clone(b.marks[first.lines:])
		for i := range second.marks {
			second.marks[i].end -= end
		}
	} else {
		for range first.lines {
			end += bytes.IndexByte(b.text[end:], '\n') + 1
		}
	}
	first.text, second.text = b.text[:end:end], b.text[end:]
	return []*batch{&first, &second}
}

// cutTo cuts a batch of one line to n bytes of text and a note.
func (b *batch) cutTo(n int) *batch {
	text := b.text[:len(b.text)-1]
	if b.cut > 0 {
		text = text[:len(text)-len(appendCut(nil, b.cut))]
	}
	n = min(n, len(text))
	short := append(appendCut(bytes.Clone(text[:n]), b.cut+int64(len(text)-n)), '\n')
	c := &batch{replica: b.replica, text: short, lines: 1, live: b.live, first: b.first}
	if b.marks != nil {
		c.marks = []mark{{end: len(short), time: b.marks[0].time}}
	}
	return c
}
