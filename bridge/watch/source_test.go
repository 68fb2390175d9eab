package watch

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/app/encodertest"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// observedSource is a source whose sink records the changes.
func observedSource() (*Source, *[]string) {
	s := NewSource(zap.NewNop(), encodertest.Keeper, func(string) {})
	log := &[]string{}
	s.Connect(func(View) Sink {
		return func(id subjects.AppID, c *app.Change) {
			var text string
			switch {
			case c.Remove && c.FinalStateUnknown:
				text = "lost " + id.Name
			case c.Remove:
				text = "gone at " + c.DeletedVersion + " " + id.Name
			case c.Mergeable:
				text = fmt.Sprintf("update %s@%s %s x%d", c.State.Service.UID, c.State.Service.ResourceVersion, id.Name, app.Replicas(c.State))
			default:
				text = fmt.Sprintf("new %s@%s %s", c.State.Service.UID, c.State.Service.ResourceVersion, id.Name)
			}
			*log = append(*log, text)
		}
	}, nil)
	return s, log
}

func atVersion(svc *kservice.Service, v string) *kservice.Service {
	next := svc.DeepCopy()
	next.ResourceVersion = v
	return next
}

func TestSource(t *testing.T) {
	one := watchedService("u1", "10", "True")
	named := watchedService("u2", "20", "True")
	named.Name = "vision-development-stream"
	canonical := watchedService("u3", "30", "True")
	canonical.Name = kservice.Name(watchedID)
	later := named.DeepCopy()
	later.Name, later.UID, later.CreationTimestamp = "later", "u4", v1.NewTime(named.CreationTimestamp.Add(time.Hour))
	renamed := atVersion(one, "11")
	renamed.Annotations[kservice.AnnotationAppID] = "vision/development/other"
	lost := atVersion(one, "12")
	delete(lost.Annotations, kservice.AnnotationAppID)
	again := atVersion(one, "40")
	again.UID = "u9"

	for _, test := range []struct {
		name string
		play func(services, revisions toolscache.ResourceEventHandler)
		want []string
	}{
		{"life", func(s, _ toolscache.ResourceEventHandler) {
			s.OnAdd(one, true)
			s.OnUpdate(one, atVersion(one, "11"))
			s.OnUpdate(one, atVersion(one, "11")) // the informer's resync
			s.OnDelete(atVersion(one, "13"))
		}, []string{"new u1@10 stream.lit", "update u1@11 stream.lit x0", "gone at 13 stream.lit"}},
		{"tombstone", func(s, _ toolscache.ResourceEventHandler) {
			s.OnAdd(one, false)
			s.OnDelete(toolscache.DeletedFinalStateUnknown{Key: "flyte/x", Obj: one})
		}, []string{"new u1@10 stream.lit", "lost stream.lit"}},
		{"recreated between two lists", func(s, _ toolscache.ResourceEventHandler) {
			s.OnAdd(one, false)
			s.OnUpdate(one, again)
		}, []string{"new u1@10 stream.lit", "lost stream.lit", "new u9@40 stream.lit"}},
		{"another id", func(s, _ toolscache.ResourceEventHandler) {
			s.OnAdd(one, false)
			s.OnUpdate(one, renamed)
			s.OnUpdate(renamed, lost)
			s.OnDelete(lost)
		}, []string{"new u1@10 stream.lit", "gone at  stream.lit", "new u1@11 other", "gone at  other"}},
		{"the older of two", func(s, _ toolscache.ResourceEventHandler) {
			s.OnAdd(later, false)
			s.OnAdd(named, false)
			s.OnUpdate(later, atVersion(later, "50"))
			s.OnDelete(atVersion(named, "51"))
		}, []string{"new u4@20 stream.lit", "gone at  stream.lit", "new u2@20 stream.lit", "gone at 51 stream.lit", "new u4@50 stream.lit"}},
		{"the canonical name wins", func(s, _ toolscache.ResourceEventHandler) {
			s.OnAdd(named, false)
			s.OnAdd(canonical, false)
			s.OnDelete(atVersion(named, "52"))
		}, []string{"new u2@20 stream.lit", "gone at  stream.lit", "new u3@30 stream.lit"}},
		{"replicas", func(s, r toolscache.ResourceEventHandler) {
			s.OnAdd(one, false)
			r.OnAdd(watchedRevision("11", 2), false)
			r.OnUpdate(nil, watchedRevision("12", 2))
			r.OnUpdate(nil, watchedRevision("13", 0))
			r.OnDelete(watchedRevision("14", 0))
			unused := watchedRevision("15", 7)
			unused.Name = "rev-2"
			r.OnAdd(unused, false)
		}, []string{"new u1@10 stream.lit", "update u1@10 stream.lit x2", "update u1@10 stream.lit x0"}},
		{"a Revision that goes takes its count with it", func(s, r toolscache.ResourceEventHandler) {
			r.OnAdd(watchedRevision("9", 3), true)
			s.OnAdd(one, true)
			r.OnDelete(toolscache.DeletedFinalStateUnknown{Obj: watchedRevision("9", 3)})
		}, []string{"new u1@10 stream.lit", "update u1@10 stream.lit x0"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, got := observedSource()
			test.play(s.Services(), s.Revisions())
			if !slices.Equal(*got, test.want) {
				t.Errorf("got  %q\nwant %q", *got, test.want)
			}
		})
	}
}

// A standby that did not see the count go and come back must not publish an older version of the
// Revision than the leader did.
func TestSourceKeepsNewestRevision(t *testing.T) {
	s, log := observedSource()
	s.Revisions().OnAdd(watchedRevision("99", 2), false)
	svc := watchedService("u1", "100", "True")
	s.Services().OnAdd(svc, false)
	*log = nil
	s.Revisions().OnUpdate(nil, watchedRevision("120", 2))
	if len(*log) > 0 {
		t.Errorf("got %q, want nothing for the same count", *log)
	}
	if got := s.current[watchedID].Revision; got == nil || got.ResourceVersion != "120" {
		t.Errorf("got Revision %+v, want version 120", got)
	}
}

