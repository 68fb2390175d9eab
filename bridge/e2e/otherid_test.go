package e2e_test

import (
	"maps"
	"strings"
	"testing"

	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
)

// The stream holds an event of one app under the id of another app's next event, and rejects that id.
// Of the other app the change is published, and nothing else.
func TestIDOfAnotherApp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	one := w.create(w.app("one"))
	w.waitFor(0, "created one")
	w.create(w.app("two"))
	two := w.waitFor(0, "created one", "created two")[1].msg
	must[any](t)(nil, r.stop())
	one = must[*servingv1.Service](t)(w.Progressing(t.Context(), one))
	h := maps.Clone(two.Header)
	maps.DeleteFunc(h, func(name string, _ []string) bool { return strings.HasPrefix(name, "Nats-") })
	h.Set(subjects.HeaderMsgID, subjects.MessageID{UID: string(one.UID), ResourceVersion: one.ResourceVersion, PreviousSequence: 1}.String())
	w.plant(two.Subject, h, string(two.Data))
	w.start(cfg)
	events := w.waitFor(0, "created one", "created two", "created two", "updated one")
	w.converged(events)
}
