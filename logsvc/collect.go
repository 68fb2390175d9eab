package logsvc

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/answer"
)

const (
	// maxNotes is how many notes an answer has at most.
	maxNotes = 20
)

// collector keeps the newest lines of all replicas that fit into one message.
type collector struct {
	layout  layout
	most    int // bytes of a message
	perLine int // bytes of a message that a line takes beside its text, at least
	metrics *metrics

	mu       sync.Mutex
	replicas []string
	kept     map[string]*kept
	bytes    int // of the text of all replicas
	lines    int // of all replicas
	dropped  int
	notes    []string
}

// kept is the newest lines of one replica: a batch whose first ones may be gone.
type kept struct {
	batch

	times []time.Time // of each line; that of the line before when it carries none
	ends  []int       // of each line in the text
	gone  int         // lines
}

func newCollector(r *request, most int, replicas []string, m *metrics) *collector {
	c := &collector{layout: layout{r}, most: most, metrics: m, replicas: replicas, kept: map[string]*kept{}}
	switch r.format {
	case formatJSON:
		c.perLine = len(`{"message":"","originator":"USER"},`)
	case formatProto:
		c.perLine = 6 // a tag and a length for the line and its text, and the originator
	}
	return c
}

// Lines is that of a Sink.
func (c *collector) Lines(ctx context.Context, replica string, lines []Line, _ bool) error {
	lines = c.layout.wanted(ctx, lines)
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.kept[replica]
	if k == nil {
		k = &kept{batch: batch{replica: replica}}
		c.kept[replica] = k
	}
	for _, line := range lines {
		if line.Cut > 0 {
			c.metrics.cut.Inc()
		}
		length := len(k.text)
		c.layout.add(&k.batch, line)
		at := line.Time
		if n := len(k.times); at.IsZero() && n > 0 {
			at = k.times[n-1]
		}
		c.lines++
		k.times, k.ends = append(k.times, at), append(k.ends, len(k.text))
		c.bytes += len(k.text) - length
		for c.bytes+c.lines*c.perLine > c.most && c.drop() {
		}
	}
	return context.Cause(ctx)
}

// drop lets go of the oldest line, unless it is the only one.
func (c *collector) drop() bool {
	if c.lines < 2 {
		return false
	}
	var oldest *kept
	for _, k := range c.kept {
		if k.gone < len(k.times) && (oldest == nil || k.times[k.gone].Before(oldest.times[oldest.gone])) {
			oldest = k
		}
	}
	c.bytes -= oldest.end(oldest.gone) - oldest.end(oldest.gone-1)
	oldest.gone++
	c.lines--
	c.dropped++
	if 2*oldest.gone > len(oldest.times) && oldest.end(oldest.gone-1) > batchBytes {
		oldest.compact()
	}
	return true
}

// end is where a line ends; 0 for the line before the first.
func (k *kept) end(i int) int {
	if i < 0 {
		return 0
	}
	return k.ends[i]
}

// compact gives back the memory of what is gone.
func (k *kept) compact() {
	start := k.end(k.gone - 1)
	k.text = slices.Clone(k.text[start:])
	k.times = slices.Clone(k.times[k.gone:])
	k.ends = slices.Clone(k.ends[k.gone:])
	for i := range k.ends {
		k.ends[i] -= start
	}
	if k.marks != nil {
		k.marks = slices.Clone(k.marks[k.gone:])
		for i := range k.marks {
			k.marks[i].end -= start
		}
	}
	k.lines, k.gone = len(k.times), 0
}

// empty tells whether there is no line.
func (c *collector) empty() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lines == 0
}

// Replicas is that of a Sink.
func (c *collector) Replicas(ctx context.Context, names []string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replicas = slices.Clone(names)
	return context.Cause(ctx)
}

// Note is that of a Sink.
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
	*kept

	i int
}

func (p place) time() time.Time { return p.times[p.i] }

// answer is one message with as many of the newest lines as fit.
func (c *collector) answer(e *encoder) (*nats.Msg, int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []place
	for _, replica := range slices.Sorted(maps.Keys(c.kept)) {
		k := c.kept[replica]
		e.saw(replica)
		for i := k.gone; i < len(k.times); i++ {
			all = append(all, place{k, i})
		}
	}
	slices.SortStableFunc(all, func(a, b place) int { return cmp.Or(a.time().Compare(b.time()), cmp.Compare(a.replica, b.replica)) })
	names, _ := e.fitting(c.replicas, c.most/4)
	list := strings.Join(names, ",")
	notes := answer.OneLine(strings.Join(c.notes, "; "))
	most := c.most - payloadMargin - len(list) - 2*len(notes)
	n := len(all)
	for {
		body, err := c.bodyOf(e, all[len(all)-n:])
		switch {
		case err != nil:
			return nil, 0, fmt.Errorf("encode the answer: %w", err)
		case len(body) > most && n <= 1:
			return nil, 0, Errorf(subjects.CodeInternal, "the server's max_payload of %d bytes holds no line", c.most)
		case len(body) > most:
			n = max(1, min(n-1, int(float64(n)*float64(most)/float64(len(body)))))
			continue
		}
		return c.message(e, body, list, notes, n, c.dropped+len(all)-n), n, nil
	}
}

// message adds what is to be told beside the lines.
func (c *collector) message(e *encoder, body []byte, replicas, notes string, lines, dropped int) *nats.Msg {
	header := nats.Header{
		subjects.HeaderLogReplicas: {replicas},
		subjects.HeaderLogLines:    {strconv.Itoa(lines)},
	}
	var says []byte
	if dropped > 0 {
		header[subjects.HeaderLogDropped] = []string{strconv.Itoa(dropped)}
		says = append(says, noteLine(strconv.Itoa(dropped)+" earlier lines left out, they do not fit into one message")...)
	}
	if notes != "" {
		header[subjects.HeaderLogNote] = []string{notes}
		says = append(says, noteLine(notes)...)
	}
	if lines == 0 && notes == "" {
		says = append(says, noteLine("no lines")...)
	}
	if !e.format.structured() {
		body = append(says, body...)
	}
	return &nats.Msg{Header: header, Data: body}
}

// bodyOf joins lines, those of one replica that follow each other as one batch. A
// line that is too long for a message is cut.
func (c *collector) bodyOf(e *encoder, lines []place) ([]byte, error) {
	longest := c.most / 4
	if e.format.structured() {
		longest = c.most / 7 // a byte may need six in JSON
	}
	var runs []*batch
	for _, p := range lines {
		one := &batch{replica: p.replica, text: p.text[p.end(p.i-1):p.end(p.i)], lines: 1}
		if p.marks != nil {
			one.marks = []mark{{end: len(one.text), time: p.marks[p.i].time}}
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
