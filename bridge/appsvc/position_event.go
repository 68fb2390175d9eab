package appsvc

import (
	"strconv"

	"github.com/nats-io/nats.go"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// positionEvent is what an event says of the state that a cache has to have
// come to.
type positionEvent struct {
	kind      subjects.EventKind
	sequence  uint64
	previous  uint64 // sequence of the app's event before, 0 if there is none
	uid       string
	namespace string
	version   string // of the Knative Service; on a delete that of the event before
	revision  string // version of the Revision that gave the count, "" without one
	counting  string // name of that Revision
	deleted   string // version of an observed deletion
}

// positionEventOf reads a message of the stream; ok is false when it is no event.
func positionEventOf(names subjects.Subjects, subject string, sequence uint64, h nats.Header) (id subjects.AppID, e positionEvent, ok bool) {
	id, kind, err := names.ParseEvent(subject)
	if err != nil {
		return id, e, false
	}
	e = positionEvent{
		kind: kind, sequence: sequence,
		uid:       h.Get(subjects.HeaderUID),
		namespace: h.Get(subjects.HeaderNamespace),
		version:   h.Get(subjects.HeaderResourceVersion),
		revision:  h.Get(subjects.HeaderRevisionResourceVersion),
		counting:  h.Get(subjects.HeaderRevision),
		deleted:   h.Get(subjects.HeaderDeletedResourceVersion),
	}
	if previous, err := strconv.ParseUint(h.Get(subjects.HeaderPreviousSequence), 10, 64); err == nil {
		e.previous = previous
	}
	return id, e, e.uid != "" && e.version != ""
}

// shown tells whether the cache has come to the event, or beyond it. In doubt it
// has not: then either it will, or an event follows that leaves no doubt. Events
// up to the sequence reset are of a cluster history that is over: versions of
// that mean nothing, and the cache was filled after it.
func (e positionEvent) shown(cache Cache, id subjects.AppID, reset uint64) bool {
	if e.sequence <= reset {
		return true
	}
	now, there := cache.App(id)
	switch {
	case e.kind != subjects.Deleted:
		return there && e.isIn(now)
	case e.deleted != "":
		// That the app is not there is not enough: the cache may be about to
		// show its creation.
		return positionAtLeast(cache.Newest(e.namespace), e.deleted) &&
			(!there || positionNewer(now.Service.ResourceVersion, e.deleted))
	case there:
		// The deletion was not observed, so nothing tells whether this state is
		// from before it. If it is not, its event follows.
		return false
	default:
		return e.previous <= reset && reset > 0 || positionAtLeast(cache.Newest(e.namespace), e.version)
	}
}

// isIn tells whether an entry is the state of the event or a later one of the
// same object. Another object may be one of before, or one whose event follows.
func (e positionEvent) isIn(now Entry) bool {
	svc := now.Service
	if string(svc.UID) != e.uid {
		return false
	}
	if svc.ResourceVersion != e.version {
		return positionNewer(svc.ResourceVersion, e.version)
	}
	switch {
	case e.revision != "" && now.Revision == nil:
		return false
	case e.revision != "" && e.counting != now.Revision.Name:
		// One of the two stands in for the Revision that the Service names: the one known first.
		return now.Revision.Name == svc.Status.LatestReadyRevisionName && now.Revision.Known()
	case e.revision != "":
		return positionAtLeast(now.Revision.ResourceVersion, e.revision)
	case now.Revision == nil || now.Revision.Status.ActualReplicas == nil || kservice.Stopped(svc):
		return true
	default:
		// A Revision that counts is one of before the event, since deleted; or it
		// came since, and then an event with it follows.
		return *now.Revision.Status.ActualReplicas == 0
	}
}

// positionNewer tells whether a is a later version than b. What does not compare
// is not.
func positionNewer(a, b string) bool {
	n, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && n > 0
}

func positionAtLeast(a, b string) bool { return a == b || positionNewer(a, b) }
