package knative_test

import (
	"testing"

	"github.com/appbridge/appbridge/subjects"
)

// Changes come while Knative still works on those before: its controllers and the requests write
// the same objects at the same time.
func TestQuickChanges(t *testing.T) {
	t.Parallel()
	a := sharedWorld(t).app(t, "quick")
	a.deploys(spec(image("quick:1"), 1, 2), subjects.OutcomeCreated)
	a.deploys(spec(image("quick:2"), 1, 2), subjects.OutcomeUpdated)
	a.stops()
	a.deploys(spec(image("quick:3"), 2, 3), subjects.OutcomeUpdated)
	a.until("the last deploy serves", func(e event) bool {
		return e.status() == "ACTIVE" && e.replicas() == 2 && e.app.GetSpec().GetContainer().GetImage() == image("quick:3")
	})
	// Another object of the same name, before Kubernetes has removed what the first one owned.
	for range 3 {
		a.goes()
		a.deploys(spec(image("quick:4"), 1, 2), subjects.OutcomeCreated)
	}
	for range 3 {
		a.isGone()
	}
	a.becomes(state{status: "ACTIVE", revision: 1, replicas: 1})
	a.goes()
	a.isGone()
	a.leavesNothing()
	a.judged()
}
