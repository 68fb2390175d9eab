package logsvc

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
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
	maxNotes = 20  // how many notes are kept for an answer at most
	noteText = 960 // how many bytes of notes an answer has, but for the number of those that are missing
	// keptBytes is how much memory the lines of an answer may take, including lineOverhead for
	// each line.
	keptBytes    = 4 << 20
	lineOverhead = 128
)

// collector keeps the newest lines of all replicas that fit into one message.
type collector struct {
	req     *logRequest
	matcher *match.Matcher
	memory  *memoryUse
	most    int // bytes of a message
	longest int // bytes of a line; longer ones are cut
	perLine int // least bytes of a message for a line in addition to its text
	metrics *metrics

	mu       sync.Mutex
	replicas []string
	kept     []*kept
	text     int // bytes of the text of all replicas
	lines    int // of all replicas
	dropped  int
	notes    []collectedNote
	more     int // notes that are not kept
	scratch  batch
}

// kept is the newest lines of one replica.
type kept struct {
	replica string
	lines   []keptLine
	latest  time.Time // of all lines so far
}

// keptLine is a line in the form that it is sent in.
type keptLine struct {
	replica string
	text    []byte
	time    time.Time
	order   time.Time // the latest time of its replica so far: the replica's lines are never reordered
}

func newCollector(r *logRequest, m *match.Matcher, all *memoryUse, most int, replicas []string, metrics *metrics) *collector {
	c := &collector{req: r, matcher: m, memory: all, most: most, longest: most / 4, metrics: metrics, replicas: replicas}
	if r.format.Structured() {
		c.longest = most / 7 // a byte may need six in JSON
	}
	switch r.format {
	case subjects.LogFormatJSON:
		c.perLine = len(`{"message":"","originator":"USER"},`)
	case subjects.LogFormatProto:
		c.perLine = 6 // a tag and a length for the line and its text, and the originator
	}
	return c
}

// Lines implements Sink.
func (c *collector) Lines(ctx context.Context, replica string, lines []Line, live bool, _ string) error {
	lines, _, missed, err := c.matcher.Filter(ctx, replica, lines, live)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropped += missed
	i, found := slices.BinarySearchFunc(c.kept, replica, func(k *kept, replica string) int { return cmp.Compare(k.replica, replica) })
	if !found {
		c.kept = slices.Insert(c.kept, i, &kept{replica: replica})
	}
	k := c.kept[i]
	for _, line := range lines {
		if line.Cut > 0 {
			c.metrics.cut.Inc()
		}
		c.scratch.reset()
		c.req.appendLine(&c.scratch, line)
		text := bytes.Clone(c.scratch.text)
		if len(text) > c.longest {
			text = c.scratch.cutTo(c.longest).text
		}
		if line.Time.After(k.latest) {
			k.latest = line.Time
		}
		k.lines = append(k.lines, keptLine{replica, text, line.Time, k.latest})
		c.grow(len(text), 1)
		for c.tooMuch() && c.drop() {
		}
	}
	return context.Cause(ctx)
}

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
	var k *kept
	for _, other := range c.kept {
		if len(other.lines) > 0 && (k == nil || other.lines[0].order.Before(k.lines[0].order)) {
			k = other
		}
	}
	c.grow(-len(k.lines[0].text), -1)
	c.dropped++
	k.lines[0] = keptLine{}
	k.lines = k.lines[1:]
	return true
}

// Replicas implements Sink.
func (c *collector) Replicas(ctx context.Context, names []string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replicas = slices.Clone(names)
	return context.Cause(ctx)
}

// Note implements Sink.
func (c *collector) Note(ctx context.Context, _ subjects.LogNote, replicas []string, text string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	shared := func(n collectedNote) bool { return n.text == text && len(n.replicas) > 0 && len(replicas) > 0 }
	if i := slices.IndexFunc(c.notes, shared); i >= 0 {
		c.notes[i].replicas = append(c.notes[i].replicas, replicas...)
	} else if len(c.notes) < maxNotes {
		c.notes = append(c.notes, collectedNote{text: text, replicas: slices.Clone(replicas)})
	} else {
		c.more++
	}
	return context.Cause(ctx)
}

