package bridge

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// fatEvent is an event of an app with a message of n bytes in its status, each
// of which takes two in JSON.
func (r *rig) fatEvent(id subjects.AppID, n int, prev *app.Record) *app.Event {
	r.t.Helper()
	svc := testService("u-"+id.Name, "7", "True")
	svc.Status.Conditions[0].Message = strings.Repeat("\n", n)
	ev, err := r.pub.encoder.Encode(id, app.NewUpsert(app.State{Service: svc, Revision: testRevision("6", 2)}, prev == nil), prev)
	if err != nil {
		r.t.Fatal(err)
	}
	return ev
}

// held reads an app's entry.
func (r *rig) held(id subjects.AppID) *store.Entry {
	r.t.Helper()
	subject, err := r.bucket.Subject(id)
	if err != nil {
		r.t.Fatal(err)
	}
	m, err := store.LastMessage(r.t.Context(), r.nc, subjects.BucketStream(subjects.DefaultBucket), subject)
	if errors.Is(err, store.ErrNoMessage) {
		return nil
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return store.EntryOf(m)
}

// differs compares an app's entry with its last event as verify does.
func (r *rig) differs(id subjects.AppID) (detail string, differs bool) {
	r.t.Helper()
	last, err := store.NewReader(r.nc, subjects.DefaultStream, r.pub.encoder.Subjects).LastEvent(r.t.Context(), id, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	m := r.bucket.Mismatch(id, last, r.held(id), time.Now())
	if m == nil {
		return "", false
	}
	return m.Detail, true
}

// An entry that does not fit keeps the event's encoding or leaves fields out.
func TestEntryWithin(t *testing.T) {
	id := otherApp("fat")
	fat := &appv1.App{Spec: &appv1.Spec{ClusterPool: strings.Repeat("s", 2000)}, Status: &appv1.Status{}}
	fat.Status.Conditions = []*appv1.Condition{{Message: strings.Repeat("\n", 1000)}}
	for _, test := range []struct {
		name, eventForm, eventLacks string
		limit                       int
		form, truncated             string
	}{
		{"no limit", subjects.ContentTypeJSON, "", 0, subjects.ContentTypeJSON, ""},
		{"it fits", subjects.ContentTypeProtobuf, "", 5000, subjects.ContentTypeJSON, ""},
		{"it fits as the event has it", subjects.ContentTypeProtobuf, "old_app", 4000, subjects.ContentTypeProtobuf, "old_app"},
		{"without the spec", subjects.ContentTypeJSON, "old_app", 4000, subjects.ContentTypeJSON, "old_app,spec"},
		{"without the spec, as the event has it", subjects.ContentTypeProtobuf, "", 2000, subjects.ContentTypeProtobuf, "spec"},
		{"without spec and status", subjects.ContentTypeJSON, "spec", 1000, subjects.ContentTypeJSON, "spec,status"},
		{"it cannot be made", subjects.ContentTypeJSON, "", 100, "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := &store.Bucket{Name: subjects.DefaultBucket, ContentType: subjects.ContentTypeJSON, MaxSize: func() int { return test.limit }}
			r := &app.Record{Kind: subjects.Updated, Sequence: 5, ContentType: test.eventForm, Truncated: test.eventLacks, App: fat}
			h := nats.Header{subjects.HeaderUID: {"u1"}}
			if test.eventLacks != "" {
				h.Set(subjects.HeaderTruncated, test.eventLacks)
			}
			msg, err := b.Entry(id, r, h)
			if test.form == "" {
				if !errors.Is(err, app.ErrTooLarge) {
					t.Errorf("got %v, %v", msg, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := msg.Header.Get(subjects.CEDataContentType); got != test.form {
				t.Errorf("got %s, want %s", got, test.form)
			}
			if got := msg.Header.Get(subjects.HeaderTruncated); got != test.truncated {
				t.Errorf("truncated: %q, want %q", got, test.truncated)
			}
			msg.Header.Set(subjects.HeaderExpectedLastSequence, "18446744073709551615")
			if test.limit > 0 && msg.Size() > test.limit {
				t.Errorf("it has %d of %d bytes", msg.Size(), test.limit)
			}
			if fat.Spec == nil || fat.Status == nil || h.Get(subjects.HeaderTruncated) != test.eventLacks {
				t.Error("the event itself was changed")
			}
		})
	}
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
			svc := testService("u-fat", "7", "True")
			svc.Status.Conditions[0].Message = strings.Repeat("\n", 10_000)
			record := taken(p)[fat]
			if !app.IsPublished(app.State{Service: svc, Revision: testRevision("6", 2)}, record, r.pub.encoder.App) {
				t.Errorf("the state that was published counts as another than %+v", record)
			}
			if app.IsPublished(app.State{Service: svc, Revision: testRevision("8", 3)}, record, r.pub.encoder.App) {
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
	r.pub.encoder.Form, r.bucket.ContentType = subjects.ContentTypeProtobuf, subjects.ContentTypeProtobuf
	r.append(r.fatEvent(fat, 5000, nil))
	r.append(r.fatEvent(other, 10, nil))
	r.project()
	r.pub.encoder.Form, r.bucket.ContentType = subjects.ContentTypeJSON, subjects.ContentTypeJSON
	r.bucket.MaxSize = func() int { return 8 << 10 }
	last := r.append(r.event("3", nil))
	p := r.project()
	if r.held(testID).Sequence() != last.Sequence || p.metrics == nil {
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
	if got := counted(t, r.metrics.projector.restarts); got != 0 {
		t.Errorf("the projection started over %d times", got)
	}
}

// What a bucket may not have.
func TestBucketProblems(t *testing.T) {
	fit := jetstream.StreamConfig{Retention: jetstream.LimitsPolicy, MaxMsgs: -1, MaxBytes: -1, MaxMsgSize: -1}
	if got := store.BucketProblems(fit); len(got) > 0 {
		t.Errorf("got %v", got)
	}
	limited := fit
	limited.MaxMsgSize = 8192
	if got := store.BucketProblems(limited); len(got) != 1 || !strings.Contains(got[0], "8192 bytes") {
		t.Errorf("got %v", got)
	}
}
