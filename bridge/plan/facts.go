package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

// Event is the end of the stream as far as one app is concerned.
type Event struct {
	Record  *app.Record // of the app's last event; nil: there is none
	Header  nats.Header
	Stored  time.Time // when the server stored that event
	Foreign uint64    // sequence of a later message that is no event, 0 if none
}

// Sequence is that of the app's last event, 0 if there is none.
func (e *Event) Sequence() uint64 {
	if e == nil {
		return 0
	}
	return e.Record.Previous()
}

// Published is the record of the app's last event, nil if there is none.
func (e *Event) Published() *app.Record {
	if e == nil {
		return nil
	}
	return e.Record
}

// Entry is what the bucket has of one app.
type Entry struct {
	Record *app.Record // nil: it cannot be read, for Err
	Err    error
	Header nats.Header
	Stored uint64 // its sequence in the bucket's own stream
	Time   time.Time
	// Other is the id of the event that the stream has at the sequence that the entry names; empty
	// if it is the entry's own event, or the stream has none there.
	Other string
}

// ReadEntry reads a message of the bucket's stream.
func ReadEntry(header nats.Header, data []byte, sequence uint64, stored time.Time) *Entry {
	h := &Entry{Header: header, Stored: sequence, Time: stored}
	h.Record, h.Err = app.ReadEntry(header, data)
	return h
}

// Marker reports whether the entry is a delete marker.
func (h *Entry) Marker() bool { return h.Header.Get(subjects.HeaderKVOperation) != "" }

// Sequence is that of the event that the entry reflects, 0 if that cannot be read.
func (h *Entry) Sequence() uint64 {
	if h == nil || h.Record == nil {
		return 0
	}
	return h.Record.Sequence
}

// reflecting names the event that the entry reflects, as the end of a clause.
func (h *Entry) reflecting() string {
	if h.Record == nil {
		return ""
	}
	return fmt.Sprintf(", which reflects %s at %d", h.Record.Kind, h.Record.Sequence)
}

// Bridge is what a running bridge has of an app.
type Bridge struct {
	Record *app.Record // of the event that it published or read last; nil: none
	Entry  uint64      // the sequence of the entry that it wrote or read, in the bucket's stream; 0: unknown
}

// Facts are what is known of one app. What is not known is zero.
type Facts struct {
	App     subjects.AppID
	Cluster *app.State // nil: the cluster does not have the app
	// Confirmed is a state that Record is known to show: it is not converted to be compared.
	Confirmed app.State
	// Awaits: the Revision that gives the app's count is not observed yet.
	Awaits bool
	// Record is what was published last; nil: nothing was. That is the record of the last event or, where
	// retention has taken it, of the entry. Known: it was read.
	Record  *app.Record
	Known   bool
	Pending Pending
	Event   *Event  // nil: the stream has no message of the app
	Entry   *Entry  // nil: the bucket has no key of the app
	Bridge  *Bridge // nil: no bridge asks
}

// World is what the facts of all apps share. Only Watched is always needed.
type World struct {
	Watched func(namespace string) bool
	// Lost reports whether the stream has lost an acknowledged sequence.
	Lost func(sequence uint64) bool
	// SameStream: the stream is the one that the pending changes were made for.
	SameStream bool

	Stream *Stream // nil: there is none, or it was not read
	Bucket bool    // there is a bucket
	// Entries makes the entries of the bucket.
	Entries *app.Entries
	// Refused returns why a state cannot be published after prev, nil if it can.
	Refused func(id subjects.AppID, s app.State, prev *app.Record) error
	Now     time.Time
}

// Stream is what is known of the stream.
type Stream struct {
	First, Last uint64 // sequences
	// KeepsNewest: only an operator removes messages behind the first one.
	KeepsNewest bool
}

// Watching returns a function that reports whether a namespace is watched.
func Watching(namespaces []string) func(string) bool {
	return func(namespace string) bool {
		return slices.Contains(namespaces, namespace) || slices.Contains(namespaces, metav1.NamespaceAll)
	}
}

// Compare orders apps.
func Compare(a, b subjects.AppID) int {
	return cmp.Or(cmp.Compare(a.Project, b.Project), cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Name, b.Name))
}
