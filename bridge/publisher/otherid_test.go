package publisher

import (
	"slices"
	"testing"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

// The stream holds an event of one app under the id of another app's next event, and rejects that id.
// It says nothing of the other app, whose change is published under another id.
func TestPublisherIDOfAnotherApp(t *testing.T) {
	t.Parallel()
	r := newStage(t)
	observe(r.pub, "one", "1", true)
	if err := r.publish(r.pub); err != nil {
		t.Fatal(err)
	}
	one := publishedOf(r.pub, "one")
	ev, err := testEncoder().Encode(appID("two"), app.NewUpsert(app.State{Service: serviceOf("two", "1")}, true), nil)
	if err != nil {
		t.Fatal(err)
	}
	ev.Msg.Header.Set(subjects.HeaderMsgID, subjects.MessageID{UID: "uid-one", ResourceVersion: "2", PreviousSequence: 1}.String())
	if _, err := r.js.PublishMsg(t.Context(), ev.Msg); err != nil {
		t.Fatal(err)
	}
	next := r.next() // a session that starts behind it
	next.queue.Load(appID("one"), one)
	observe(next, "one", "2", false)
	if err := r.publish(next); err != nil {
		t.Fatal(err)
	}
	if got, want := r.story(), []string{"one/created/1", "two/created/1", "one/updated/2"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
