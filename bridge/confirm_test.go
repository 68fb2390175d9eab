package bridge

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// stopped ends the session; hands work on the storage; begin follows.
func (l *lively) stopped(hands func()) {
	l.t.Helper()
	if err := l.end(); err != nil {
		l.t.Error(err)
	}
	l.bridge.memory.pending.Store(nil) // as another process
	hands()
	l.begin()
	l.catchesUp()
}

func (l *lively) purgedKey(name string) error {
	_, err := store.LastMessage(l.t.Context(), l.bridge.js, subjects.BucketStream(subjects.DefaultBucket), l.key(name))
	if err == nil {
		return fmt.Errorf("the key is there")
	}
	return nil
}

func (l *lively) quiet() {
	l.t.Helper()
	poll(l.t, "nothing is left", func() error {
		looked, err := l.audit.Look(l.t.Context(), l.screens())
		if err != nil {
			return err
		}
		if len(looked.Findings) > 0 {
			return fmt.Errorf("%s", looked.Findings[0])
		}
		return nil
	})
}

func TestGhostWhileNoBridgeRan(t *testing.T) {
	t.Parallel()
	l := newLively(t, testServer(t))
	l.shows("one")
	l.shows("two")
	l.catchesUp()
	end := l.lastSequence()
	l.stopped(func() { m := l.entry("one"); l.forge(l.key("ghost"), m, m.Data) })
	if got := l.kindsFrom(end); len(got) > 0 {
		t.Errorf("published %q", got)
	}
	l.quiet()
	poll(t, "purged", func() error { return l.purgedKey("ghost") })
}

func TestGhostOfUnwatchedNamespace(t *testing.T) {
	t.Parallel()
	l := newLively(t, testServer(t))
	l.shows("one")
	l.shows("two")
	l.catchesUp()
	end := l.lastSequence()
	l.stopped(func() {
		m := l.entry("one")
		m.Header.Set(subjects.HeaderNamespace, "elsewhere")
		l.forge(l.key("ghost"), m, m.Data)
	})
	found, words := l.finds()
	t.Log(words)
	if len(found) > 0 {
		l.heals(found)
	}
	if got := l.kindsFrom(end); len(got) > 0 {
		t.Errorf("published %q", got)
	}
}

func TestEntryAheadWhileNoBridgeRan(t *testing.T) {
	t.Parallel()
	l := newLively(t, testServer(t))
	l.shows("one")
	l.shows("two")
	l.shows("three")
	l.catchesUp()
	end := l.lastSequence()
	l.stopped(func() {
		m := l.entry("one")
		m.Header.Set(subjects.HeaderEventSequence, "2")
		l.forge(l.key("one"), m, bytes.Replace(m.Data, []byte("example.com"), []byte("example.org"), 1))
	})
	if got := l.kindsFrom(end); len(got) > 0 {
		t.Errorf("published %q", got)
	}
	l.quiet()
}

// The entry says to reflect another app's event, and its own app is gone meanwhile.
func TestEntryAheadOfDeletedApp(t *testing.T) {
	t.Parallel()
	l := newLively(t, testServer(t))
	one := l.shows("one")
	l.shows("two")
	l.shows("three")
	l.catchesUp()
	end := l.lastSequence()
	l.stopped(func() {
		m := l.entry("one")
		m.Header.Set(subjects.HeaderEventSequence, "2")
		l.forge(l.key("one"), m, m.Data)
		l.deletes(one)
	})
	if got := l.kindsFrom(end); !slices.Equal(got, []string{"deleted one"}) {
		t.Errorf("published %q", got)
	}
	m := l.last("one")
	if got := m.Header.Get(subjects.HeaderPreviousSequence); got != "1" {
		t.Errorf("the delete follows %s", got)
	}
	l.quiet()
}

// An app whose delete somebody removed from the stream, and that the bucket has the marker of, is created again.
func TestCreatedAfterRemovedDelete(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"running", "started"} {
		for _, uid := range []string{"same", "other"} {
			t.Run(how+" "+uid, func(t *testing.T) {
				t.Parallel()
				l := newLively(t, testServer(t))
				one := l.shows("one")
				l.catchesUp()
				l.deletes(one)
				l.catchesUp()
				l.shows("two")
				l.catchesUp()
				if how == "running" {
					for i := range 1000 {
						l.deletes(l.shows(fmt.Sprint("since", i)))
					}
					l.catchesUp()
				}
				end := l.lastSequence()
				create := func() {
					l.shows("one", func(s *kservice.Service) {
						if uid == "other" {
							s.UID = types.UID("u-again")
						}
					})
				}
				remove := func() {
					if err := l.stream(subjects.DefaultStream).DeleteMsg(t.Context(), l.last("one").Sequence()); err != nil {
						t.Fatal(err)
					}
				}
				if how == "running" {
					// As watchQueue does, which may run at any moment.
					written := l.session.projector.Position()
					l.session.projector.TakeTouched()
					l.session.queue.Evict(written)
					if slices.Contains(l.session.queue.Known(), otherApp("one")) {
						t.Fatal("the queue knows the app")
					}
					remove()
					create()
					done := make(chan struct{})
					go func() {
						defer close(done)
						poll(l.t, "catches up", func() error {
							if n, _ := l.session.queue.Oldest(); n > 0 {
								return fmt.Errorf("%d wait", n)
							}
							return nil
						})
					}()
					select {
					case <-done:
					case <-time.After(suite.Patience):
						err := l.end()
						t.Errorf("session ended: %v", err)
						l.begin()
						l.catchesUp()
					}
					l.catchesUp()
				} else {
					l.stopped(func() { remove(); create() })
				}
				if got := l.kindsFrom(end); !slices.Equal(got, []string{"created one"}) {
					t.Errorf("published %q", got)
				}
				l.quiet()
			})
		}
	}
}

// An entry that nobody published is removed, not written in the configured encoding.
func TestGhostInAnotherEncoding(t *testing.T) {
	t.Parallel()
	for i := range 10 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			l := newLively(t, testServer(t))
			l.shows("one")
			for i := range 50 {
				l.shows(fmt.Sprint("x", i))
			}
			l.catchesUp()
			m := l.entry("one")
			r, err := app.ReadEntry(m.Header, m.Data)
			if err != nil {
				t.Fatal(err)
			}
			binary, err := r.App.As(subjects.ContentTypeProtobuf)
			if err != nil {
				t.Fatal(err)
			}
			m.Header.Set(subjects.CEDataContentType, binary.ContentType())
			l.forge(l.key("ghost"), m, binary.Bytes())
			found, words := l.finds()
			if len(words) != 1 {
				t.Error(words)
			}
			if err := l.audit.Repair(t.Context(), found); err != nil {
				t.Fatal(err)
			}
			poll(t, "purged", func() error { return l.purgedKey("ghost") })
			l.session.projector.Distrust(false, otherApp("one"))
			if err := l.purgedKey("ghost"); err != nil {
				t.Error(err)
			}
			l.shows("one")
			l.catchesUp()
		})
	}
}