// collectedNote is a note of an answer. Replicas with the same one share it.
type collectedNote struct {
	text     string
	replicas []string // nil: it is about the app
}

func (n collectedNote) String() string {
	switch len(n.replicas) {
	case 0:
		return n.text
	case 1:
		return "replica " + n.replicas[0] + ": " + n.text
	default:
		return "replicas " + nameSome(n.replicas) + ": " + n.text
	}
}

// namedReplicas is how many replicas a note names.
const namedReplicas = 3

// nameSome names the first replicas of a note that is about several, and says how many more there are.
func nameSome(replicas []string) string {
	names := slices.Sorted(slices.Values(replicas))
	if more := len(names) - namedReplicas; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:namedReplicas], ", "), more)
	}
	return strings.Join(names, ", ")
}

// answer is one message with as many of the newest lines as fit. The source has ended before.
func (c *collector) answer(e *encoder) (*nats.Msg, int64, error) {
	all := make([]keptLine, 0, c.lines)
	for _, k := range c.kept {
		e.addReplicas(k.replica)
		all = append(all, k.lines...)
	}
	slices.SortStableFunc(all, func(a, b keptLine) int { return a.order.Compare(b.order) })
	names, _ := e.fitting(c.replicas, c.most/4)
	list := strings.Join(names, ",")
	notes := c.noted()
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
		return nil, 0, request.Errorf(subjects.CodeInternal, "max-reply, or max_payload of the NATS server, lets %d bytes through, which hold no line", c.most)
	}
	return c.message(e, body, list, notes, fit, c.dropped+len(all)-fit), int64(fit), nil
}

// noted is the notes on one line, as many as fit, and how many are missing.
func (c *collector) noted() string {
	var texts []string
	bytes, more := 0, c.more
	for _, n := range c.notes {
		text := request.OneLine(n.String())
		if len(texts) == 0 && len(text) > noteText {
			text = strings.ToValidUTF8(text[:noteText], "") + "…"
		}
		if bytes += len(text) + len("; "); len(texts) > 0 && bytes > noteText {
			bytes = noteText // those that follow are missing, too
			more++
			continue
		}
		texts = append(texts, text)
	}
	if more > 0 {
		texts = append(texts, fmt.Sprintf("%d more notes do not fit here", more))
	}
	return strings.Join(texts, "; ")
}

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
	if !e.format.Structured() {
		body = append(head, body...)
	}
	return &nats.Msg{Header: header, Data: body}
}

// bodyOf encodes lines; consecutive lines of one replica are one batch.
func (c *collector) bodyOf(e *encoder, lines []keptLine) ([]byte, error) {
	var runs []*batch
	for _, p := range lines {
		n := len(runs)
		if n == 0 || runs[n-1].replica != p.replica {
			runs = append(runs, &batch{replica: p.replica})
			n++
		}
		b := runs[n-1]
		b.text = append(b.text, p.text...)
		b.lines++
		if e.format.Structured() {
			b.marks = append(b.marks, mark{end: len(b.text), time: p.time})
		}
	}
	return e.body(runs...)
}

// get reads the last lines, and makes the answer.
func (s *Service) get(ctx context.Context, req *logRequest) (answer *nats.Msg, lines int64, err error) {
	ctx, stop := s.inTime(ctx, req, "Kubernetes did not answer")
	defer stop()
	defer func() { err = late(ctx, err) }()
	req.query.Until = req.arrived.Add(s.times.read)
	source, err := s.source.Open(ctx, req.query)
	if err != nil {
		return nil, 0, err
	}
	defer source.Close()
	c := newCollector(req, req.matcher(s.turns), &s.memory, s.maxMessage(), source.Replicas(), s.metrics)
	defer func() { c.grow(-c.text, -c.lines) }()
	if err := source.Run(ctx, c); err != nil {
		return nil, 0, err
	}
	done, err := s.acquireEncoder(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer done()
	return c.answer(newEncoder(req, source.Org()))
}
