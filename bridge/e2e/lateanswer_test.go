package e2e_test

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
)

// The answer to a read of an app's last event comes late: another bridge has published the app, and
// changes of it, since the server answered that there is none. Nothing is published twice, out of order,
// or behind another event than the app's last one.
func TestLateAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	first, second := w.natsGate(), w.natsGate()
	w.startAt(first, cfg)
	w.create(w.app("zero"))
	w.waitFor(0, "created zero")
	late := w.startAt(second, cfg)

	appends := first.holdAt("PUB flyte.apps.events.")
	reads := second.holdAt("$JS.API.STREAM.MSG.GET." + cfg.Stream)
	svc := w.create(w.app("one"))
	reached(t, "the first appends", appends)
	reached(t, "the second reads the last event of the app", reads)
	answers := must[*nats.Subscription](t)(w.nc.SubscribeSync("_INBOX.>"))
	must[any](t)(nil, w.nc.Flush())
	second.deafen()
	second.release()
	eventually(t, "the server has answered that there is none", func() error {
		for {
			switch m, err := answers.NextMsg(quick); {
			case err != nil:
				return err
			case strings.Contains(string(m.Data), `"err_code":10037`):
				return nil
			}
		}
	})
	first.release()
	w.waitFor(0, "created zero", "created one")
	svc = must[*servingv1.Service](t)(w.Progressing(t.Context(), svc))
	w.waitFor(0, "created zero", "created one", "updated one")
	second.hear()
	w.create(w.app("two"))
	w.waitFor(0, "created zero", "created one", "updated one", "created two")
	late.waitReady()
	must[*servingv1.Service](t)(w.Failed(t.Context(), svc, "Broken", "it is"))
	events := w.waitFor(0, "created zero", "created one", "updated one", "created two", "updated one")
	w.checkHeaders(events)
	w.converged(events)
	must[any](t)(nil, late.stop())
	w.endsAt(events[len(events)-1].sequence)
	noStateTwice(t, w.events(0))
	if got := events[1].header(subjects.HeaderPreviousSequence); got != "" {
		t.Errorf("the app's first event follows %s", got)
	}
}
