package audit

import (
	"sort"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/kservice"
)

// revisionState is one version of a Revision, or its deletion.
type revisionState struct {
	number   uint64
	version  string
	revision *kservice.Revision // nil: deleted
	replicas int32
	changes  int // changes of replicas up to here, from none
	at       time.Time
	// swallowed: some bridge was not shown it.
	swallowed bool
}

// revisions is what became of the Revision of one name.
type revisions struct {
	states []revisionState
}

func (t *truth) revision(name types.NamespacedName, c *Change) error {
	next := revisionState{number: number(c.ResourceVersion), version: c.ResourceVersion, at: c.At, swallowed: t.wasSwallowed(c)}
	if !c.Deleted {
		var err error
		if next.revision, err = decodeRevision(name, c.Object); err != nil {
			return err
		}
		if n := next.revision.Status.ActualReplicas; n != nil {
			next.replicas = *n
		}
	}
	r := t.revisions[name]
	if r == nil {
		r = &revisions{}
		t.revisions[name] = r
	}
	before := revisionState{}
	if n := len(r.states); n > 0 {
		before = r.states[n-1]
	}
	next.changes = before.changes
	if next.replicas != before.replicas {
		next.changes++
	}
	r.states = append(r.states, next)
	return nil
}

// counts reports whether a bridge must have seen another count at a state than before it. Where it was
// not shown the states before, that includes the last count that it was shown.
func (r *revisions) counts(s int) bool {
	for before := s - 1; before >= 0; before-- {
		switch {
		case r.states[before].replicas == r.states[s].replicas:
			return false
		case !r.states[before].swallowed:
			return true
		}
	}
	return true
}

func decodeRevision(name types.NamespacedName, object *unstructured.Unstructured) (*kservice.Revision, error) {
	status, _, err := unstructured.NestedFieldNoCopy(object.Object, "status")
	if err != nil {
		return nil, err
	}
	rev := &kservice.Revision{}
	if status != nil {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(map[string]any{"status": status}, rev); err != nil {
			return nil, err
		}
	}
	rev.Namespace, rev.Name = name.Namespace, name.Name
	return rev, nil
}

// find is the index of a version, -1 if there was none.
func (r *revisions) find(version string) int {
	i := r.after(number(version)) - 1
	if i < 0 || r.states[i].version != version {
		return -1
	}
	return i
}

// after is the index of the first state that is newer than a version.
func (r *revisions) after(version uint64) int {
	if r == nil {
		return 0
	}
	return sort.Search(len(r.states), func(i int) bool { return r.states[i].number > version })
}

// deletedAfter tells whether the Revision was deleted after a version.
func (r *revisions) deletedAfter(version uint64) bool {
	if r == nil {
		return true
	}
	for i := len(r.states) - 1; i >= 0 && r.states[i].number > version; i-- {
		if r.states[i].revision == nil {
			return true
		}
	}
	return false
}

// last is the Revision at the end, nil if there is none.
func (r *revisions) last() *kservice.Revision {
	if r == nil || len(r.states) == 0 {
		return nil
	}
	return r.states[len(r.states)-1].revision
}

// changed counts the changes of replicas after one version and up to another;
// nothing changes after the last.
func (r *revisions) changed(after, upTo uint64) int {
	if r == nil {
		return 0
	}
	upToHere := func(version uint64) int {
		if i := r.after(version) - 1; i >= 0 {
			return r.states[i].changes
		}
		return 0
	}
	return max(0, upToHere(upTo)-upToHere(after))
}
