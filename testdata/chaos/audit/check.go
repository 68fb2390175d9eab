package audit

import (
	"cmp"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/appbridge/appbridge/subjects"
)

// audit is what all apps are checked against. It does not change once the
// walks have begun.
type audit struct {
	in          Input
	truth       *truth
	gaps        gaps
	comparisons gaps
	source      string
	unread      []unread
}

// Check compares what was published with the truth. It takes any input, also
// one that makes no sense.
func Check(in Input) Report {
	a := &audit{in: in, truth: newTruth(in.Changes, in.Swallowed), gaps: newGaps(in.Gaps), comparisons: newGaps(in.Comparisons), source: subjects.Source(in.ClusterName)}
	a.truth.takePods(in.Pods)
	a.unread = a.unreadEnds()
	r := Report{Drift: a.truth.problems}
	events := a.sort(&r)
	entries := a.entries(&r)

	ids := map[subjects.AppID]struct{}{}
	for id := range a.truth.apps {
		ids[id] = struct{}{}
	}
	for id := range events {
		ids[id] = struct{}{}
	}
	for id := range entries {
		ids[id] = struct{}{}
	}
	ordered := slices.SortedFunc(maps.Keys(ids), func(a, b subjects.AppID) int {
		return cmp.Or(cmp.Compare(a.Project, b.Project), cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Name, b.Name))
	})
	reports := make([]Report, len(ordered))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(ordered); i = int(next.Add(1)) - 1 {
				id := ordered[i]
				reports[i] = a.app(id, events[id], entries[id])
			}
		})
	}
	workers.Wait()
	for i := range reports {
		r.add(&reports[i])
	}
	return r
}

// app checks one app.
func (a *audit) app(id subjects.AppID, events []*event, entry *Message) Report {
	h := a.truth.apps[id]
	known := h != nil
	if !known {
		h = &history{id: id}
	}
	w := newWalk(a, h)
	w.report.Changes = len(h.states)
	w.survey(events)
	for _, e := range events {
		w.step(e)
	}
	w.end()
	w.bucket(entry, known)
	return w.report
}

// sort parts the stream by app and looks at what concerns it as a whole: the
// order of its sequences, that none has two meanings, and that no message id
// comes twice.
func (a *audit) sort(r *Report) map[subjects.AppID][]*event {
	events := map[subjects.AppID][]*event{}
	ids := make(map[string]uint64, len(a.in.Events))
	reuse := newReuse(a)
	var newest uint64
	for i := range a.in.Events {
		msg := &a.in.Events[i]
		if i > 0 && msg.Epoch > a.in.Events[i-1].Epoch {
			newest = 0
		}
		if problem, found := reuse.check(msg); found {
			r.Reused = append(r.Reused, problem)
		}
		if msg.Sequence <= newest {
			r.Reordered = append(r.Reordered, Problem{msg.Subject, msg.Sequence, fmt.Sprintf("the stream steps back: the message before has sequence %d", newest)})
		}
		newest = max(newest, msg.Sequence)
		if a.in.Subjects.IsLost(msg.Subject) || a.in.Subjects.IsNotice(msg.Subject) {
			continue
		}
		if msg.Header.Get(subjects.CEType) == "" {
			r.Foreign++
			continue
		}
		id, kind, err := a.in.Subjects.ParseEvent(msg.Subject)
		if err != nil {
			r.Drift = append(r.Drift, Problem{msg.Subject, msg.Sequence, "an event on a subject that is none of an event: " + err.Error()})
			continue
		}
		r.Events++
		_, lost := a.lossOf(msg)
		e := &event{Message: msg, id: id, kind: kind, lost: lost}
		if msgID := msg.Header.Get(subjects.HeaderMsgID); msgID != "" && !lost {
			if first, again := ids[msgID]; again {
				e.repeated = first
			} else {
				ids[msgID] = msg.Sequence
			}
		}
		events[id] = append(events[id], e)
	}
	return events
}

// entries parts the bucket by app.
func (a *audit) entries(r *Report) map[subjects.AppID]*Message {
	entries := map[subjects.AppID]*Message{}
	for i := range a.in.Entries {
		msg := &a.in.Entries[i]
		key, err := subjects.ParseBucketSubject(a.in.Bucket, msg.Subject)
		var id subjects.AppID
		if err == nil {
			id, err = subjects.ParseKey(key)
		}
		if err != nil {
			r.Drift = append(r.Drift, Problem{App: msg.Subject, What: "the bucket holds what is no key of an app: " + err.Error()})
			continue
		}
		if had := entries[id]; had == nil || had.Sequence < msg.Sequence {
			entries[id] = msg
		}
	}
	return entries
}

func (r *Report) add(o *Report) {
	r.Changes += o.Changes
	r.Events += o.Events
	r.Foreign += o.Foreign
	r.Merged += o.Merged
	r.Excused += o.Excused
	r.Taken += o.Taken
	r.Lost = append(r.Lost, o.Lost...)
	r.Duplicated = append(r.Duplicated, o.Duplicated...)
	r.Reordered = append(r.Reordered, o.Reordered...)
	r.Drift = append(r.Drift, o.Drift...)
}

// list is a header's comma-separated list.
func list(header string) []string {
	if header == "" {
		return nil
	}
	return strings.Split(header, ",")
}
