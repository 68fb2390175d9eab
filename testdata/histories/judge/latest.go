package judge

import (
	"fmt"
	"slices"

	"github.com/appbridge/appbridge/testdata/histories/lines"
	"github.com/appbridge/appbridge/testdata/histories/model"
)

// gap is events that were removed, and that an event of the same app does not stand for.
type gap struct {
	removed []*model.Message
	next    *model.Message
}

// stands checks how many events a newest state stands for. What it does not stand for has to be
// removed, and a loss has to report it, or a restart. The loss may come behind the event.
func (j *Judge) stands(l lines.Line, m *model.Message) {
	after, known := j.latest[m.Event.ID]
	if !known && j.all {
		after, known = j.anchor, true
	}
	all, held := 0, 0
	var removed []*model.Message
	for _, other := range j.messages().Between(after, m.Sequence) {
		if other.Event == nil || other.Event.ID != m.Event.ID {
			continue
		}
		all++
		switch {
		case other.Present() && other.Sequence <= j.vague: // a bucket under repair did not show it
		case other.Present() && !j.restored(other):
			held++
		case other.LostAt == 0 && !j.want.blind() && !j.isReported(other.Sequence):
			removed = append(removed, other)
		}
		if known {
			j.delivered[other.Sequence] = j.delivered[other.Sequence] || other.Present()
		}
	}
	switch {
	case l.Skipped > all:
		j.problem(Content, "%s stands for %d events more, and there were %d", name(m), l.Skipped, all)
	case !known: // it depends on the position
	case l.Skipped < held:
		j.problem(Content, "%s stands for %d events more, and the stream has %d behind %d", name(m), l.Skipped, held, after)
	case l.Skipped < held+len(removed):
		j.gaps = append(j.gaps, gap{removed, m})
	}
}

// Unreported is what a reader of newest states has neither delivered nor reported, at the end.
func (j *Judge) Unreported() string {
	j.model.Lock()
	defer j.model.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.want.Latest {
		return ""
	}
	for _, m := range j.messages().Between(j.anchor, ^uint64(0)) {
		if m.Notice() && m.Present() && !j.delivered[m.Sequence] {
			return name(m) + " is not reported"
		}
	}
	for _, g := range j.gaps {
		if !slices.ContainsFunc(g.removed, func(m *model.Message) bool { return j.isReported(m.Sequence) }) {
			return fmt.Sprintf("%s: it was removed, %s does not stand for it, and nothing reported that", name(g.removed[0]), name(g.next))
		}
	}
	return ""
}
