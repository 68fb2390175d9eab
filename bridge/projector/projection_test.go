package projector

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// A foreign write to the bucket does not stop the projection.
func TestProjectionGoesOn(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	snap, err := r.bucket.Load(ctx)
	if err != nil {
		t.Fatal(err)
	}
	p := New(r.projectorConfig(zap.NewNop()), snap)
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, snap) }()
	kv, err := r.js.KeyValue(ctx, subjects.DefaultBucket)
	if err != nil {
		t.Fatal(err)
	}
	var prev *app.Record
	for i := range 30 {
		prev = r.append(r.event(strconv.Itoa(i+1), prev))
		if i%10 == 5 {
			if _, err := kv.PutString(ctx, "foreign", fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	wait, stop := context.WithTimeout(ctx, suite.Patience)
	defer stop()
	if err := p.WaitWritten(wait, prev.Sequence); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	entry, err := store.LastMessage(t.Context(), r.js, subjects.BucketStream(subjects.DefaultBucket), subjects.BucketSubject(subjects.DefaultBucket, "vision.development.stream=2Elit"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := entry.Header.Get(subjects.HeaderEventSequence), strconv.FormatUint(prev.Sequence, 10); got != want {
		t.Errorf("the bucket reflects %s, want %s", got, want)
	}
}

// A damaged entry is written again from the app's last event.
func TestDamagedEntryIsRestored(t *testing.T) {
	r := newRig(t)
	one := r.append(r.event("1", nil))
	two := r.append(r.event("2", one))
	r.project()
	kv, err := r.js.KeyValue(t.Context(), subjects.DefaultBucket)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.PutString(t.Context(), "vision.development.stream=2Elit", "{garbage"); err != nil {
		t.Fatal(err)
	}
	// Something later keeps the bucket's position ahead of the damaged entry.
	other := r.event("9", nil)
	other.ID.Name = "other"
	other.Msg.Subject = "flyte.apps.events.vision.development.other.created"
	other.Msg.Header.Set(subjects.HeaderExpectedLastSubjectSequenceSubject, "flyte.apps.events.vision.development.other.*")
	r.append(other)
	p := r.project()
	snap, err := r.bucket.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := snap.Records[testID]
	if got.Damaged || got.Sequence != two.Sequence || got.ResourceVersion != "2" {
		t.Errorf("the bucket holds %+v, want version 2 of sequence %d", got, two.Sequence)
	}
	if got := taken(p)[testID]; got.Damaged || got.Sequence != two.Sequence {
		t.Errorf("the projector knows %+v", got)
	}
}

// A message of somebody else on an event subject is passed over, and said so.
func TestForeignMessage(t *testing.T) {
	r := newRig(t)
	one := r.append(r.event("1", nil))
	for _, subject := range []string{"flyte.apps.events.vision.development.x.updated", "flyte.apps.events.nonsense", "flyte.apps.events.a.b.c.exploded"} {
		if _, err := r.js.Publish(t.Context(), subject, []byte("{")); err != nil {
			t.Fatal(err)
		}
	}
	p := r.project()
	got := taken(p)
	if got[testID].Sequence != one.Sequence || got[testID].Foreign != 0 {
		t.Errorf("the record is %+v", got[testID])
	}
	x := subjects.AppID{Project: "vision", Domain: "development", Name: "x"}
	if len(got) != 1 || got[x] != nil {
		t.Errorf("the records are %v, that of x %+v; want none", got, got[x])
	}
	// What counts for its fence is read when it gets an event.
	read, err := store.PublishedReader{Reader: store.NewReader(r.js, subjects.DefaultStream, p.subjects), Bucket: r.bucket}.PublishedOf(t.Context(), x)
	if err != nil || read.Exists() || read.Fence() != 2 || read.Previous() != 0 {
		t.Errorf("got %+v, %v, want the fence at 2", read, err)
	}
	if got := p.written.Load(); got != 4 {
		t.Errorf("the projection stands at %d, want 4", got)
	}
}
