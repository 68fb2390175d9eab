package publisher

import (
	"strconv"
	"testing"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

// What must stay stays: apps that exist, that have something waiting or under way, whose delete the
// bucket does not reflect, and the newest ones.
func TestEvict(t *testing.T) {
	gone := func(sequence uint64) *app.Record {
		return &app.Record{Kind: subjects.Deleted, Sequence: sequence, UID: "u"}
	}
	for _, test := range []struct {
		name  string
		play  func(*Queue)
		stays bool
	}{
		{"deleted, and reflected", func(q *Queue) { q.Load(testID, gone(5)) }, false},
		{"nothing but a foreign message", func(q *Queue) { q.noteForeign(testID, 5) }, false},
		{"without an event", func(q *Queue) { q.Load(testID, nil) }, false},
		{"not reflected yet", func(q *Queue) { q.Load(testID, gone(6)) }, true},
		{"it exists", func(q *Queue) { q.Load(testID, publishedAt("u", 3)) }, true},
		{"created again", func(q *Queue) {
			q.Load(testID, gone(5))
			script(q, testID, "c")
		}, true},
		{"created again, under way", func(q *Queue) {
			q.Load(testID, gone(5))
			script(q, testID, "c")
			q.next()
		}, true},
		{"created again, under way when everything was dropped", func(q *Queue) {
			q.Load(testID, gone(5))
			script(q, testID, "c")
			q.next()
			q.mu.Lock()
			q.drop()
			q.mu.Unlock()
		}, true},
		{"created and deleted again", func(q *Queue) {
			q.Load(testID, gone(5))
			script(q, testID, "cd")
			q.next()
			q.done(testID, publishedAt("u1", 8))
			q.next()
			q.done(testID, gone(9))
		}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			q := testQueue(10, 1<<30)
			defer q.close()
			test.play(q)
			q.forget(5)
			if a := q.apps[testID]; (a != nil) != test.stays {
				t.Errorf("the queue knows %+v", a)
			}
			if fence, pending := q.Fence(testID); !test.stays && (fence != 0 || pending) {
				t.Errorf("an evicted app has fence %d, pending %t: another writer's event would pass", fence, pending)
			}
			// It takes what comes, and reads before it publishes.
			if length, _ := q.Oldest(); !test.stays && length != 0 {
				t.Errorf("%d changes wait", length)
			}
			script(q, testID, "c")
			if a := q.apps[testID]; a != nil && a.unread != !test.stays {
				t.Errorf("unread is %t", a.unread)
			}
			if q.Overflowed() {
				q.done(testID, nil) // what the publisher still had
			}
		})
	}
	q := testQueue(10, 1<<30)
	for i := range recentlyDeleted + 10 {
		q.Load(appID(strconv.Itoa(i)), gone(uint64(i+1)))
	}
	q.Evict(1 << 40)
	if len(q.apps) != recentlyDeleted || q.apps[appID("9")] != nil || q.apps[appID("10")] == nil {
		t.Errorf("%d apps are left, want the newest %d", len(q.apps), recentlyDeleted)
	}
}

// The bucket lost the key of an app of which the queue knows nothing. Its very state is not
// published a second time; a later one of the same object is an update, and one of another object
// is refused.
func TestUnreadAppThatExists(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, version, want string }{
		{"the same state", "1", "a/created/1"},
		{"a later state", "2", "a/created/1 a/updated/2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newStage(t)
			observe(r.pub, "a", "1", true)
			if err := r.publish(r.pub); err != nil {
				t.Fatal(err)
			}
			p := r.next()
			var missing []subjects.AppID
			p.cfg.KeyMissing = func(id subjects.AppID) { missing = append(missing, id) }
			observe(p, "a", test.version, true)
			if err := r.publish(p); err != nil {
				t.Fatal(err)
			}
			got := ""
			for i, line := range r.story() {
				if i > 0 {
					got += " "
				}
				got += line
			}
			if got != test.want || (len(missing) == 1) != (test.version == "1") {
				t.Errorf("got %s, missing %v", got, missing)
			}
			if known := publishedOf(p, "a"); !known.Exists() || known.ResourceVersion != test.version {
				t.Errorf("the record is %+v", known)
			}
		})
	}
}
