package bridge

import (
	"fmt"

	"github.com/appbridge/appbridge/subjects"
)

// deletion is the newest version of an observed deletion, and whose it was. Its zero value is none.
type deletion struct {
	app     subjects.AppID
	version string
}

// note takes in the deletion of an app at a version, which is empty if it was not observed.
func (d *deletion) note(id subjects.AppID, version string) {
	if version != "" && (d.version == "" || order(version, d.version) > 0) {
		d.app, d.version = id, version
	}
}

// checkHistory compares the version of a consistent list with what was
// published: a list that is older comes from another history. Records up to
// the sequence accepted were published by one that is known to be over.
func checkHistory(records map[subjects.AppID]*record, listed string, accepted uint64) error {
	for id, r := range records {
		if r.damaged || r.sequence <= accepted {
			continue
		}
		version := r.resourceVersion
		if r.kind == subjects.Deleted {
			// Only an observed deletion has a version of its own.
			version = r.deletedVersion
		}
		if version != "" && order(listed, version) < 0 {
			return otherHistory(listed, fmt.Sprintf("its history is older than what was published (app %s at version %s)", id, version))
		}
	}
	return nil
}

// checkDeletion compares the version of a consistent list with the newest deletion that was published.
func checkDeletion(d deletion, listed string) error {
	if d.version != "" && order(listed, d.version) < 0 {
		return otherHistory(listed, fmt.Sprintf("its history is older than what was published (app %s was deleted at version %s)", d.app, d.version))
	}
	return nil
}

// otherHistory ends the process: the cluster at this version is not the one
// whose events were published.
func otherHistory(version, problem string) error {
	return &ConfigError{
		Fatal: true,
		Field: "cluster", Value: "resourceVersion " + version,
		Problem: problem + ": etcd was restored, or this is another cluster",
		Repair:  "if that is intended, start once with --accept-reset: the stream then continues with what the cluster holds now",
	}
}

func steppedBack(version, seen string) error {
	return otherHistory(version, fmt.Sprintf("its history stepped back from version %s under the running bridge", seen))
}
