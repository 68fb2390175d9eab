package e2e_test

import "testing"

// A leader that found an altered event loses the Lease, and the fault ends under its successor. It
// stands by, and is ready.
func TestAlteredEventsOfAFormerLeader(t *testing.T) {
	t.Parallel()
	w := newMapped(t)
	r := w.launch(w.elected("first"), nil)
	r.waitReady()
	w.create(w.app("old"))
	w.waitFor(0, "created old")
	w.maps(`flyte.apps.events.vision.development.new.*: "flyte.apps.events.renamed.{{wildcard(1)}}"`)
	w.create(w.app("new"))
	r.notReady("was acknowledged at sequence")
	w.handLease("somebody")
	eventually(t, "it stands by", func() error {
		if r.metric("appbridge_leader") > 0 {
			return errNotYet
		}
		return nil
	})
	w.maps("")
	// Of the successor, which the Lease names and the test stands for.
	eventually(t, "it is ready", func() error {
		w.handLease("somebody")
		return r.bridge.Ready()
	})
}
