// Package judge compares what a reader reports with what the stream and its bucket held.
//
//	model ──► Judge ◄── lines of a reader, over all its processes
//	            │
//	            ▼
//	         Problems
//
// A Judge is one consumer: it keeps the position and a copy of the apps, as a program does that
// stores both with each line that it processes. When the reader's process is killed, the next one
// begins with the stored position.
package judge

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/histories/lines"
	"github.com/appbridge/appbridge/testdata/histories/model"
)

// Kind is what a reader did wrong.
type Kind string

// The kinds of problems.
const (
	Missed   Kind = "missed"   // an event, or the report of a loss, was not delivered
	Twice    Kind = "twice"    // an event was delivered twice
	Order    Kind = "order"    // an event was delivered behind a later one
	Snapshot Kind = "snapshot" // the snapshot is not what the bucket held at the mark's sequence
	Content  Kind = "content"  // an event or a state is not what the message says, or is of another app
	Stale    Kind = "stale"    // at the end, the reader's copy is not what the bucket holds
	False    Kind = "false"    // a loss or a restart without a cause
	Stuck    Kind = "stuck"    // the reader does not get to the end
)

// Problem is one thing that a reader did wrong.
type Problem struct {
	Kind Kind
	Text string
}

func (p Problem) String() string { return string(p.Kind) + ": " + p.Text }

// Want is what a reader was started for. The zero value is everything.
type Want struct {
	Project, Domain, App string // empty: any
	Kinds                []subjects.EventKind
	Statuses             []string
	Latest, HeadersOnly  bool
	NoSnapshot           bool // it never reads the bucket
	Since                bool // it begins at a time, without a snapshot
	// Copied: it reads a copy of the stream, which never had what was removed before it was copied.
	Copied bool
}

// app reports whether the reader wants to know of an app.
func (w Want) app(id subjects.AppID) bool {
	return (w.Project == "" || w.Project == id.Project) && (w.Domain == "" || w.Domain == id.Domain) && (w.App == "" || w.App == id.Name)
}

// event reports whether the reader wants an event.
func (w Want) event(e *model.Event) bool {
	return w.app(e.ID) && (len(w.Kinds) == 0 || slices.Contains(w.Kinds, e.Kind)) &&
		(len(w.Statuses) == 0 || slices.Contains(w.Statuses, e.Status) || slices.Contains(w.Statuses, e.Previous))
}

// filtered reports whether the server delivers only a part of the stream.
func (w Want) filtered() bool { return w.Project != "" || w.Domain != "" || w.App != "" }

// copies reports whether the reader prints every event of the apps that it wants.
func (w Want) copies() bool { return len(w.Kinds) == 0 && len(w.Statuses) == 0 }

// status reports whether the reader wants the state of an app with a status.
func (w Want) status(word string) bool {
	return len(w.Statuses) == 0 || slices.Contains(w.Statuses, word)
}

// blind reports whether the reader cannot see from the sequences that something was removed.
func (w Want) blind() bool { return w.filtered() || w.Copied }

// Counts are what a consumer received.
type Counts struct {
	Events, States, Marks, Losses, Restarts, Skipped, Processes int
}

// Judge is safe for use by several goroutines.
type Judge struct {
	model *model.Model
	want  Want

	mu       sync.Mutex
	counts   Counts
	problems []Problem

	// Of the consumer, over all processes.
	position  string // as stored
	reached   uint64 // every wanted message up to here is accounted for
	newest    uint64 // the sequence of the last event line
	delivered map[uint64]bool
	reported  []subjects.LostRange      // as removed
	apps      map[subjects.AppID]uint64 // the consumer's copy: the event that each app's state is of
	partial   bool                      // the copy began without a snapshot: behind start
	start     uint64
	former    int          // how many streams are over, for the consumer
	anchor    uint64       // the mark of the newest snapshot
	anchored  model.Moment // when the reading of that snapshot began
	owing     bool         // a loss, or a mark that is owed, is not followed by a snapshot yet
	lacks     bool         // that snapshot may lack an app whose marker has expired
	debt      string       // why a restart has to follow an owed mark
	vague     uint64       // the last mark of a snapshot of a bucket under repair
	gaps      []gap        // with Latest: removed events that a loss or a restart has to report

	// Of the present process.
	begun  model.Moment
	fresh  bool   // it has no position yet
	open   bool   // the first message of Since is not known yet
	base   uint64 // the sequence that it began behind
	sure   bool   // base is known
	target uint64 // what the stream held when it began
	marked bool
	// latest is the last event of each app. With Latest, the next process may begin with newest
	// states that this one had delivered.
	latest  map[subjects.AppID]uint64
	notices map[uint64]bool
	// shown is the message that each app's newest line is of. all: an app without a line is gone.
	shown map[subjects.AppID]*model.Message
	all   bool

	// Of the snapshot that is being read.
	snapshot map[subjects.AppID]uint64 // nil: none is
	seen     map[subjects.AppID]*model.Message
	early    []*model.Message // marked as changed, and not known to be
	began    model.Moment
	reason   string // of the restart; empty: the first snapshot
	renewed  bool   // the stream was replaced, and no snapshot has ended since
	skips    bool   // the position could not be resumed when it began

	waiting time.Time // since when the reader could deliver again; zero: it has
	cause   string    // of the wait
	resumes []time.Duration
	slow    []string
}

