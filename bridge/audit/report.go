package audit

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

// DifferenceKind is how cluster, stream and bucket differ. docs/verify.md describes each kind.
type DifferenceKind string

// The kinds of difference between the cluster and what was published.
const (
	DifferenceMissingEvent  DifferenceKind = "missing_event"   // the cluster has the app, the stream does not
	DifferenceMissingDelete DifferenceKind = "missing_deleted" // the app is gone without a deleted event
	DifferenceUID           DifferenceKind = "other_uid"       // another object is the app now
	DifferenceVersion       DifferenceKind = "other_version"
	DifferenceApp           DifferenceKind = "other_app" // the same version converts to another App
)

// The kinds of difference between the bucket and the end of the stream.
const (
	DifferenceMissingEntry     DifferenceKind = DifferenceKind(store.MismatchMissingEntry)
	DifferenceMissingMarker    DifferenceKind = DifferenceKind(store.MismatchMissingMarker)
	DifferenceEntryForMarker   DifferenceKind = DifferenceKind(store.MismatchEntryForMarker) // a value although the last event is a delete
	DifferenceMarkerForEntry   DifferenceKind = DifferenceKind(store.MismatchMarkerForEntry) // a delete marker although it is not
	DifferenceBucketBehind     DifferenceKind = DifferenceKind(store.MismatchBehind)
	DifferenceBucketAhead      DifferenceKind = DifferenceKind(store.MismatchAhead) // it reflects an event that the stream does not have
	DifferenceBucketOtherEvent DifferenceKind = "bucket_other_event"                // the stream has another event at that sequence
	DifferenceBucketVersion    DifferenceKind = DifferenceKind(store.MismatchVersion)
	DifferenceBucketApp        DifferenceKind = DifferenceKind(store.MismatchApp)
	DifferenceBucketHeaders    DifferenceKind = DifferenceKind(store.MismatchHeaders)
	DifferenceBucketEncoding   DifferenceKind = DifferenceKind(store.MismatchEncoding)
	DifferenceDamagedEntry     DifferenceKind = DifferenceKind(store.MismatchDamaged)
	DifferenceForeignKey       DifferenceKind = "foreign_key"
)

// The kinds of difference that only a running bridge finds, in its audit.
const (
	DifferenceSourceBehind DifferenceKind = "source_behind" // the informers lack what the cluster has
	DifferenceRemovedEvent DifferenceKind = "removed_event" // an app's last event was removed from the stream
	DifferenceGhostEntry   DifferenceKind = "ghost_entry"   // of an app that was never published
)

// The kinds of difference that are about a stream or a bucket as a whole.
const (
	DifferenceStreamMissing DifferenceKind = "stream_missing"
	DifferenceBucketMissing DifferenceKind = "bucket_missing"
	DifferenceOtherCluster  DifferenceKind = "other_cluster" // it belongs to another cluster
	DifferenceClusterName   DifferenceKind = "cluster_name"  // it has this cluster under another name
	DifferenceUnfit         DifferenceKind = "unfit"         // a bridge would refuse it
	DifferenceHistory       DifferenceKind = "history"       // the cluster is older than what was published
)

// Side is one of the three sides that Verify compares.
type Side string

// The sides, as the wrong one of a difference.
const (
	SideCluster Side = "cluster"
	SideStream  Side = "stream"
	SideBucket  Side = "bucket"
	// SideSource is what the informers of a running bridge have of the cluster.
	SideSource Side = "source"
)

// NoteKind is the subject of a note.
type NoteKind string

// The kinds of note.
const (
	NoteNamespace      NoteKind = "namespace"       // an empty namespace that may not exist
	NoteUnwatched      NoteKind = "unwatched"       // a published app of a namespace that is not watched
	NoteSkipped        NoteKind = "left_out"        // an object or a state that is not published
	NoteForeignMessage NoteKind = "foreign_message" // a message of the stream that is no event
	NoteChanging       NoteKind = "changing"        // an app that kept changing while it was compared
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
	Key    string         `json:"key,omitempty"`
	Kind   DifferenceKind `json:"kind"`
	Side   Side           `json:"side"` // the wrong one as far as that is known
	Detail string         `json:"detail"`

	ClusterVersion string `json:"clusterVersion,omitempty"` // resourceVersion of the Knative Service
	StreamSequence uint64 `json:"streamSequence,omitempty"` // of the app's last event
	BucketSequence uint64 `json:"bucketSequence,omitempty"` // of the event that the entry names

	id subjects.AppID // of App
	at string         // the subject of a foreign key
	// tolerated is how much longer it may last: a bridge may keep the last count of replicas.
	tolerated time.Duration
}

// String is the difference in one line.
func (d Difference) String() string { return line(d.App, d.Key, d.Side, d.Detail) }

// Note is worth knowing and no difference.
type Note struct {
	App    *AppName `json:"app,omitempty"`
	Key    string   `json:"key,omitempty"`
	Kind   NoteKind `json:"kind"`
	Detail string   `json:"detail"`
}

// String is the note in one line.
func (n Note) String() string { return line(n.App, n.Key, "", n.Detail) }

// Repair is one thing that was repaired.
type Repair struct {
	App    *AppName       `json:"app,omitempty"`
	Key    string         `json:"key,omitempty"`
	Kind   DifferenceKind `json:"kind"` // of the difference
	Detail string         `json:"detail"`
}

// String is the repair in one line.
func (r Repair) String() string { return line(r.App, r.Key, "", r.Detail) }

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

func line(app *AppName, key string, side Side, detail string) string {
	switch {
	case app != nil:
		return store.Printable(app.Project+"/"+app.Domain+"/"+app.Name) + "  " + detail
	case key != "":
		return store.Printable(key) + "  " + detail
	case side != "":
		return string(side) + "  " + detail
	default:
		return detail
	}
}

func nameOf(id subjects.AppID) *AppName {
	return &AppName{Project: id.Project, Domain: id.Domain, Name: id.Name}
}

// subject identifies a difference in another comparison.
func (d Difference) subject() string {
	if d.App == nil && d.Key == "" {
		return string(d.Kind) + " " + string(d.Side)
	}
	return d.Key
}

// sortDifferences sorts by key; differences without one come first.
func sortDifferences(differences []Difference) {
	sides := []Side{SideCluster, SideStream, SideBucket}
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

// about is a difference of an app, with what the sides have of it.
func about(id subjects.AppID, kind DifferenceKind, side Side, format string, args ...any) Difference {
	key, _ := id.Key() // an app with a bad id is on no side
	return Difference{App: nameOf(id), Key: key, Kind: kind, Side: side, Detail: fmt.Sprintf(format, args...), id: id}
}

// noteOn is a note on an app.
func noteOn(id subjects.AppID, kind NoteKind, format string, args ...any) Note {
	key, _ := id.Key() // as in about
	return Note{App: nameOf(id), Key: key, Kind: kind, Detail: fmt.Sprintf(format, args...)}
}
