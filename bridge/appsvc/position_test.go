package appsvc

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

func TestPositionCatchesUp(t *testing.T) {
	a, b := positionApp("a"), positionApp("b")
	r := newPositionRig(t)
	r.makeStream(nil)
	r.created(a, "u1", 10)
	r.updated(a, "u1", 11)
	r.deleted(a, "u1", 11, 12)
	r.created(a, "u2", 20)
	r.created(b, "u3", 21)
	r.updated(a, "u2", 22)
	last := r.updated(a, "u2", 23)
	r.reflects(0)
	r.cache.sync(errors.New("not yet"))
	r.follow()
	r.want(last, 0)
	r.cache.sync(nil)
	r.reflects(0)
	r.cache.show(b, "u3", 21, "", 0)
	r.reflects(0) // of a it is unknown what is missing
	r.cache.show(a, "u2", 22, "", 0)
	r.reflects(0)
	r.cache.show(a, "u2", 23, "", 0)
	r.reflects(last)
}

// What the cache shows of an app when the stream is caught up with bounds what
// can be missing.
func TestPositionCatchesUpWithLag(t *testing.T) {
	a := positionApp("a")
	r := newPositionRig(t)
	r.makeStream(nil)
	created := r.created(a, "u1", 10)
	r.updated(a, "u1", 11)
	last := r.updated(a, "u1", 12)
	r.cache.show(a, "u1", 10, "", 0)
	r.follow()
	r.want(last, created)
	r.cache.show(a, "u1", 11, "", 0)
	r.reflects(created)
	r.cache.show(a, "u1", 12, "", 0)
	r.reflects(last)
}

func TestPositionEmptyAndMissing(t *testing.T) {
	a := positionApp("a")
	r := newPositionRig(t)
	r.follow()
	r.reflects(0)
	r.makeStream(nil)
	r.followed(0)
	r.cache.show(a, "u1", 10, "", 0)
	r.want(r.created(a, "u1", 10), 1)

	// Of a stream whose events were purged the end counts all the same.
	stream, err := r.js.Stream(t.Context(), subjects.DefaultStream)
	if err != nil {
		t.Fatal(err)
	}
	last := r.created(positionApp("b"), "u2", 11)
	r.followed(last)
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.p = newPosition(r.js, subjects.DefaultStream, r.names, r.cache, nil, zap.NewNop())
	r.follow()
	r.want(last, last)
}

// The stages of one app or two while the stream is followed.
func TestPositionLags(t *testing.T) {
	a, b := positionApp("a"), positionApp("b")
	r := newPositionRig(t)
	r.makeStream(nil)
	r.follow()
	r.followed(0)
	c := r.cache

	first := r.created(a, "u1", 10)
	r.want(first, first-1)
	c.show(b, "u9", 11, "", 0)
	r.reflects(first - 1)
	r.want(r.created(b, "u9", 11), first-1) // b is shown, a is not
	r.want(r.updated(a, "u1", 12), first-1)
	c.show(a, "u1", 10, "", 0)
	r.reflects(first - 1) // which of a's events is missing is not kept
	c.show(a, "u1", 12, "", 0)
	last := r.updated(b, "u9", 11)
	r.want(last, last)

	// A delete before its create was seen.
	x := positionApp("x")
	gap := r.created(x, "u3", 20)
	r.want(gap, gap-1)
	r.want(r.deleted(x, "u3", 20, 22), gap-1) // not there, and may yet come
	c.show(x, "u3", 20, "", 0)
	r.reflects(gap - 1)
	c.hide(x, 21)
	r.reflects(gap - 1)
	c.list(positionDomain, 22)
	r.reflects(gap + 1)

	// The cache is ahead: the app is there again, or gone.
	c.show(x, "u4", 30, "", 0)
	c.hide(x, 31)
	ahead := r.created(x, "u4", 30)
	r.want(ahead, ahead-1)
	r.want(r.deleted(x, "u4", 30, 31), ahead+1)
	c.show(x, "u5", 40, "", 0)
	r.want(r.created(x, "u5", 40), ahead+2)
	c.show(x, "u6", 50, "", 0)
	r.want(r.deleted(x, "u5", 40, 45), ahead+3)

	// Another object's later version does not show this one's event.
	c.show(x, "u6", 60, "", 0)
	other := r.created(x, "u7", 55)
	r.want(other, other-1)
	r.want(r.updated(x, "u6", 60), other+1)
}

