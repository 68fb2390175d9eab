package main

import (
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/histories/judge"
	"github.com/appbridge/appbridge/testdata/histories/lines"
	"github.com/appbridge/appbridge/testdata/histories/reader"
)

// fault is a wrong reader, and how it is found.
type fault struct {
	name string
	want []judge.Kind // any of them
	seed uint64       // of a history that has what it takes
	*wrong
}

func event(l lines.Line) bool { return l.Type == lines.Event }

// everything reports whether the reader prints every event of every app.
func everything(w *wrong) bool {
	o := w.options
	return !w.filtered() && len(o.Kinds)+len(o.Statuses) == 0 && !o.Latest && !o.NoSnapshot && o.Since.IsZero()
}

var faults = []fault{
	{"a gap after a rollback", []judge.Kind{judge.Missed, judge.Stuck}, 4, &wrong{line: func(w *wrong, l lines.Line, out func(lines.Line)) {
		if w.armed = w.armed || l.Type == lines.Loss && l.Reason == lines.Notice; w.armed && event(l) {
			w.armed = false
			return
		}
		out(l)
	}}},
	{"a repeat after a reconnect", []judge.Kind{judge.Twice}, 1, &wrong{line: func(w *wrong, l lines.Line, out func(lines.Line)) {
		if w.reconnect.Swap(false) && event(l) && event(w.last) {
			out(w.last)
		}
		out(l)
	}}},
	{"a repeat after a restart of the process", []judge.Kind{judge.Twice}, 1, &wrong{
		begin: func(w *wrong, o *reader.Options, _ func(lines.Line)) { o.From = at(o.From, -1) },
		line:  func(_ *wrong, l lines.Line, out func(lines.Line)) { out(l) },
	}},
	{"a gap after a restart of the process", []judge.Kind{judge.Missed, judge.Stuck}, 1, &wrong{
		begin: func(w *wrong, o *reader.Options, _ func(lines.Line)) { o.From = at(o.From, 1) },
		line:  func(_ *wrong, l lines.Line, out func(lines.Line)) { out(l) },
	}},
	{"a position that is stored too late", []judge.Kind{judge.Twice}, 1, &wrong{line: func(w *wrong, l lines.Line, out func(lines.Line)) {
		if event(l) {
			l.Position = at(l.Position, -1)
		}
		out(l)
	}}},
	// Skipped gives it away before the end does.
	{"a stale latest", []judge.Kind{judge.Stale, judge.Content}, 80, &wrong{line: func(w *wrong, l lines.Line, out func(lines.Line)) {
		if !w.options.Latest || !event(l) || w.count%2 == 0 { // every other app stays as it was
			out(l)
		}
	}}},
	{"a notice that is not reported", []judge.Kind{judge.Missed, judge.Stuck}, 12, &wrong{line: func(_ *wrong, l lines.Line, out func(lines.Line)) {
		if l.Type != lines.Loss || l.Reason != lines.Notice {
			out(l)
		}
	}}},
	{"a removal that is not reported", []judge.Kind{judge.Missed}, 1, &wrong{line: func(w *wrong, l lines.Line, out func(lines.Line)) {
		if w.armed = l.Type == lines.Restart && l.Reason == lines.Removed || w.armed && l.Type != lines.Mark; w.armed {
			return
		}
		if l.Type != lines.Loss || l.Reason != lines.Removed {
			out(l)
		}
	}}},
	{"no snapshot after a loss", []judge.Kind{judge.Stale, judge.Stuck}, 41, &wrong{line: func(w *wrong, l lines.Line, out func(lines.Line)) {
		if w.armed = l.Type == lines.Restart && l.Reason == lines.Notice || w.armed && (l.Type == lines.State || l.Type == lines.Mark); !w.armed {
			out(l)
		}
		w.armed = w.armed && l.Type != lines.Mark
	}}},
	{"a snapshot without an app", []judge.Kind{judge.Snapshot}, 1, &wrong{line: func(w *wrong, l lines.Line, out func(lines.Line)) {
		if l.Type != lines.State || w.armed {
			out(l)
		}
		w.armed = true
	}}},
	{"an event in a snapshot that is not of its position", []judge.Kind{judge.Snapshot, judge.Missed}, 1, &wrong{line: func(_ *wrong, l lines.Line, out func(lines.Line)) {
		if l.Type == lines.Mark && l.Sequence > 0 {
			l.Sequence, l.Position = l.Sequence-1, at(l.Position, -1)
		}
		out(l)
	}}},
	{"an event before its predecessor", []judge.Kind{judge.Order, judge.Missed}, 1, &wrong{line: func(w *wrong, l lines.Line, out func(lines.Line)) {
		switch {
		case w.held != nil:
			out(l)
			out(*w.held)
			w.held = nil
		case event(l) && w.count%7 == 0:
			w.held = &l
		default:
			out(l)
		}
	}}},
	{"the App of another event", []judge.Kind{judge.Content}, 1, &wrong{line: func(w *wrong, l lines.Line, out func(lines.Line)) {
		if event(l) && w.count%9 == 0 && event(w.last) {
			l.Object = w.last.Object
		}
		out(l)
	}}},
	{"the status of another event", []judge.Kind{judge.Content}, 1, &wrong{line: func(w *wrong, l lines.Line, out func(lines.Line)) {
		if event(l) {
			l.Status, l.PreviousStatus = l.PreviousStatus, l.Status
		}
		out(l)
	}}},
	{"no filter", []judge.Kind{judge.Content}, 3, &wrong{
		begin: func(_ *wrong, o *reader.Options, _ func(lines.Line)) { o.Project, o.Domain, o.App = "", "", "" },
		line:  func(_ *wrong, l lines.Line, out func(lines.Line)) { out(l) },
	}},
	{"no end of an outage", []judge.Kind{judge.Stuck}, 1, &wrong{line: func(w *wrong, l lines.Line, out func(lines.Line)) {
		if w.armed = w.armed || w.reconnect.Load(); !w.armed {
			out(l)
		}
	}}},
	{"a loss that is none", []judge.Kind{judge.False, judge.Missed}, 1, &wrong{line: func(w *wrong, l lines.Line, out func(lines.Line)) {
		out(l)
		if event(l) && w.count%20 == 0 {
			out(lines.Line{Type: lines.Loss, Reason: lines.Removed, Position: l.Position, From: l.Sequence, To: l.Sequence})
		}
	}}},
}

