package app

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/appbridge/appbridge/subjects"
)

// Deletion is the newest version of an observed deletion, and whose it was. Its zero value is none.
type Deletion struct {
	App     subjects.AppID
	Version string
}

// Note adds the deletion of an app at a version, which is empty if it was not observed.
func (d *Deletion) Note(id subjects.AppID, version string) {
	if version != "" && (d.Version == "" || CompareVersions(version, d.Version) > 0) {
		d.App, d.Version = id, version
	}
}

// CheckHistory compares the version of a consistent list with what was published: a list that is
// older comes from another history. Records up to the sequence accepted were published by one that
// is known to be over.
func CheckHistory(records map[subjects.AppID]*Record, listed string, accepted uint64) error {
	for id, r := range records {
		if r.Damaged || r.Sequence <= accepted {
			continue
		}
		version := r.ResourceVersion
		if r.Kind == subjects.Deleted {
			// Only an observed deletion has a version of its own.
			version = r.DeletedVersion
		}
		if version != "" && CompareVersions(listed, version) < 0 {
			return otherHistory(listed, fmt.Sprintf("its history is older than what was published (app %s at version %s)", id, version))
		}
	}
	return nil
}

// CheckDeletion compares the version of a consistent list with the newest published deletion.
func CheckDeletion(d Deletion, listed string) error {
	if d.Version != "" && CompareVersions(listed, d.Version) < 0 {
		return otherHistory(listed, fmt.Sprintf("its history is older than what was published (app %s was deleted at version %s)", d.App, d.Version))
	}
	return nil
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
