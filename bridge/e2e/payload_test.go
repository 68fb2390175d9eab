package e2e_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
)

// A server lowers max_payload by a reload and reports that to nobody: it closes the connection over
// the next message that is larger, and the client does not open it again. The process goes on with
// another connection, and publishes the message smaller.
func TestMaxPayloadLowered(t *testing.T) {
	t.Parallel()
	w := newRights(t)
	path := filepath.Join(must[string](t)(w.Dir("payload")), "appbridge")
	must[any](t)(nil, kubesuite.Build(t.Context(), path))
	service, ctx := must[*servingv1.Service](t), t.Context()
	payload := func(bytes int) {
		t.Helper()
		w.file.Reload(t, w.settings(everyRight, fmt.Sprintf("max_payload: %d", bytes)))
	}
	payload(1 << 20)
	r := w.serve(program{name: "payload", path: path}, w.options(w.server.ClientURL())...)
	svc := w.create(w.app("fat"))
	w.waitFor(0, "created fat")
	for i, limit := range []int{64 << 10, 32 << 10, 16 << 10} {
		svc = service(w.Failed(ctx, svc, "Broken", fmt.Sprintf("%d: %s", limit, strings.Repeat("x", limit*6/10))))
		w.published(2 + 2*i)
		payload(limit)
		// With the old App it is larger than the new limit, and not larger than the one before.
		svc = service(w.Failed(ctx, svc, "Broken", fmt.Sprintf("below %d: %s", limit, strings.Repeat("x", limit*6/10))))
		events := w.published(3 + 2*i)
		if got := events[len(events)-1].header(subjects.HeaderTruncated); got != subjects.TruncatedOldApp {
			t.Errorf("the event has truncated %q, want %q", got, subjects.TruncatedOldApp)
		}
	}
	select {
	case <-r.Done():
		t.Fatal("the process has ended")
	default:
	}
	eventually(t, "it is ready", func() error {
		body, status, err := r.Get(ctx, "/readyz")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%s", body)
		}
		return err
	})
	w.converged(w.events(0))
}

// published waits for so many events.
func (w *world) published(n int) []stored {
	w.t.Helper()
	var events []stored
	eventually(w.t, fmt.Sprint(n, " events"), func() error {
		if events = w.events(0); len(events) != n {
			return fmt.Errorf("%d", len(events))
		}
		return nil
	})
	return events
}