// A version that steps back ends the session before anything of it is emitted.
func TestSourceStepsBack(t *testing.T) {
	s, got := observedSource()
	var reset error
	s.reset = func(err error) { reset = err }
	h := s.Services()
	h.OnAdd(watchedService("u1", "10", "True"), false)
	h.OnUpdate(nil, watchedService("u1", "9", "False"))
	if reset == nil || len(*got) != 1 {
		t.Errorf("reset %v, emitted %q", reset, *got)
	}
}

func TestBehind(t *testing.T) {
	seen := func(name, uid, version string) *kservice.Service {
		svc := watchedService(uid, version, "True")
		svc.Name = name
		return svc
	}
	type item struct{ name, uid, version string }
	type list = []item
	for _, test := range []struct {
		name    string
		version string
		items   list
		play    func(toolscache.ResourceEventHandler)
		behind  bool
	}{
		{"the same state at a later version", "500", list{{"a", "u1", "10"}}, nil, false},
		{"an update is missing", "500", list{{"a", "u1", "11"}}, nil, true},
		{"a recreate is missing", "500", list{{"a", "u2", "11"}}, nil, true},
		{"a create is missing", "500", list{{"a", "u1", "10"}, {"b", "u2", "20"}}, nil, true},
		{"a delete is missing", "500", nil, nil, true},
		{"the watch is further", "9", nil, nil, false},
		{
			"half of a relist: another object is further", "200",
			list{{"a", "u1", "10"}, {"b", "u2", "150"}},
			func(h toolscache.ResourceEventHandler) {
				h.OnAdd(seen("b", "u2", "100"), false)
				h.OnUpdate(nil, seen("a", "u1", "200"))
			}, true,
		},
		{
			"deleted since", "500",
			list{{"a", "u1", "10"}},
			func(h toolscache.ResourceEventHandler) { h.OnDelete(seen("a", "u1", "501")) }, false,
		},
		{
			"deleted since, seen by a relist", "500",
			list{{"a", "u1", "12"}},
			func(h toolscache.ResourceEventHandler) {
				h.OnDelete(toolscache.DeletedFinalStateUnknown{Obj: seen("a", "u1", "10")})
			}, false,
		},
		{
			"a label lost and given back before the list", "500",
			list{{"a", "u1", "40"}},
			func(h toolscache.ResourceEventHandler) { h.OnDelete(seen("a", "u1", "30")) }, true,
		},
		{
			"recreated since", "500",
			list{{"a", "u1", "10"}},
			func(h toolscache.ResourceEventHandler) { h.OnUpdate(nil, seen("a", "u3", "501")) }, false,
		},
		{
			"recreated before the list, not seen yet", "500",
			list{{"a", "u3", "400"}},
			func(h toolscache.ResourceEventHandler) { h.OnDelete(seen("a", "u1", "399")) }, true,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, _ := observedSource()
			h := s.Services()
			h.OnAdd(seen("a", "u1", "10"), true)
			s.Shown.NoteDeletes()
			if test.play != nil {
				test.play(h)
			}
			l := Listing{Kind: KindService, Namespace: "flyte", Version: test.version, Items: map[types.NamespacedName]Listed{}}
			for _, item := range test.items {
				l.Items[types.NamespacedName{Namespace: "flyte", Name: item.name}] = Listed{types.UID(item.uid), item.version}
			}
			if got := s.Shown.lacking(l); (len(got) > 0) != test.behind {
				t.Errorf("got %q", got)
			}
		})
	}
}

// The memory of a source does not grow with the apps that came and went.
func TestSourceForgetsDeletedApps(t *testing.T) {
	s, _ := observedSource()
	h := s.Services()
	for i := range 1000 {
		svc := watchedService(fmt.Sprint("u", i), fmt.Sprint(2*i), "True")
		svc.Name = fmt.Sprint("app-", i)
		svc.Annotations[kservice.AnnotationAppID] = fmt.Sprint("p/d/a", i%10, "-", i)
		if i%2 == 0 {
			svc.Annotations[kservice.AnnotationAppID] = "" // is rejected
		}
		h.OnAdd(svc, false)
		h.OnDelete(atVersion(svc, fmt.Sprint(2*i+1)))
	}
	if n := len(s.current) + len(s.Shown.services) + len(s.claims) + len(s.Shown.users) + len(s.reported) + len(s.standIns.apps); n != 0 {
		t.Errorf("the source holds %d entries of no app", n)
	}
	s.Close()
}

// What a list has again in the version that the source knows is one object with what it knows: an
// informer that lists again would otherwise have every App in memory a second time.
func TestListedAgain(t *testing.T) {
	s, changes := observedSource()
	deliver := func(svc *kservice.Service) any {
		kept, err := s.Transform(svc.DeepCopy())
		if err != nil {
			t.Fatal(err)
		}
		s.Services().OnAdd(kept, false)
		return kept
	}
	one := watchedService("u1", "10", "True")
	first := deliver(one)
	if deliver(one) != first {
		t.Error("the same version is kept twice")
	}
	recreated := watchedService("u2", "10", "True")
	if newer := deliver(atVersion(one, "11")); newer == first || deliver(one) == newer || deliver(recreated) == first {
		t.Error("another version, or another object, is taken for the one that is known")
	}
	if len(*changes) == 0 || (*changes)[0] != "new u1@10 stream.lit" {
		t.Errorf("the changes are %q", *changes)
	}
}
