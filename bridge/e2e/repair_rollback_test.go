package e2e_test

import (
	"fmt"
	"testing"
	"time"

	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge/audit"
	"github.com/appbridge/appbridge/subjects"
)

// Stream and bucket come back shorter while the elected bridge is down, and somebody repairs before
// it is up again. The Lease's checkpoint knows what was acknowledged: no sequence is used twice.
func TestRepairAfterARollback(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	cfg := w.elected("first")
	changed := w.create(w.app("changed"))
	w.create(w.app("still"))
	r := w.start(cfg)
	port := w.port()
	w.waitFor(0, "created changed", "created still")
	w.downNATS()
	copied := w.copyStorage()
	w.upNATS(port)
	r.waitReady()
	for i := range 4 {
		must[*servingv1.Service](t)(w.Failed(ctx, changed, "Broken", fmt.Sprint("try ", i)))
	}
	eventually(t, "the stream ends at 6", func() error {
		if now := w.lastSequence(); now != 6 {
			return fmt.Errorf("it ends at %d", now)
		}
		return nil
	})
	must[any](t)(nil, r.stop())
	before := w.messages(subjects.DefaultStream)

	w.downNATS()
	w.restore(copied, subjects.DefaultStream, subjects.BucketStream(subjects.DefaultBucket))
	w.upNATS(port)
	report, err := w.verify(cfg, audit.Options{ConfirmFor: time.Second, Timeout: patience, Repair: true})
	t.Logf("verify --repair: %v, %+v", err, report.Repairs)
	for sequence, now := range w.messages(subjects.DefaultStream) {
		if then := before[sequence]; then != nil && !sameMessage(then, now) {
			t.Errorf("sequence %d was %s %s, and is %s %s after the repair", sequence, then.Subject, then.Header.Get(subjects.CEID), now.Subject, now.Header.Get(subjects.CEID))
		}
	}
}
