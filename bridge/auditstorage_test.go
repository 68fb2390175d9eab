package bridge

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/audit"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// testServer is a JetStream server of this process.
func testServer(t testing.TB) string {
	t.Helper()
	return suite.NATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()}).ClientURL()
}

// Each hand in stream or bucket is found, as exactly one difference, and healed; what is published
// is what a removed event owes, and nothing else.
func TestAuditHands(t *testing.T) {
	t.Parallel()
	l := newLively(t, testServer(t))
	l.shows("one")
	gone := l.shows("gone")
	l.shows("two")
	l.shows("three")
	l.catchesUp()
	first := l.entry("one")
	l.shows("one")
	l.shows("three", func(s *kservice.Service) { s.Generation++ })
	l.deletes(gone)
	l.catchesUp()
	if _, words := l.finds(); len(words) > 0 || len(l.screens()) > 0 {
		t.Fatalf("found %q where nobody was", words)
	}
	stream, bucket := l.stream(subjects.DefaultStream), l.stream(subjects.BucketStream(subjects.DefaultBucket))
	remove := func(sequence uint64) {
		t.Helper()
		if err := stream.DeleteMsg(t.Context(), sequence); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name      string
		hand      func()
		found     []string
		published []string
	}{
		{"deletes an entry", func() {
			kv, err := l.js.KeyValue(t.Context(), subjects.DefaultBucket)
			if err == nil {
				err = kv.Delete(t.Context(), "p.d.one")
			}
			if err != nil {
				t.Fatal(err)
			}
		}, []string{"one marker_for_entry bucket"}, nil},
		{"purges a key", func() {
			if err := bucket.Purge(t.Context(), jetstream.WithPurgeSubject(l.key("two"))); err != nil {
				t.Fatal(err)
			}
		}, []string{"two missing_entry bucket"}, nil},
		{"purges the key of a delete marker", func() {
			if err := bucket.Purge(t.Context(), jetstream.WithPurgeSubject(l.key("gone"))); err != nil {
				t.Fatal(err)
			}
		}, []string{"gone missing_marker bucket"}, nil},
		{"edits a body under its right headers", func() {
			m := l.entry("two")
			l.forge(l.key("two"), m, bytes.Replace(m.Data, []byte("example.com"), []byte("example.org"), 1))
		}, []string{"two bucket_other_app bucket"}, nil},
		{"edits a header", func() {
			m := l.entry("two")
			m.Header.Set(subjects.CETime, "2026-01-01T00:00:00Z")
			l.forge(l.key("two"), m, m.Data)
		}, []string{"two bucket_headers bucket"}, nil},
		{"writes what is no entry", func() { l.forge(l.key("two"), &store.Message{}, []byte("x")) }, []string{"two damaged_entry bucket"}, nil},
		{"forges an entry of an app that never was", func() { m := l.entry("two"); l.forge(l.key("ghost"), m, m.Data) }, []string{"ghost ghost_entry bucket"}, nil},
		{"puts an old entry back", func() { l.forge(l.key("one"), first, first.Data) }, []string{"one bucket_behind bucket"}, nil},
		{"puts the entry of a deleted app back", func() { l.forge(l.key("gone"), first, first.Data) }, []string{"gone entry_for_marker bucket"}, nil},
		{"removes the last event of an app", func() { remove(l.last("one").Sequence()) }, []string{"one removed_event stream"}, []string{"updated one"}},
		{"removes the only event of an app", func() { remove(l.last("two").Sequence()) }, []string{"two removed_event stream"}, []string{"created two"}},
		{"removes the last event of a deleted app", func() { remove(l.last("gone").Sequence()) }, []string{"gone missing_deleted stream", "gone bucket_ahead bucket"}, []string{"deleted gone"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			outer := l.t
			l.t = t
			defer func() { l.t = outer }()
			end := l.lastSequence()
			test.hand()
			if test.published != nil {
				end = l.lastSequence()
			}
			found, words := l.finds()
			if !slices.Equal(words, test.found) {
				t.Fatalf("found %q, want %q", words, test.found)
			}
			if _, again := l.finds(); !slices.Equal(again, words) {
				t.Errorf("a second look found %q", again)
			}
			l.heals(found)
			if got := l.kindsFrom(end); !slices.Equal(got, test.published) {
				t.Errorf("published %q, want %q", got, test.published)
			}
		})
	}
}

// heals repairs what was found and waits until nothing is left.
func (l *lively) heals(found []audit.Difference) {
	l.t.Helper()
	if err := l.audit.Repair(l.t.Context(), found); err != nil {
		l.t.Fatal(err)
	}
	if slices.ContainsFunc(found, func(d audit.Difference) bool { return d.Side == plan.SideStream }) {
		if err := l.end(); err == nil || !strings.Contains(err.Error(), errAudit.Error()) {
			l.t.Logf("the session ended with %v", err)
		}
		l.begin()
	}
	poll(l.t, "nothing is left", func() error {
		l.catchesUp()
		names := []string{}
		for _, d := range found {
			names = append(names, d.Subject())
		}
		looked, err := l.audit.Look(l.t.Context(), names)
		if err != nil {
			return err
		}
		if len(looked.Findings) > 0 {
			return &app.ConfigError{Problem: looked.Findings[0].Detail}
		}
		if len(looked.Changing) > 0 {
			return errAudit
		}
		return nil
	})
	if _, words := l.finds(); len(words) > 0 {
		l.t.Errorf("after the repair there is %q", words)
	}
}

// A foreign key is reported and left.
func TestAuditForeignKey(t *testing.T) {
	t.Parallel()
	l := newLively(t, testServer(t))
	l.shows("one")
	l.catchesUp()
	l.forge(subjects.BucketSubject(subjects.DefaultBucket, "x"), &store.Message{}, []byte("x"))
	found, words := l.finds()
	if !slices.Equal(words, []string{"x foreign_key bucket"}) || !found[0].Leave() {
		t.Errorf("found %q, %+v", words, found)
	}
}
