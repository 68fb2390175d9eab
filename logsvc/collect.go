package logsvc

import (
	"bytes"
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/logsvc/match"
	"github.com/appbridge/appbridge/subjects"
)

const (
	// maxNotes is how many notes an answer has at most.
	maxNotes = 20
	// keptBytes is how much memory the lines of an answer may take, including lineOverhead for
	// each line.
	keptBytes    = 4 << 20
	lineOverhead = 128
)

// collector keeps the newest lines of all replicas that fit into one message.
type collector struct {
	req     *logRequest
	filter  filter
	memory  *memory
	most    int // bytes of a message
	perLine int // least bytes of a message for a line in addition to its text
	metrics *metrics

	mu       sync.Mutex
	replicas []string
	kept     map[string]*kept
	oldest   oldestFirst // of kept, those with lines
	text     int         // bytes of the text of all replicas
	lines    int         // of all replicas
	dropped  int
	notes    []string
	scratch  batch
}

// kept is the newest lines of one replica.
type kept struct {
	replica string
	lines   []keptLine
	last    time.Time
}

// keptLine is a line in the form that it is sent in.
type keptLine struct {
	text  []byte
	time  time.Time // that of the previous line if it has none
	timed bool      // the line has a time
}

// oldestFirst is a heap of replicas by their oldest line.
type oldestFirst []*kept

func (h oldestFirst) Len() int           { return len(h) }
func (h oldestFirst) Less(i, j int) bool { return h[i].lines[0].time.Before(h[j].lines[0].time) }
func (h oldestFirst) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *oldestFirst) Push(k any)        { *h = append(*h, k.(*kept)) } //nolint:forcetypeassert // container/heap pushes what it is given
func (h *oldestFirst) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

func newCollector(r *logRequest, m *match.Matcher, all *memory, most int, replicas []string, metrics *metrics) *collector {
	c := &collector{req: r, filter: m.Filter, memory: all, most: most, metrics: metrics, replicas: replicas, kept: map[string]*kept{}}
	switch r.format {
	case formatJSON:
		c.perLine = len(`{"message":"","originator":"USER"},`)
	case formatProto:
		c.perLine = 6 // a tag and a length for the line and its text, and the originator
	}
	return c
}

// Lines implements Sink.
func (c *collector) Lines(ctx context.Context, replica string, lines []Line, live bool) error {
	lines, missed, err := c.filter(ctx, replica, lines, live)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropped += missed
	k := c.kept[replica]
	if k == nil {
		k = &kept{replica: replica}
		c.kept[replica] = k
	}
	for _, line := range lines {
		if line.Cut > 0 {
			c.metrics.cut.Inc()
		}
		c.scratch.reset()
		c.req.appendLine(&c.scratch, line)
		if !line.Time.IsZero() {
			k.last = line.Time
		}
		k.lines = append(k.lines, keptLine{bytes.Clone(c.scratch.text), k.last, !line.Time.IsZero()})
		if len(k.lines) == 1 {
			heap.Push(&c.oldest, k)
		}
		c.grow(len(c.scratch.text), 1)
		for c.tooMuch() && c.drop() {
		}
	}
	return context.Cause(ctx)
}

// grow adds n bytes of text and so many lines.
func (c *collector) grow(n, lines int) {
	c.text += n
	c.lines += lines
	c.memory.add(n + lines*lineOverhead)
}

// tooMuch reports whether the lines do not fit into a message, or into the memory.
func (c *collector) tooMuch() bool {
	cost := c.text + c.lines*lineOverhead
	return c.text+c.lines*c.perLine > c.most || cost > keptBytes || cost > keptFloor && c.memory.scarce()
}

// drop drops the oldest line, unless it is the only one.
func (c *collector) drop() bool {
	if c.lines < 2 {
		return false
	}
	k := c.oldest[0]
	c.grow(-len(k.lines[0].text), -1)
	c.dropped++
	k.lines[0] = keptLine{}
	if k.lines = k.lines[1:]; len(k.lines) > 0 {
		heap.Fix(&c.oldest, 0)
	} else {
		heap.Pop(&c.oldest)
	}
	return true
}

// release forgets all lines.
func (c *collector) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.grow(-c.text, -c.lines)
	c.kept, c.oldest = nil, nil
}

