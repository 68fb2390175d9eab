package audit

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// state is one thing that became of an app: a version of its Knative Service,
// or that it is gone.
type state struct {
	uid, version string // of a delete: the version at which it was gone
	gone         bool
	moved        bool // gone because the object is another app now
	object       *unstructured.Unstructured
	at           time.Time
	shown        bool // some event tells it
	swallowed    bool // some bridge was not shown it
}

func (s *state) String() string {
	return fmt.Sprintf("%s %s@%s, seen %s", pick(s.gone, "delete of", "state"), s.uid, s.version, clock(s.at))
}

// stateKey is how an event names a state.
type stateKey struct {
	uid, version string
	gone         bool
}

// history is what became of one app.
type history struct {
	id     subjects.AppID
	states []state
	index  map[stateKey]int
}

func (h *history) add(s state) {
	key := stateKey{s.uid, s.version, s.gone}
	if _, again := h.index[key]; again {
		return
	}
	h.index[key] = len(h.states)
	h.states = append(h.states, s)
}

// truth is what the cluster went through.
type truth struct {
	apps      map[subjects.AppID]*history
	revisions map[types.NamespacedName]*revisions
	swallowed map[Swallowed]bool
	pods      map[string][]podStep // by Service
	problems  []Problem
}

// owner is the app that an object is.
type owner struct {
	id  subjects.AppID
	uid types.UID
}

func newTruth(changes []Change, swallowed []Swallowed) *truth {
	t := &truth{apps: map[subjects.AppID]*history{}, revisions: map[types.NamespacedName]*revisions{}, swallowed: map[Swallowed]bool{}}
	for _, s := range swallowed {
		t.swallowed[s] = true
	}
	ordered := slices.Clone(changes)
	slices.SortStableFunc(ordered, func(a, b Change) int {
		return cmp.Compare(number(a.ResourceVersion), number(b.ResourceVersion))
	})
	owners := map[types.NamespacedName]owner{}
	for i := range ordered {
		c := &ordered[i]
		name := types.NamespacedName{Namespace: c.Namespace, Name: c.Name}
		if c.Object == nil && !c.Deleted || number(c.ResourceVersion) == 0 {
			t.problems = append(t.problems, Problem{App: c.Kind + " " + name.String(), What: fmt.Sprintf("the truth has no object or no version (%q)", c.ResourceVersion)})
			continue
		}
		switch c.Kind {
		case KindService:
			t.service(owners, name, c)
		case KindRevision:
			if err := t.revision(name, c); err != nil {
				t.problems = append(t.problems, Problem{App: c.Kind + " " + name.String(), What: "the truth is unreadable: " + err.Error()})
			}
		}
	}
	return t
}

// service takes a version of a Knative Service into the states of its app.
func (t *truth) service(owners map[types.NamespacedName]owner, name types.NamespacedName, c *Change) {
	was, had := owners[name]
	var now owner
	has := false
	if !c.Deleted {
		light := &kservice.Service{ObjectMeta: metav1.ObjectMeta{Labels: c.Object.GetLabels(), Annotations: c.Object.GetAnnotations()}}
		id, err := kservice.ID(light)
		now, has = owner{id: id, uid: c.UID}, light.Labels[kservice.LabelManaged] == "true" && err == nil && id.Validate() == nil
		if has && had && id != was.id {
			t.app(was.id).add(state{uid: string(was.uid), version: c.ResourceVersion, gone: true, moved: true, at: c.At})
			had = false
		}
	}
	swallowed := t.wasSwallowed(c)
	if had && (!has || was.uid != now.uid) {
		t.app(was.id).add(state{uid: string(was.uid), version: c.ResourceVersion, gone: true, at: c.At, swallowed: swallowed})
	}
	if !has {
		delete(owners, name)
		return
	}
	owners[name] = now
	t.app(now.id).add(state{uid: string(now.uid), version: c.ResourceVersion, object: c.Object, at: c.At, swallowed: swallowed})
}

func (t *truth) wasSwallowed(c *Change) bool {
	return t.swallowed[Swallowed{Kind: c.Kind, Namespace: c.Namespace, Name: c.Name, ResourceVersion: c.ResourceVersion}]
}

func (t *truth) app(id subjects.AppID) *history {
	h := t.apps[id]
	if h == nil {
		h = &history{id: id, index: map[stateKey]int{}}
		t.apps[id] = h
	}
	return h
}

// number is a version as a number, 0 for what is none.
func number(version string) uint64 {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func pick(condition bool, yes, no string) string {
	if condition {
		return yes
	}
	return no
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05.000") }
