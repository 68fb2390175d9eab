package app

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/appbridge/appbridge/subjects"
)

// VersionOf is the version of the cluster that a published event names.
type VersionOf struct {
	App      subjects.AppID
	Version  string
	Sequence uint64 // of the event
	Deletion bool
}

func (v VersionOf) String() string {
	if v.Deletion {
		return fmt.Sprintf("app %s was deleted at version %s, sequence %d", v.App, v.Version, v.Sequence)
	}
	return fmt.Sprintf("app %s at version %s, sequence %d", v.App, v.Version, v.Sequence)
}

// maxDigits is the length of the longest version, which is a uint64.
const maxDigits = 20

// Deletions are the newest versions of observed deletions, one for each number of digits: one that
// cannot be does not hide another. The zero value is none.
type Deletions [maxDigits + 1]VersionOf

// Note adds the deletion of an app at a version, which is empty if it was not observed.
func (d *Deletions) Note(id subjects.AppID, version string, sequence uint64) {
	newest := &d[min(len(version), maxDigits)]
	if version != "" && (newest.Version == "" || CompareVersions(version, newest.Version) > 0) {
		*newest = VersionOf{id, version, sequence, true}
	}
}

// Add adds other deletions.
func (d *Deletions) Add(others Deletions) {
	for _, o := range others {
		d.Note(o.App, o.Version, o.Sequence)
	}
}

// anyDigits is how many digits a version may have in any cluster. One that writes 10,000 times a
// second gets beyond them after three years: no backup is that old.
const anyDigits = 12

// isImpossible reports whether a cluster that has one version now never had another, which an event
// names: anyone who may publish can write one. Some clusters count in microseconds, so the length of
// the present version counts. A forged version below that looks like one that an older
// backup of etcd does not have.
func isImpossible(version, now string) bool { return len(version) > max(anyDigits, len(now)+1) }

// CheckHistory compares the version of a consistent list with what was published: a list that is
// older comes from another history. Records up to the sequence accepted were published by one that
// is known to be over. Versions that cannot be are no reason to end: it returns them as impossible,
// ordered by sequence.
func CheckHistory(records map[subjects.AppID]*Record, deleted Deletions, listed string, accepted uint64) (impossible []VersionOf, err error) {
	check := func(v VersionOf) {
		switch {
		case v.Version == "" || CompareVersions(listed, v.Version) >= 0:
		case isImpossible(v.Version, listed):
			impossible = append(impossible, v)
		default:
			err = otherHistory(listed, fmt.Sprintf("its history is older than what was published (%s)", v))
		}
	}
	for id, r := range records {
		switch {
		case r.Damaged || r.Sequence <= accepted:
		case r.Kind == subjects.Deleted: // only an observed deletion has a version of its own
			check(VersionOf{id, r.DeletedVersion, r.Sequence, true})
		default:
			check(VersionOf{id, r.ResourceVersion, r.Sequence, false})
		}
	}
	for _, v := range deleted {
		check(v)
	}
	slices.SortFunc(impossible, func(a, b VersionOf) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return impossible, err
}

// otherHistory ends the process: the cluster's history is not the one that was published.
func otherHistory(version, problem string) error {
	return &ConfigError{
		Fatal: true,
		Field: "cluster", Value: "resourceVersion " + version,
		Problem: problem + ": etcd was restored, or this is another cluster",
		Repair:  "if that is intended, start once with --accept-reset: the stream then continues with what the cluster holds now",
	}
}

// SteppedBack is the error of a cluster that has an older version than the bridge has seen.
func SteppedBack(version, seen string) error {
	return otherHistory(version, fmt.Sprintf("its history stepped back from version %s under the running bridge", seen))
}

// OtherCluster is the error of an API server whose cluster is another one than before.
func OtherCluster(uid, before string) error {
	return &ConfigError{
		Fatal: true,
		Field: "cluster", Value: "uid " + uid,
		Problem: fmt.Sprintf("the address of the API server led to the cluster of uid %s before: nothing of the other one is published", before),
		Repair:  "give each cluster a stream, bucket and prefix of its own; if this cluster replaces the other under its name, start once with --accept-reset",
	}
}

// CompareVersions compares two resourceVersions of one resource; versions that cannot be compared
// count as newer, so that nothing is skipped.
func CompareVersions(a, b string) int {
	if a == b {
		return 0
	}
	n, err := resourceversion.CompareResourceVersion(a, b)
	if err != nil {
		return 1
	}
	return n
}

// NewerVersion is the newer of two resourceVersions; empty stands for none.
func NewerVersion(a, b string) string {
	if a == "" || b != "" && CompareVersions(b, a) > 0 {
		return b
	}
	return a
}