// empty reports whether there are no lines.
func (c *collector) empty() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lines == 0
}

// Replicas implements Sink.
func (c *collector) Replicas(ctx context.Context, names []string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replicas = slices.Clone(names)
	return context.Cause(ctx)
}

// Note implements Sink.
func (c *collector) Note(ctx context.Context, _ subjects.LogNote, replica, text string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if replica != "" {
		text = "replica " + replica + ": " + text
	}
	if len(c.notes) < maxNotes {
		c.notes = append(c.notes, text)
	}
	return context.Cause(ctx)
}

// place is where a line is kept.
type place struct {
	*keptLine

	replica string
}

// answer is one message with as many of the newest lines as fit.
func (c *collector) answer(e *encoder) (*nats.Msg, int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]place, 0, c.lines)
	for _, replica := range slices.Sorted(maps.Keys(c.kept)) {
		e.addReplicas(replica)
		lines := c.kept[replica].lines
		for i := range lines {
			all = append(all, place{&lines[i], replica})
		}
	}
	slices.SortStableFunc(all, func(a, b place) int { return cmp.Or(a.time.Compare(b.time), cmp.Compare(a.replica, b.replica)) })
	names, _ := e.fitting(c.replicas, c.most/4)
	list := strings.Join(names, ",")
	notes := request.OneLine(strings.Join(c.notes, "; "))
	most := c.most - payloadMargin - len(list) - 2*len(notes)
	// A line takes more than its text: a binary search finds how many fit.
	var body []byte
	fit, over := -1, len(all)+1
	for n := len(all); fit+1 < over; n = (fit + over) / 2 {
		tried, err := c.bodyOf(e, all[len(all)-n:])
		switch {
		case err != nil:
			return nil, 0, fmt.Errorf("encode the answer: %w", err)
		case len(tried) <= most:
			body, fit = tried, n
		default:
			over = n
		}
	}
	if fit < min(len(all), 1) {
		return nil, 0, request.Errorf(subjects.CodeInternal, "the server's max_payload of %d bytes holds no line", c.most)
	}
	return c.message(e, body, list, notes, fit, c.dropped+len(all)-fit), fit, nil
}

// message adds headers and notes to the lines.
func (c *collector) message(e *encoder, body []byte, replicas, notes string, lines, dropped int) *nats.Msg {
	header := nats.Header{
		subjects.HeaderLogReplicas: {replicas},
		subjects.HeaderLogLines:    {strconv.Itoa(lines)},
	}
	var head []byte
	if dropped > 0 {
		header[subjects.HeaderLogDropped] = []string{strconv.Itoa(dropped)}
		head = append(head, noteLine(strconv.Itoa(dropped)+" earlier lines left out, they do not fit into one message")...)
	}
	if notes != "" {
		header[subjects.HeaderLogNote] = []string{notes}
		head = append(head, noteLine(notes)...)
	}
	if lines == 0 && notes == "" {
		head = append(head, noteLine("no lines")...)
	}
	if !e.format.structured() {
		body = append(head, body...)
	}
	return &nats.Msg{Header: header, Data: body}
}

// bodyOf encodes lines; consecutive lines of one replica are one batch. A line that is too long for
// a message is cut.
func (c *collector) bodyOf(e *encoder, lines []place) ([]byte, error) {
	longest := c.most / 4
	if e.format.structured() {
		longest = c.most / 7 // a byte may need six in JSON
	}
	var runs []*batch
	for _, p := range lines {
		one := &batch{replica: p.replica, text: p.text, lines: 1}
		if e.format.structured() {
			at := p.time
			if !p.timed {
				at = time.Time{}
			}
			one.marks = []mark{{end: len(one.text), time: at}}
		}
		if len(one.text) > longest {
			one = one.cutTo(longest)
		}
		n := len(runs)
		if n == 0 || runs[n-1].replica != p.replica {
			runs = append(runs, &batch{replica: p.replica})
			n++
		}
		b := runs[n-1]
		for _, m := range one.marks {
			b.marks = append(b.marks, mark{end: len(b.text) + m.end, time: m.time})
		}
		b.text = append(b.text, one.text...)
		b.lines++
	}
	return e.bodies(runs)
}