// slow is when a resume is worth a line.
const slow = time.Second

// New is a consumer that has nothing yet.
func New(m *model.Model, want Want) *Judge {
	j := &Judge{model: m, want: want}
	j.forget()
	return j
}

func (j *Judge) forget() {
	j.position, j.reached, j.newest, j.vague = "", 0, 0, 0
	j.delivered, j.apps, j.reported = map[uint64]bool{}, map[subjects.AppID]uint64{}, nil
	j.partial, j.start, j.former = false, 0, len(j.model.Former())
	j.anchor, j.anchored, j.owing, j.debt, j.gaps = 0, j.model.Now(), false, "", nil
	j.sure = true
}

// Forget is a consumer that has lost all that it had. The reader's process must not run.
func (j *Judge) Forget() {
	j.model.Lock()
	defer j.model.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.forget()
}

// Start begins the next process of the reader, and returns the position to give to it, and the time
// if the reader begins at one.
func (j *Judge) Start() (position string, since time.Time) {
	j.model.Lock()
	defer j.model.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.counts.Processes++
	j.begun, j.snapshot, j.reason, j.marked = j.model.Now(), nil, "", false
	j.latest, j.notices = map[subjects.AppID]uint64{}, map[uint64]bool{}
	j.shown, j.all = map[subjects.AppID]*model.Message{}, false
	if j.fresh = j.position == ""; j.fresh {
		j.forget() // what was received without a position does not count
		switch {
		case j.want.Since:
			since = j.since()
		case j.want.NoSnapshot:
			j.partial = true
		default:
			j.read("")
		}
	}
	j.base, j.target = j.reached, 0
	for _, m := range j.model.All() {
		if m.Present() {
			j.target = m.Sequence
		}
	}
	j.waiting, j.cause = time.Now(), "the start of a process"
	return j.position, since
}

// since is a time between two messages, or before the first.
func (j *Judge) since() time.Time {
	j.partial, j.open = true, true
	all := j.model.All()
	if len(all) < 2 || len(all)%2 == 0 || slices.ContainsFunc(all, func(m *model.Message) bool { return m.LostAt != 0 }) {
		return time.Unix(1, 0)
	}
	m := all[len(all)/2]
	j.reached, j.start = m.Sequence, m.Sequence
	return m.Appended.Add(time.Nanosecond)
}

// Reachable notes that the reader can get at the stream again, from now on, and after what.
func (j *Judge) Reachable(cause string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.waiting, j.cause = time.Now(), cause
}

// Line takes the reader's next line.
func (j *Judge) Line(l lines.Line) {
	arrived := time.Now()
	j.model.Lock() // in the middle of a change of the stream, wait for its end
	defer j.model.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.turn(l)
	switch l.Type {
	case lines.State:
		j.state(l)
	case lines.Mark:
		j.mark(l)
	case lines.Event:
		j.event(l, arrived)
	case lines.Loss:
		j.loss(l)
	case lines.Restart:
		j.restart(l)
	}
	if l.Position != "" {
		j.position, j.fresh = l.Position, false
		j.sure = l.Type != lines.Loss && !j.want.Latest // its position can be behind what is lost
	} else if l.Type == lines.Mark || l.Type == lines.Event || l.Type == lines.Loss {
		j.problem(Content, "a %s at %d has no position", l.Type, l.Sequence)
	}
}

// messages are those of the stream that the consumer reads.
func (j *Judge) messages() model.Messages {
	if former := j.model.Former(); j.former < len(former) {
		return former[j.former].Messages
	}
	return j.model.All()
}

func (j *Judge) problem(kind Kind, format string, args ...any) {
	j.problems = append(j.problems, Problem{kind, fmt.Sprintf(format, args...)})
}
