package audit

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// The kinds of a Change.
const (
	KindService  = "Service"
	KindRevision = "Revision"
)

// Change is one version of an object of the cluster, or its deletion.
type Change struct {
	Kind            string // KindService or KindRevision
	Namespace, Name string
	UID             types.UID
	ResourceVersion string // on a deletion that of the deletion
	Deleted         bool
	Object          *unstructured.Unstructured // on a deletion the last state
	At              time.Time                  // when it was seen
}

// Message is a message of the event stream or of the bucket's stream.
type Message struct {
	Subject  string
	Sequence uint64
	Header   nats.Header
	Data     []byte
	Stored   time.Time
	// Epoch is how often the stream had been rolled back to an earlier copy when this was read.
	Epoch int
}

// Loss is a range of sequences that a rollback of the stream took away. It concerns the messages
// that were read before.
type Loss struct {
	subjects.LostRange
	Epoch int    // the last one before the rollback
	First uint64 // the stream's first sequence at the rollback; what was removed before is below
	// Unseen is a range that no bridge named, because nothing survived that knew of it.
	Unseen bool
}

// Gap is a time in which the bridge may not have seen everything: of that, the
// net difference is owed and no more.
type Gap struct {
	From, To time.Time
	Why      string
}

// Swallowed is a version of an object, or its deletion, whose watch event never
// reached some bridge. It may have no event of its own, unless it is what the app
// came to: that is owed.
type Swallowed struct {
	Kind, Namespace, Name string
	ResourceVersion       string // on a deletion that of the deletion
}

// Input is all that is known of a run. The cluster is quiet at its end, and the
// bridge has had the time to catch up.
type Input struct {
	Changes       []Change // Services and Revisions, one history, in order of resourceVersion
	Pods          []Change // likewise; the bridges watch them only with PodConditions
	PodConditions bool
	Events        []Message // everything the stream ever held, by epoch and sequence
	Entries       []Message // the newest message of every key of the bucket
	Gaps          []Gap
	Comparisons   []Gap                // after losses and removals: gaps for the apps that lost events
	Losses        []Loss               // what rollbacks took, as bridges named it, or Unseen
	Swallowed     []Swallowed          // what a watch did not show
	Removed       []subjects.LostRange // what was removed from the stream before it was projected, as bridges named it
	Subjects      subjects.Subjects
	Bucket        string
	ClusterName   string
	App           kservice.Config
	Older         bool // an older version, which sets no ce-dataschema, published some of the events
}

// Report is the outcome of a Check.
type Report struct {
	Changes int // states of apps that the cluster went through, deletes included
	Events  int // events of apps in the stream
	Foreign int // messages in the stream that are no events
	Merged  int // states that a later event says it stands for
	Excused int // states that came and went in a gap
	Taken   int // states whose only event a rollback took

	Lost       []Problem // a state without an event
	Duplicated []Problem // a state told twice
	Reordered  []Problem // a state told out of its order, or a link to the wrong event before
	Drift      []Problem // the stream, or the bucket, says what is not so
	Reused     []Problem // a sequence with two meanings
}

// OK tells whether nothing is wrong.
func (r Report) OK() bool {
	return len(r.Lost)+len(r.Duplicated)+len(r.Reordered)+len(r.Drift)+len(r.Reused) == 0
}

// Problems are all problems, the lost states first.
func (r Report) Problems() []Problem {
	var all []Problem
	for _, some := range [][]Problem{r.Lost, r.Duplicated, r.Reordered, r.Drift, r.Reused} {
		all = append(all, some...)
	}
	return all
}

// Plus is the sum of two reports.
func (r Report) Plus(o Report) Report {
	r.Changes += o.Changes
	r.Events += o.Events
	r.Foreign += o.Foreign
	r.Merged += o.Merged
	r.Excused += o.Excused
	r.Taken += o.Taken
	r.Lost = append(r.Lost[:len(r.Lost):len(r.Lost)], o.Lost...)
	r.Duplicated = append(r.Duplicated[:len(r.Duplicated):len(r.Duplicated)], o.Duplicated...)
	r.Reordered = append(r.Reordered[:len(r.Reordered):len(r.Reordered)], o.Reordered...)
	r.Drift = append(r.Drift[:len(r.Drift):len(r.Drift)], o.Drift...)
	r.Reused = append(r.Reused[:len(r.Reused):len(r.Reused)], o.Reused...)
	return r
}

// String is the report in one line.
func (r Report) String() string {
	return fmt.Sprintf("changes=%d events=%d excused=%d lost=%d duplicated=%d reordered=%d drift=%d reused=%d",
		r.Changes, r.Events, r.Excused, len(r.Lost), len(r.Duplicated), len(r.Reordered), len(r.Drift), len(r.Reused))
}

// Problem is one thing that is wrong.
type Problem struct {
	App      string // project/domain/name; the subject where that names no app
	Sequence uint64 // of the message in the stream, 0 where there is none
	What     string
}

// String is the problem in one line.
func (p Problem) String() string {
	if p.Sequence == 0 {
		return p.App + ": " + p.What
	}
	return fmt.Sprintf("%s (sequence %d): %s", p.App, p.Sequence, p.What)
}