// An object that becomes the app again, unchanged, after another was it.
func TestPositionSameStateTwice(t *testing.T) {
	a := positionApp("a")
	r := newPositionRig(t)
	r.makeStream(nil)
	r.cache.show(a, "u1", 20, "", 0)
	r.follow()
	first := r.created(a, "u1", 20)
	r.want(first, first)
	r.deleted(a, "u1", 20, 0)
	r.created(a, "u2", 45)
	r.deleted(a, "u2", 45, 51)
	last := r.created(a, "u1", 20)
	r.want(last, first) // the cache is at the start of this, not at its end
	r.cache.show(a, "u2", 45, "", 0)
	r.reflects(first)
	r.cache.show(a, "u1", 20, "", 0)
	r.cache.list(positionDomain, 51)
	r.reflects(last)
}

func TestPositionUnobservedDelete(t *testing.T) {
	a := positionApp("a")
	r := newPositionRig(t)
	r.makeStream(nil)
	r.follow()
	r.cache.show(a, "u1", 10, "", 0)
	first := r.created(a, "u1", 10)
	r.want(first, first)
	// A later state that the publisher never saw.
	r.cache.show(a, "u1", 15, "", 0)
	last := r.deleted(a, "u1", 10, 0)
	r.want(last, first)
	r.cache.hide(a, 16)
	r.reflects(last)
}

func TestPositionRevision(t *testing.T) {
	a := positionApp("a")
	r := newPositionRig(t)
	r.makeStream(nil)
	r.follow()
	r.cache.show(a, "u1", 10, "", 0)
	first := r.created(a, "u1", 10)
	r.want(first, first)
	counted := r.publish(a, subjects.Updated, positionHeader("u1", 10, "12", 0))
	r.want(counted, first)
	r.cache.show(a, "u1", 10, "11", 1)
	r.reflects(first)
	r.cache.show(a, "u1", 10, "12", 2)
	r.reflects(counted)
	// The Revision goes, and its count with it.
	gone := r.updated(a, "u1", 10)
	r.want(gone, counted)
	r.cache.show(a, "u1", 10, "", 0)
	r.reflects(gone)
	// A newer state of the Service needs no look at the Revision.
	late := r.publish(a, subjects.Updated, positionHeader("u1", 10, "13", 0))
	r.want(late, gone)
	r.cache.show(a, "u1", 14, "", 0)
	r.reflects(late)
}

// Deletes of long ago are the last events of their apps. A list that was taken
// after them shows them, however old what it holds is.
func TestPositionDeletesOfLongAgo(t *testing.T) {
	a, b := positionApp("a"), positionApp("b")
	r := newPositionRig(t)
	r.makeStream(nil)
	r.created(a, "u1", 10)
	r.created(b, "u2", 11)
	last := r.deleted(b, "u2", 11, 90)
	r.cache.show(a, "u1", 10, "", 0)
	r.follow()
	r.want(last, 0)
	r.cache.list(positionDomain, 90)
	r.reflects(last)
}

// Versions of a cluster history that is over say nothing.
func TestPositionOtherHistory(t *testing.T) {
	a, b, c := positionApp("a"), positionApp("b"), positionApp("c")
	r := newPositionRig(t)
	r.makeStream(nil)
	r.created(a, "u1", 9000)
	r.deleted(b, "u2", 8000, 9500)
	reset := r.created(c, "u3", 9600)
	r.cache.show(a, "u1", 100, "", 0)
	r.follow()
	r.want(reset, 0)
	r.makeStream(map[string]string{subjects.MetadataResetSequence: fmt.Sprint(reset)})
	r.updated(a, "u1", 100)
	missed := positionHeader("u3", 9600, "", 0)
	missed.Set(subjects.HeaderPreviousSequence, fmt.Sprint(reset))
	last := r.publish(c, subjects.Deleted, missed)
	r.p = newPosition(r.js, subjects.DefaultStream, r.names, r.cache, nil, zap.NewNop())
	r.follow()
	r.want(last, last)
}

