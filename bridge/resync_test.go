package bridge

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// publishedAs is the record of an app after its state was published.
func publishedAs(t *testing.T, s state) *record {
	t.Helper()
	ev, err := testEncoder().encode(testID, newUpsert(s, true), nil)
	if err != nil {
		t.Fatal(err)
	}
	ev.record.sequence = 5
	return ev.record
}

func TestReconcile(t *testing.T) {
	cfg := kservice.Config{BaseDomain: "apps.example.com"}
	one := state{service: testService("u1", "100", "True"), revision: testRevision("99", 2)}
	published := publishedAs(t, one)
	deleted := &record{kind: subjects.Deleted, sequence: 9, uid: "u1", resourceVersion: "100", namespace: "flyte"}
	with := func(change func(*record)) *record {
		r := *published
		change(&r)
		return &r
	}
	for _, test := range []struct {
		name      string
		record    *record
		now       *state
		cfg       kservice.Config
		want      string
		unwatched int
	}{
		{"nothing", nil, nil, cfg, "", 0},
		{"new", nil, &one, cfg, "upsert first", 0},
		{"the same", published, &one, cfg, "", 0},
		{"another version", with(func(r *record) { r.resourceVersion = "98" }), &one, cfg, "upsert", 0},
		{"an older version, after a reset", with(func(r *record) { r.resourceVersion = "200" }), &one, cfg, "upsert", 0},
		{"another replica count", published, &state{one.service, testRevision("101", 3)}, cfg, "upsert", 0},
		{"another Revision version alone", published, &state{one.service, testRevision("101", 2)}, cfg, "", 0},
		{"another base domain", published, &one, kservice.Config{BaseDomain: "example.org"}, "upsert", 0},
		{"gone", published, nil, cfg, "remove unknown", 0},
		{"gone before", deleted, nil, cfg, "", 0},
		{"back after a delete", deleted, &one, cfg, "upsert first", 0},
		{"another object", with(func(r *record) { r.uid = "u0" }), &one, cfg, "remove unknown, upsert first", 0},
		{"a damaged entry", &record{damaged: true}, &one, cfg, "upsert first", 0},
		{"a damaged entry of nothing", &record{damaged: true}, nil, cfg, "", 0},
		{"published without its spec", with(func(r *record) {
			r.app, r.truncated = proto.CloneOf(r.app), "old_app,spec"
			r.app.Spec = nil
		}), &one, cfg, "", 0},
		{"unwatched", with(func(r *record) { r.namespace = "elsewhere" }), nil, cfg, "", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			records, current := map[subjects.AppID]*record{}, map[subjects.AppID]state{}
			if test.record != nil {
				records[testID] = test.record
			}
			if test.now != nil {
				current[testID] = *test.now
			}
			changes, unwatched := reconcile(records, current, test.cfg, watching([]string{"flyte"}))
			var got []string
			for _, o := range changes {
				text := "upsert"
				if o.change.remove {
					text = "remove"
				} else if !o.change.mergeable {
					text += " first"
				}
				if o.change.finalStateUnknown {
					text += " unknown"
				}
				if !o.change.synthesized {
					text += " not synthesized"
				}
				got = append(got, text)
			}
			if got := strings.Join(got, ", "); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if len(unwatched) != test.unwatched {
				t.Errorf("unwatched %v, want %d", unwatched, test.unwatched)
			}
		})
	}
}

func TestReconcileIsOrdered(t *testing.T) {
	current := map[subjects.AppID]state{}
	for i := range 50 {
		current[subjects.AppID{Project: "p", Domain: "d", Name: fmt.Sprintf("%02d", i)}] = state{service: testService("u", "1", "True")}
	}
	changes, _ := reconcile(nil, current, kservice.Config{}, watching([]string{"flyte"}))
	if len(changes) != 50 || !slices.IsSortedFunc(changes, func(a, b owed) int { return strings.Compare(a.app.Name, b.app.Name) }) {
		t.Errorf("got %d changes in no order", len(changes))
	}
}

func TestCheckHistory(t *testing.T) {
	for _, test := range []struct {
		name   string
		record *record
		listed string
		ok     bool
	}{
		{"older", &record{sequence: 9, resourceVersion: "99"}, "100", true},
		{"the same", &record{sequence: 9, resourceVersion: "100"}, "100", true},
		{"ahead", &record{sequence: 9, resourceVersion: "101"}, "100", false},
		{"ahead, of a history that is over", &record{sequence: 5, resourceVersion: "101"}, "100", true},
		{"a delete ahead", &record{sequence: 9, kind: subjects.Deleted, resourceVersion: "50", deletedVersion: "101"}, "100", false},
		{"a delete that was not seen", &record{sequence: 9, kind: subjects.Deleted, resourceVersion: "101"}, "100", true},
		{"longer numbers", &record{sequence: 9, resourceVersion: "99"}, "1000", true},
		{"damaged", &record{damaged: true}, "100", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := checkHistory(map[subjects.AppID]*record{testID: test.record}, test.listed, 5)
			if (err == nil) != test.ok {
				t.Errorf("got %v", err)
			}
			if err != nil && !strings.Contains(err.Error(), "--accept-reset") {
				t.Errorf("%v does not say what to do", err)
			}
		})
	}
}

// A conversion that changes (another version of this program) is a difference
// although nothing in the cluster changed.
func TestIsPublishedComparesContent(t *testing.T) {
	s := state{service: testService("u1", "100", "True")}
	r := publishedAs(t, s)
	cfg := kservice.Config{BaseDomain: "apps.example.com"}
	if !isPublished(s, r, cfg) {
		t.Error("the very state is not recognized")
	}
	r.app = proto.CloneOf(r.app)
	r.app.Status.Conditions = append(r.app.Status.Conditions, &appv1.Condition{Message: "more"})
	if isPublished(s, r, cfg) {
		t.Error("another App counts as the same")
	}
}