var modeFaults = []fault{
	{"a restart at every reconnect", []judge.Kind{judge.False}, 1, &wrong{line: func(w *wrong, l lines.Line, out func(lines.Line)) {
		if w.reconnect.Swap(false) && event(l) && event(w.last) && everything(w) {
			out(lines.Line{Type: lines.Restart, Reason: lines.Notice})
			for _, state := range w.copy {
				out(state)
			}
			out(lines.Line{Type: lines.Mark, Sequence: w.last.Sequence, Position: w.last.Position})
		}
		out(l)
	}}},
	{"a restart at every start of a process", []judge.Kind{judge.False}, 1, &wrong{
		begin: func(w *wrong, o *reader.Options, out func(lines.Line)) {
			if o.From == "" || !event(w.last) || !everything(w) {
				return
			}
			out(lines.Line{Type: lines.Restart, Reason: lines.Removed})
			for _, state := range w.copy {
				out(state)
			}
			out(lines.Line{Type: lines.Mark, Sequence: w.last.Sequence, Position: o.From})
			w.armed = true
		},
		line: func(w *wrong, l lines.Line, out func(lines.Line)) {
			if l.Type == lines.Mark && w.armed {
				w.armed = false // there was one
				return
			}
			out(l)
		},
	}},
	{"no difference is marked", []judge.Kind{judge.Content}, 1, &wrong{line: func(_ *wrong, l lines.Line, out func(lines.Line)) {
		l.Changed = false
		out(l)
	}}},
	{"every state is marked as different", []judge.Kind{judge.Content}, 1, &wrong{line: func(w *wrong, l lines.Line, out func(lines.Line)) {
		w.armed = w.armed || l.Type == lines.Restart
		l.Changed = l.Type == lines.State && w.armed
		out(l)
	}}},
	{"an app that is gone, and no state of it", []judge.Kind{judge.Snapshot}, 1, &wrong{line: func(_ *wrong, l lines.Line, out func(lines.Line)) {
		if l.Type != lines.State || l.Kind != subjects.Deleted {
			out(l)
		}
	}}},
	{"some apps, and a predecessor that is gone", []judge.Kind{judge.Missed}, 1, &wrong{line: func(w *wrong, l lines.Line, out func(lines.Line)) {
		if l.Type != lines.Loss || l.Reason != lines.Removed || !w.filtered() {
			out(l)
		}
	}}},
	{"the newest states, and not how many events they stand for", []judge.Kind{judge.Content}, 1, &wrong{line: func(_ *wrong, l lines.Line, out func(lines.Line)) {
		l.Skipped = 0
		out(l)
	}}},
	{"the newest states, and one event too many", []judge.Kind{judge.Content}, 1, &wrong{line: func(w *wrong, l lines.Line, out func(lines.Line)) {
		if event(l) && w.options.Latest {
			l.Skipped++
		}
		out(l)
	}}},
	{"no snapshots, and a removal that is not reported", []judge.Kind{judge.Missed}, 1, &wrong{line: func(w *wrong, l lines.Line, out func(lines.Line)) {
		if l.Type != lines.Loss || l.Reason != lines.Removed || !w.options.NoSnapshot {
			out(l)
		}
	}}},
	{"a time, and an event too late", []judge.Kind{judge.Missed}, 1, &wrong{
		begin: func(w *wrong, o *reader.Options, _ func(lines.Line)) { w.armed = o.From == "" && !o.Since.IsZero() },
		line: func(w *wrong, l lines.Line, out func(lines.Line)) {
			if w.armed && event(l) {
				w.armed = false
				return
			}
			out(l)
		},
	}},
	{"a loss of nothing", []judge.Kind{judge.False}, 1, &wrong{line: func(w *wrong, l lines.Line, out func(lines.Line)) {
		out(l)
		if event(l) && w.count%20 == 0 {
			out(lines.Line{Type: lines.Loss, Reason: lines.Removed, Position: l.Position})
		}
	}}},
	{"a loss wherever sequences are not events", []judge.Kind{judge.False}, 1, &wrong{line: func(w *wrong, l lines.Line, out func(lines.Line)) {
		if event(l) && event(w.last) && everything(w) && w.last.Sequence+1 < l.Sequence {
			out(lines.Line{Type: lines.Loss, Reason: lines.Removed, Position: at(l.Position, -1), From: w.last.Sequence + 1, To: l.Sequence - 1})
		}
		out(l)
	}}},
	{"a restart that stands for events", []judge.Kind{judge.Missed}, 1, &wrong{line: func(w *wrong, l lines.Line, out func(lines.Line)) {
		if w.armed = (w.armed || l.Type == lines.Loss) && l.Type != lines.Mark; !w.armed || !event(l) {
			out(l)
		}
	}}},
	{"a mark at once", []judge.Kind{judge.Missed}, 1, &wrong{
		begin: func(w *wrong, o *reader.Options, out func(lines.Line)) {
			if w.armed = o.From != "" && event(w.last); w.armed {
				out(lines.Line{Type: lines.Mark, Sequence: w.last.Sequence, Position: o.From})
			}
		},
		line: func(w *wrong, l lines.Line, out func(lines.Line)) {
			if w.armed && l.Type == lines.Mark {
				w.armed = false
				return
			}
			out(l)
		},
	}},
	{"no mark", []judge.Kind{judge.Stuck}, 1, &wrong{
		begin: func(w *wrong, o *reader.Options, _ func(lines.Line)) { w.armed = o.From != "" },
		line: func(w *wrong, l lines.Line, out func(lines.Line)) {
			if !w.armed || l.Type != lines.Mark {
				out(l)
			}
		},
	}},
	{"a copy of which every mark is owed", []judge.Kind{judge.Snapshot}, 1, &wrong{line: func(w *wrong, l lines.Line, out func(lines.Line)) {
		switch {
		case w.options.BucketStream == "":
		case l.Type == lines.Mark:
			l.Owed = true
		case l.Type == lines.State && w.count == 1:
			return
		}
		out(l)
	}}},
}
