package e2e_test

import (
	"errors"
	"fmt"
	"testing"

	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge/audit"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// elsewhere runs the server at another address, which no bridge knows, while do works on its storage.
func (w *world) elsewhere(do func()) {
	w.t.Helper()
	nc, js := w.nc, w.js
	w.startNATS(suite.FreePort(w.t))
	w.connect()
	do()
	w.nc.Close()
	w.nc, w.js = nc, js
	w.downNATS()
}

// The stream comes back without its last events, and before the bridge reaches it, other messages take
// their sequences: it ends where it ended. What the cluster has is in the stream again.
func TestSameEndOfAnotherHistory(t *testing.T) {
	t.Parallel()
	for name, both := range map[string]bool{"the stream": false, "stream and bucket": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			cfg := w.audited()
			r := w.start(cfg)
			one := w.create(w.app("one"))
			w.create(w.app("two"))
			w.converged(w.waitFor(0, "created one", "created two"))
			port := w.port()
			w.downNATS()
			copied := w.copyStorage()
			w.upNATS(port)
			r.waitReady()
			must[*servingv1.Service](t)(w.Progressing(t.Context(), one))
			w.create(w.app("three"))
			w.waitFor(0, "created one", "created two", "updated one", "created three")
			w.converged(w.events(0))
			bucket := w.streamState(subjects.BucketStream(cfg.Bucket)).LastSeq

			w.downNATS()
			w.restore(copied, subjects.DefaultStream)
			if both {
				w.restore(copied, subjects.BucketStream(cfg.Bucket))
			}
			w.elsewhere(func() {
				w.plant("flyte.apps.events.foreign", nil, "")
				w.plant("flyte.apps.events.foreign", nil, "")
				for both && w.streamState(subjects.BucketStream(cfg.Bucket)).LastSeq < bucket {
					two := w.entries()[w.app("two").ID()]
					w.plant(two.Subject, told(two.Header), string(two.Data))
				}
			})
			w.upNATS(port)
			if !both { // the bucket shows what the stream lost
				r.notReady("do not belong together", "nats kv del flyte-apps")
				if last := w.lastSequence(); last != 4 {
					t.Errorf("the stream ends at %d", last)
				}
				must[any](t)(nil, w.js.DeleteKeyValue(t.Context(), cfg.Bucket))
			}
			eventually(t, "stream and bucket are what the cluster has", func() error {
				report, err := w.verify(cfg, audit.Options{ConfirmFor: quick})
				if err != nil || len(report.Differences) > 0 {
					return errors.Join(fmt.Errorf("verify finds %v", report.Differences), err, r.bridge.Ready())
				}
				return r.bridge.Ready()
			})
		})
	}
}
