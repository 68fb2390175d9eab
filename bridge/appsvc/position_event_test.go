package appsvc

import (
	"errors"
	"testing"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

func TestPositionEventShown(t *testing.T) {
	id := positionApp("a")
	const reset = 5
	created := positionEvent{kind: subjects.Created, sequence: 7, uid: "u1", namespace: positionDomain, version: "50"}
	revised := created
	revised.kind, revised.revision = subjects.Updated, "60"
	entry := func(uid string, version int, revision string, count int32) *Entry {
		e := positionEntry(id, uid, version, revision, count)
		return &e
	}
	standIn, named := revised, revised
	standIn.counting, named.counting = "r1", "r2" // while the Service names r2
	naming := func(name, version string, ready bool) *Entry {
		e := entry("u1", 50, version, 3)
		e.Revision.Name = name
		e.Service.Status.LatestReadyRevisionName = "r2"
		e.Revision.Status.NotReady = !ready
		return e
	}
	gone := positionEvent{kind: subjects.Deleted, sequence: 8, previous: 7, uid: "u1", namespace: positionDomain, version: "50", deleted: "70"}
	missed := gone
	missed.deleted = ""
	old, missedOld, odd := created, missed, created
	old.sequence, missedOld.previous, odd.version = reset, reset, "0x5"
	stopped := entry("u1", 50, "40", 3)
	stopped.Service.Labels = map[string]string{kservice.LabelStopped: "true"}
	oddNow := entry("u1", 50, "", 0)
	oddNow.Service.ResourceVersion = "0x5"

	for _, test := range []struct {
		name          string
		event         positionEvent
		now           *Entry // nil: the app is not there
		newest, other string // of the app's namespace and of another one
		want          bool
	}{
		{"created, not there", created, nil, "99", "", false},
		{"created, older", created, entry("u1", 49, "", 0), "99", "", false},
		{"created, shorter", created, entry("u1", 6, "", 0), "99", "", false},
		{"created, the same", created, entry("u1", 50, "", 0), "", "", true},
		{"created, newer", created, entry("u1", 100, "40", 3), "", "", true},
		{"created, another object", created, entry("u2", 60, "", 0), "99", "", false},
		{"created, a Revision counts", created, entry("u1", 50, "40", 3), "99", "", false},
		{"created, a Revision counts nothing", created, entry("u1", 50, "40", 0), "", "", true},
		{"created, stopped", created, stopped, "", "", true},
		{"created, of a history that is over", old, nil, "", "", true},
		{"created, does not compare", odd, entry("u1", 60, "", 0), "99", "", false},
		{"created, does not compare but is the same", odd, oddNow, "", "", true},
		{"revised, without", revised, entry("u1", 50, "", 0), "99", "", false},
		{"revised, older", revised, entry("u1", 50, "59", 0), "99", "", false},
		{"revised, the same", revised, entry("u1", 50, "60", 0), "", "", true},
		{"revised, newer", revised, entry("u1", 50, "61", 1), "", "", true},
		{"revised, newer Service", revised, entry("u1", 51, "", 0), "", "", true},
		{"standing in, without", standIn, entry("u1", 50, "", 0), "99", "", false},
		{"standing in, here too", standIn, naming("r1", "60", true), "", "", true},
		{"standing in, here with an older count", standIn, naming("r1", "59", true), "99", "", false},
		{"standing in, the named one is known", standIn, naming("r2", "55", true), "", "", true},
		{"standing in, the named one is not ready", standIn, naming("r2", "65", false), "99", "", false},
		{"named, another stands in", named, naming("r1", "61", true), "99", "", false},
		{"deleted, not there yet", gone, nil, "69", "", false},
		{"deleted, nothing known", gone, nil, "", "", false},
		{"deleted, another namespace is further", gone, nil, "69", "99", false},
		{"deleted", gone, nil, "70", "", true},
		{"deleted, half of a list", gone, entry("u1", 50, "", 0), "99", "", false},
		{"deleted, half of a list, object before it", gone, entry("u0", 40, "", 0), "99", "", false},
		{"deleted, there again", gone, entry("u2", 71, "", 0), "71", "", true},
		{"deleted, there again by its label", gone, entry("u1", 71, "", 0), "71", "", true},
		{"missed, not there yet", missed, nil, "49", "", false},
		{"missed", missed, nil, "50", "", true},
		{"missed, a state that was never told", missed, entry("u1", 60, "", 0), "99", "", false},
		{"missed, there again, its event follows", missed, entry("u2", 60, "", 0), "99", "", false},
		{"missed, last told in a history that is over", missedOld, nil, "1", "", true},
		{"missed, last told in a history that is over, still there", missedOld, entry("u1", 3, "", 0), "3", "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			cache := &positionCache{apps: map[subjects.AppID]Entry{}, newest: map[string]string{positionDomain: test.newest, "other": test.other}}
			if test.now != nil {
				cache.apps[id] = *test.now
			}
			if got := test.event.shown(cache, id, reset); got != test.want {
				t.Errorf("shown: %v, want %v", got, test.want)
			}
		})
	}
	if missed.shown(&positionCache{}, id, 0) {
		t.Error("without a reset a cache that knows nothing shows a delete")
	}
}

// Nothing counts before everything that the stream held was judged, nor before
// the cache is filled.
func TestPositionBeforeItIsKnown(t *testing.T) {
	a, b := positionApp("a"), positionApp("b")
	names, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	cache := &positionCache{apps: map[subjects.AppID]Entry{}, newest: map[string]string{}}
	p := newPosition(nil, subjects.DefaultStream, names, cache, nil, zap.NewNop())
	judge := func(id subjects.AppID, sequence uint64, version int) {
		subject, err := names.Event(id, subjects.Created)
		if err != nil {
			t.Fatal(err)
		}
		p.judge(subject, sequence, positionHeader("u1", version, "", 0))
	}
	reflects := func(want uint64) {
		t.Helper()
		if got := p.reflected(); got != want {
			t.Fatalf("reflects %d, want %d", got, want)
		}
	}
	cache.show(a, "u1", 10, "", 0)
	judge(a, 3, 10)
	reflects(0)
	p.reach(4)
	reflects(4)
	cache.sync(errors.New("not filled"))
	reflects(0)
	cache.show(b, "u1", 11, "", 0)
	judge(b, 5, 11)
	if p.behind[b] == nil {
		t.Error("a cache that is not filled counts")
	}
	cache.sync(nil)
	reflects(5)
	if !p.forget() || p.forget() {
		t.Error("forgets another time than the first")
	}
	reflects(0)
}

// Events of namespaces that the cache is not of do not hold it up.
func TestPositionOtherNamespace(t *testing.T) {
	names, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	cache := &positionCache{apps: map[subjects.AppID]Entry{}, newest: map[string]string{}}
	subject, err := names.Event(positionApp("a"), subjects.Created)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		namespaces []string
		want       uint64
	}{{nil, 2}, {[]string{"flyte"}, 2}, {[]string{"elsewhere"}, 5}} {
		p := newPosition(nil, subjects.DefaultStream, names, cache, tt.namespaces, zap.NewNop())
		p.reach(2)
		header := positionHeader("u1", 10, "", 0)
		header.Set(subjects.HeaderNamespace, "flyte")
		p.judge(subject, 3, header)
		p.reach(5)
		if got := p.reflected(); got != tt.want {
			t.Errorf("watching %q: reflects %d, want %d", tt.namespaces, got, tt.want)
		}
	}
}
