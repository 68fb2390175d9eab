package audit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

// The kinds of difference that are not of one app, which [plan.Kind] has; docs/verify.md describes each.
const (
	DifferenceForeignKey plan.Kind = "foreign_key" // a key of the bucket that is no app's

	// Those that only a running bridge finds, in its audit.
	DifferenceSourceBehind plan.Kind = "source_behind" // the informers lack an object
	DifferencePending      plan.Kind = "pending"       // a change waits, and nothing is in its way that readiness reports

	// Of a stream or a bucket as a whole.
	DifferenceStreamMissing plan.Kind = "stream_missing"
	DifferenceBucketMissing plan.Kind = "bucket_missing"
	DifferenceOtherCluster  plan.Kind = "other_cluster" // it belongs to another cluster
	DifferenceClusterName   plan.Kind = "cluster_name"  // this cluster, under another name
	DifferenceUnfit         plan.Kind = "unfit"         // a bridge would refuse it
	DifferenceOtherShape    plan.Kind = "other_shape"   // its events are published with other options
	DifferenceHistory       plan.Kind = "history"       // the cluster is older
)

// NoteKind is the subject of a note.
type NoteKind string

// The kinds of note.
const (
	NoteNamespace      NoteKind = "namespace"       // an empty namespace that may not exist
	NoteUnwatched      NoteKind = "unwatched"       // a published app of another namespace
	NoteSkipped        NoteKind = "left_out"        // an object or a state that is not published
	NoteForeignMessage NoteKind = "foreign_message" // a message of the stream that is no event
	NoteChanging       NoteKind = "changing"        // an app that kept changing
)

// AppName is an app in a report. The JSON replaces bytes that are not UTF-8; the key is exact.
type AppName struct {
	Project string `json:"project"`
	Domain  string `json:"domain"`
	Name    string `json:"name"`
}

// Difference is one way in which the three sides differ. A missing sequence or version is zero.
type Difference struct {
	App *AppName `json:"app,omitempty"` // nil: not about one app
	// Key is the app's key, a foreign key of the bucket, or the subject of what is no key.
	Key    string    `json:"key,omitempty"`
	Kind   plan.Kind `json:"kind"`
	Side   plan.Side `json:"side"` // the wrong one as far as that is known
	Detail string    `json:"detail"`

	ClusterVersion string `json:"clusterVersion,omitempty"` // resourceVersion of the Knative Service
	StreamSequence uint64 `json:"streamSequence,omitempty"` // of the app's last event
	BucketSequence uint64 `json:"bucketSequence,omitempty"` // of the event that the entry names

	// Same is what two comparisons have to agree on. Empty: Detail.
	Same string `json:"-"`

	id subjects.AppID // of App
	at string         // the subject of a foreign key
	// tolerated is how much longer it may last: a bridge may keep the last count of replicas.
	tolerated time.Duration
}

// Subject identifies what differs in any comparison.
func (d Difference) Subject() string {
	return cmp.Or(d.at, d.Key, string(d.Kind)+" "+string(d.Side))
}

// Name is that of what differs, as it is logged.
func (d Difference) Name() string { return cmp.Or(nameOf(d.App, d.Key), string(d.Side)) }

// Leave reports whether a running bridge only reports the difference: it repairs everything else.
func (d Difference) Leave() bool { return d.Kind == DifferenceForeignKey }

// fields are the kind, the side and the subject for the log.
func (d Difference) fields() []zap.Field {
	field := "key"
	switch {
	case d.App != nil:
		field = "app"
	case d.Side == plan.SideSource:
		field = "object"
	}
	return []zap.Field{zap.String("kind", string(d.Kind)), zap.String("side", string(d.Side)), zap.String(field, d.Name())}
}

// String is the difference in one line.
func (d Difference) String() string { return line(d.Name(), d.Detail) }

// Remark is one line of a report besides its differences.
type Remark[K ~string] struct {
	App    *AppName `json:"app,omitempty"`
	Key    string   `json:"key,omitempty"`
	Kind   K        `json:"kind"`
	Detail string   `json:"detail"`
}

type (
	// Note is worth knowing and no difference.
	Note = Remark[NoteKind]
	// Repair is one thing that was repaired, with the kind of the difference.
	Repair = Remark[plan.Kind]
)

// String is the remark in one line.
func (r Remark[K]) String() string { return line(nameOf(r.App, r.Key), r.Detail) }

// Report is the result of Verify.
type Report struct {
	Differences []Difference `json:"differences"` // those that remain
	Notes       []Note       `json:"notes"`
	Apps        int          `json:"apps"`     // how many were compared
	Sequence    uint64       `json:"sequence"` // the last of the stream when it was read
	Repaired    int          `json:"repaired"`
	Repairs     []Repair     `json:"repairs"`
}

// NewReport returns an empty report. Its JSON has empty lists.
func NewReport() *Report {
	return &Report{Differences: []Difference{}, Notes: []Note{}, Repairs: []Repair{}}
}

func line(name, detail string) string {
	if name == "" {
		return detail
	}
	return store.Printable(name) + "  " + detail
}

func nameOf(app *AppName, key string) string {
	if app == nil {
		return key
	}
	return subjects.AppID(*app).String()
}

func bySubject(differences []Difference) map[string][]Difference {
	found := map[string][]Difference{}
	for _, d := range differences {
		found[d.Subject()] = append(found[d.Subject()], d)
	}
	return found
}

// same is the text in which two comparisons of one subject have to agree.
func same(differences []Difference) string {
	var b strings.Builder
	for _, d := range differences {
		b.WriteString(string(d.Kind) + " " + cmp.Or(d.Same, d.Detail) + "\n")
	}
	return b.String()
}

// sortDifferences sorts by key; differences without one come first.
func sortDifferences(differences []Difference) {
	sides := []plan.Side{plan.SideCluster, plan.SideStream, plan.SideBucket}
	slices.SortFunc(differences, func(a, b Difference) int {
		return cmp.Or(
			cmp.Compare(a.Key, b.Key), // without one: empty
			cmp.Compare(slices.Index(sides, a.Side), slices.Index(sides, b.Side)),
			cmp.Compare(a.Kind, b.Kind),
		)
	})
}

func compareNotes(a, b Note) int {
	return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Detail, b.Detail))
}

func whole(kind plan.Kind, side plan.Side, format string, args ...any) Difference {
	return Difference{Kind: kind, Side: side, Detail: fmt.Sprintf(format, args...)}
}

func about(id subjects.AppID, kind plan.Kind, side plan.Side, format string, args ...any) Difference {
	d := whole(kind, side, format, args...)
	d.App, d.id = (*AppName)(&id), id
	d.Key, _ = id.Key() // an app with a bad id is on no side
	return d
}

func noteOn(id subjects.AppID, kind NoteKind, format string, args ...any) Note {
	key, _ := id.Key() // as in about
	return Note{App: (*AppName)(&id), Key: key, Kind: kind, Detail: fmt.Sprintf(format, args...)}
}