func TestPositionForeignMessages(t *testing.T) {
	a := positionApp("a")
	r := newPositionRig(t)
	r.makeStream(nil)
	r.send(&nats.Msg{Subject: subjects.DefaultPrefix + ".events.no.app"})
	r.follow()
	r.want(1, 1)
	r.want(r.publish(a, subjects.Updated, nil), 2)
	r.want(r.created(a, "u1", 10), 2)
	r.want(r.send(&nats.Msg{Subject: subjects.DefaultPrefix + ".events.no.app.else"}), 2)
	odd := positionHeader("u2", 1, "", 0)
	odd.Set(subjects.HeaderResourceVersion, "0x1")
	r.publish(positionApp("odd"), subjects.Created, odd) // does not compare
	r.cache.show(a, "u1", 10, "", 0)
	r.want(5, 4)
}

func TestPositionStreamMadeAnew(t *testing.T) {
	a, b := positionApp("a"), positionApp("b")
	r := newPositionRig(t)
	r.makeStream(nil)
	r.cache.show(a, "u1", 10, "", 0)
	for range 9 {
		r.created(a, "u1", 10)
	}
	r.follow()
	r.want(9, 9)
	remake := func() { // at once: the client finds a stream again
		t.Helper()
		if err := r.js.DeleteStream(t.Context(), subjects.DefaultStream); err != nil {
			t.Fatal(err)
		}
		r.makeStream(nil)
	}
	remake()
	r.followed(0)
	r.created(a, "u1", 10)
	r.want(1, 1)

	// The client's new consumer begins at the second event, and is never quiet.
	remake()
	r.created(b, "u2", 11)
	suite.Eventually(t, positionLook/2, "the first event of the new stream is known", func() error {
		r.created(a, "u1", 10)
		r.p.mu.Lock()
		defer r.p.mu.Unlock()
		if !r.p.caughtUp || r.p.behind[b] == nil {
			return fmt.Errorf("caught up: %v, behind: %v", r.p.caughtUp, r.p.behind)
		}
		return nil
	})

	if err := r.js.DeleteStream(t.Context(), subjects.DefaultStream); err != nil {
		t.Fatal(err)
	}
	suite.Eventually(t, positionSoon, "nothing is known of a stream that is gone", func() error {
		if got := r.p.reflected(); got != 0 {
			return fmt.Errorf("reflects %d", got)
		}
		return nil
	})
	r.makeStream(nil)
	r.want(r.created(a, "u1", 11), 0)
	r.cache.show(a, "u1", 11, "", 0)
	r.reflects(1)
}

func TestPositionServerRestarts(t *testing.T) {
	a := positionApp("a")
	r := newPositionRig(t)
	r.makeStream(nil)
	r.cache.show(a, "u1", 10, "", 0)
	r.created(a, "u1", 10)
	r.follow()
	r.want(1, 1)
	for i, end := range []func(int) error{r.server.Kill, r.server.Stop} {
		if err := end(0); err != nil {
			t.Fatal(err)
		}
		if err := r.server.Start(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		version, sequence := 11+i, uint64(2+i)
		suite.Eventually(t, positionSoon, "publish after a restart", func() error {
			msg := &nats.Msg{Subject: subjects.DefaultPrefix + ".events.shop.production.a.updated", Header: positionHeader("u1", version, "", 0)}
			_, err := r.js.PublishMsg(t.Context(), msg, jetstream.WithMsgID(fmt.Sprint(version)))
			return err
		})
		r.followed(sequence)
		if got := r.p.reflected(); got >= sequence {
			t.Errorf("reflects %d, but not event %d", got, sequence)
		}
		r.cache.show(a, "u1", version, "", 0)
		r.want(sequence, sequence)
	}
}
