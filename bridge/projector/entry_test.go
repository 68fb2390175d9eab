package projector

import (
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/appbridge/appbridge/subjects"
)

func fatService(uid string, n int) *app.CachedService {
	return testService(uid, "7", "True", func(svc *kservice.Service) { svc.Status.Conditions[0].Message = strings.Repeat("\n", n) })
}

// fatEvent is an event of an app with a message of n bytes in its status, each
// of which takes two in JSON.
func (r *rig) fatEvent(id subjects.AppID, n int, prev *app.Record) *app.Event {
	r.t.Helper()
	svc := fatService("u-"+id.Name, n)
	ev, err := r.encoder.Encode(id, app.NewUpsert(app.State{Service: svc, Revision: testRevision("6", 2)}, prev == nil), prev)
	if err != nil {
		r.t.Fatal(err)
	}
	return ev
}

// One app whose entry does not fit keeps no other out of the bucket, whoever
// says that it does not fit.
func TestFatAppStopsNobody(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		limit func(*testing.T, *rig)
	}{
		{"the client", func(_ *testing.T, r *rig) { r.bucket.MaxSize = func() int { return 8 << 10 } }},
		{"the server", func(t *testing.T, r *rig) {
			stream, err := r.js.Stream(t.Context(), subjects.BucketStream(subjects.DefaultBucket))
			if err != nil {
				t.Fatal(err)
			}
			cfg := stream.CachedInfo().Config
			cfg.MaxMsgSize = 8 << 10
			if _, err := r.js.UpdateStream(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			fat, other := otherApp("fat"), otherApp("other")
			first := r.append(r.fatEvent(fat, 10, nil))
			r.project()
			test.limit(t, r)
			r.append(r.fatEvent(fat, 10_000, first))
			last := r.append(r.eventOn(other, "3", nil))
			p, snap := r.newProjector(zap.NewNop())
			if err := r.runUntil(p, snap, last.Sequence); err != nil {
				t.Fatal(err)
			}
			got := r.held(fat)
			if got.Record == nil || got.Record.Truncated != "old_app,spec,status" && got.Record.Truncated != "spec,status" || got.Record.Sequence != 2 {
				t.Errorf("the bucket holds %+v of %v", got, got.Record)
			}
			if r.held(other).Sequence() != last.Sequence {
				t.Error("the other app is not in the bucket")
			}
			if d, differs := r.differs(other); differs {
				t.Error(d)
			}
			if d, differs := r.differs(fat); differs != (r.bucket.MaxSize == nil) {
				t.Errorf("verify says %v", d)
			}
			if got := taken(p)[fat]; got.Truncated != "" && got.Truncated != "old_app" {
				t.Errorf("the record lacks %s", got.Truncated)
			}
			// What the bucket lacks is no difference from the cluster.
			p, _ = r.newProjector(zap.NewNop())
			svc := fatService("u-fat", 10_000)
			record := taken(p)[fat]
			if !plan.Shows(record, app.State{Service: svc, Revision: testRevision("6", 2)}) {
				t.Errorf("the state that was published counts as another than %+v", record)
			}
			if plan.Shows(record, app.State{Service: svc, Revision: testRevision("8", 3)}) {
				t.Error("another replica count counts as published")
			}
		})
	}
}

// An entry that cannot be made at all is skipped.
func TestEntryThatCannotBeMade(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	limit := 10
	r.bucket.MaxSize = func() int { return limit }
	first := r.append(r.event("1", nil))
	p, snap := r.newProjector(zap.NewNop())
	if err := r.runUntil(p, snap, first.Sequence); err != nil {
		t.Fatal(err)
	}
	if got := counted(t, p.metrics.skipped); got != 1 || r.held(testID) != nil {
		t.Errorf("%d entries were skipped; the bucket holds %v", got, r.held(testID))
	}
	if got := taken(p)[testID]; got.Previous() != first.Sequence || !got.Exists() {
		t.Errorf("the record is %+v", got)
	}
	limit = 0
	last := r.append(r.eventOn(otherApp("b"), "2", nil))
	if err := r.runUntil(p, nil, last.Sequence); err != nil {
		t.Fatal(err)
	}
	if r.held(otherApp("b")) == nil {
		t.Error("another app is not in the bucket")
	}
}

// An entry that does not fit in the encoding that is configured now keeps its own.
func TestEncodingChangeThatDoesNotFit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	fat, other := otherApp("fat"), otherApp("other")
	r.encoder.Form, r.bucket.ContentType = subjects.ContentTypeProtobuf, subjects.ContentTypeProtobuf
	r.append(r.fatEvent(fat, 5000, nil))
	r.append(r.fatEvent(other, 10, nil))
	r.project()
	r.encoder.Form, r.bucket.ContentType = subjects.ContentTypeJSON, subjects.ContentTypeJSON
	r.bucket.MaxSize = func() int { return 8 << 10 }
	last := r.append(r.event("3", nil))
	p := r.project()
	if r.held(testID).Sequence() != last.Sequence || p == nil {
		t.Error("the new event is not in the bucket")
	}
	for id, want := range map[subjects.AppID]string{fat: subjects.ContentTypeProtobuf, other: subjects.ContentTypeJSON} {
		if got := r.held(id); got.Record == nil || got.Record.ContentType != want || got.Record.Truncated != "" {
			t.Errorf("%s: the bucket holds %+v", id, got)
		}
		if d, differs := r.differs(id); differs {
			t.Error(d)
		}
	}
	if got := counted(t, r.metrics.restarts); got != 0 {
		t.Errorf("the projection started over %d times", got)
	}
}
