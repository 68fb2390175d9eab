package projector

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

func TestRemoveMarkers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.bucket.MarkerMaxAge = time.Hour
	core, logs := observer.New(zap.ErrorLevel)
	p, snap := r.newProjector(zap.New(core))
	r.run(p, snap)
	records := map[string]*app.Record{}
	create := func(name, version string) {
		records[name] = r.append(r.eventOn(otherApp(name), version, records[name]))
	}
	remove := func(name string) { records[name] = r.append(r.removalOn(otherApp(name), records[name])) }
	sweep := func(before time.Time, want ...string) {
		t.Helper()
		r.reflects(p, r.lastSequence())
		if err := p.removeMarkers(t.Context(), before); err != nil {
			t.Fatal(err)
		}
		if got := r.keysIn(); !slices.Equal(got, want) {
			t.Errorf("the bucket holds %v, want %v", got, want)
		}
		if now := r.bucketKeys(); now != keysOf(p) || p.purged.Load() != p.purging.Load() {
			t.Errorf("the bucket holds %d keys, %d are known; %d of %d are removed", now, keysOf(p), p.purged.Load(), p.purging.Load())
		}
	}
	later := time.Now().Add(time.Hour)
	for _, name := range []string{"a", "b", "c", "d"} {
		create(name, "1")
	}
	remove("a")
	remove("b")
	remove("c")
	sweep(time.Now().Add(-time.Hour), "a", "b", "c", "d") // none is old
	create("b", "5")
	remove("b")
	create("a", "6")
	remove("d")
	sweep(later, "a", "d") // the marker of d is the bucket's position
	create("b", "7")
	sweep(later, "a", "b")
	create("c", "8")
	create("d", "9")
	sweep(later, "a", "b", "c", "d")
	for _, name := range []string{"a", "b", "c", "d"} {
		if h := r.held(otherApp(name)); h.Marker() || h.Sequence() != records[name].Sequence {
			t.Errorf("the bucket holds %+v of %s", h.Record, name)
		}
	}

	// A marker that the bucket does not hold any more is not removed twice, nor
	// the entry that replaced it.
	remove("c")
	create("e", "10")
	r.reflects(p, r.lastSequence())
	old := p.oldMarkers(later)
	if len(old) != 1 {
		t.Fatalf("got %v", old)
	}
	create("c", "11")
	r.reflects(p, r.lastSequence())
	if p.sweep(old[0]) {
		t.Error("it removes the marker of an app that exists again")
	}
	if err := r.bucket.PurgeApp(t.Context(), old[0].app, old[0].at.Sequence); err != nil {
		t.Fatal(err)
	}
	if r.held(otherApp("c")).Sequence() != records["c"].Sequence {
		t.Error("the entry is gone with the marker")
	}
	if logs.Len() > 0 {
		t.Errorf("it logs %v", logs.All())
	}
}

// A marker that was written by an earlier bridge goes too, and no start of a
// bridge or of its projection brings it back, nor is it missed.
func TestRemovedMarkersStayAway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := otherApp("a"), otherApp("b")
	gone := r.append(r.removalOn(a, r.append(r.eventOn(a, "1", nil))))
	r.append(r.eventOn(b, "2", nil))
	r.project()
	if got := r.keysIn(); !slices.Equal(got, []string{"a", "b"}) {
		t.Fatalf("the bucket holds %v", got)
	}
	r.bucket.MarkerMaxAge = time.Millisecond
	core, logs := observer.New(zap.WarnLevel)
	p, snap := r.newProjector(zap.New(core))
	stop := r.start(p, snap)
	defer func() { stop() }()
	r.poll("the marker stays", func() bool { return slices.Equal(r.keysIn(), []string{"b"}) })
	if d, differs := r.differs(a); differs {
		t.Errorf("verify says %v", d)
	}
	// It hears of the removal after the bucket has shown it.
	r.poll("the projector misses keys", func() bool { return r.bucketKeys() == keysOf(p) })

	r.startOver(p)

	stop()

	// Another bridge starts, and finds that the bucket does not know the app.
	p, snap = r.newProjector(zap.New(core))
	snap.Records[a] = &app.Record{Damaged: true}
	stop = r.start(p, snap)
	r.poll("it does not catch up", func() bool { return isClosed(p.CaughtUp) })
	if got := r.keysIn(); !slices.Equal(got, []string{"b"}) {
		t.Errorf("the bucket holds %v", got)
	}
	if got := taken(p)[a]; got != nil {
		t.Errorf("the record of a deleted app is %+v", got)
	}
	got, err := store.PublishedReader{Reader: store.NewReader(r.js, subjects.DefaultStream, p.subjects), Bucket: r.bucket}.PublishedOf(t.Context(), a)
	if err != nil || got.Exists() || got.Fence() != gone.Sequence {
		t.Errorf("got %+v, %v, want the delete at %d", got, err, gone.Sequence)
	}
	if got := keysOf(p); got != 1 {
		t.Errorf("%d keys are expected", got)
	}
	for _, text := range []string{"keys are missing in the bucket; writing them again", "restored a bucket entry"} {
		if logs.FilterMessage(text).Len() > 0 {
			t.Errorf("it logs that %s", text)
		}
	}

	stop()

	// Without that option it belongs there.
	r.bucket.MarkerMaxAge = 0
	if _, differs := r.differs(a); !differs {
		t.Error("verify does not miss the marker")
	}
	p, snap = r.newProjector(zap.New(core))
	snap.Records[a] = &app.Record{Damaged: true}
	stop = r.start(p, snap)
	r.poll("the marker is not restored", func() bool { return slices.Equal(r.keysIn(), []string{"a", "b"}) })
	stop()
}

// keysOf is how many keys a projector knows of.
func keysOf(p *Projector) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return uint64(len(p.keys))
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// What a projector holds does not grow with the apps that came and went.
func TestDeletedAppsAreForgotten(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.follow()
	last := r.append(r.eventOn(otherApp("alive"), "1", nil))
	for i := range 50 {
		id := otherApp(fmt.Sprint("a", i))
		last = r.append(r.removalOn(id, r.append(r.eventOn(id, fmt.Sprint(i+2), nil))))
	}
	r.reflects(p, last.Sequence)
	r.poll("writes are open", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.flying)+len(p.refused) == 0
	})
	if got := keysOf(p); got != 1 {
		t.Errorf("the projector knows %d keys, want 1", got)
	}
}
