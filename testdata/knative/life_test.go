package knative_test

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// unresolvable is an image of a registry that nobody runs: Knative cannot find its digest.
const unresolvable = "127.0.0.1:1/shop/missing:1"

// loads has the autoscaler see requests for so many pods of a Revision.
func (a *app) loads(revision, pods int) {
	a.t.Helper()
	if err := a.knative.Load(a.t.Context(), a.namespace, a.revisionName(revision), pods); err != nil {
		a.t.Fatal(err)
	}
}

// An app from its first deploy to its end.
func TestLife(t *testing.T) {
	t.Parallel()
	a := sharedWorld(t).app(t, "life")
	a.deploys(spec(image("life:1"), 1, 5), subjects.OutcomeCreated)
	a.becomes(state{status: "ACTIVE", revision: 1, replicas: 1})
	a.serves(1)
	a.deploys(spec(image("life:1"), 1, 5), subjects.OutcomeUnchanged)

	a.deploys(spec(image("life:2"), 1, 5), subjects.OutcomeUpdated)
	e := a.becomes(state{status: "ACTIVE", revision: 2, replicas: 1})
	if got, want := e.app.GetSpec().GetContainer().GetImage(), image("life:2"); got != want {
		t.Errorf("the event shows image %s, want %s", got, want)
	}
	a.serves(2)

	for _, replicas := range []int{3, 5, 1} {
		a.loads(2, replicas)
		a.becomes(state{status: "ACTIVE", revision: 2, replicas: uint32(replicas)})
	}
	a.goes()
	a.isGone()
	a.leavesNothing()
	a.judged()
}

// An app without requests has no pods, and is active all the same.
func TestScaleToZero(t *testing.T) {
	t.Parallel()
	a := sharedWorld(t).app(t, "zero")
	a.deploys(spec(image("zero:1"), 0, 3), subjects.OutcomeCreated)
	a.becomes(state{status: "ACTIVE", revision: 1, replicas: 1})
	for _, replicas := range []int{0, 3, 0} {
		a.loads(1, replicas)
		a.becomes(state{status: "ACTIVE", revision: 1, replicas: uint32(replicas)})
	}
	a.noPods(1)
	a.judged()
}

// leavesNothing waits until Kubernetes has removed what a deleted app owned.
func (a *app) leavesNothing() {
	a.t.Helper()
	suite.Eventually(a.t, patience, "what it owned is gone", func() error {
		revisions := &servingv1.RevisionList{}
		if err := a.Client.List(a.t.Context(), revisions, client.InNamespace(a.namespace), client.MatchingLabels{labelService: a.service()}); err != nil {
			return err
		}
		if n := len(revisions.Items); n > 0 {
			return fmt.Errorf("%d Revisions, the first is %s", n, revisions.Items[0].Name)
		}
		pods, err := a.pods(a.t.Context(), 0)
		if err == nil && len(pods) > 0 {
			err = fmt.Errorf("%d pods, the first is %s", len(pods), pods[0].Name)
		}
		return err
	})
	err := a.Client.Get(a.t.Context(), client.ObjectKey{Namespace: a.namespace, Name: a.service()}, &servingv1.Service{})
	if !apierrors.IsNotFound(err) {
		a.t.Errorf("its Knative Service: got %v, want none", err)
	}
}

// A stopped app has no pods and no address outside of the cluster. A deploy starts it again, the
// same spec too.
func TestStopAndStart(t *testing.T) {
	t.Parallel()
	a := sharedWorld(t).app(t, "stopped")
	want := spec(image("stopped:1"), 2, 4)
	a.deploys(want, subjects.OutcomeCreated)
	a.becomes(state{status: "ACTIVE", revision: 1, replicas: 2})
	if host := a.host(); strings.HasSuffix(host, clusterLocal) {
		t.Errorf("its host is %s: it is local to the cluster before the stop", host)
	}

	a.stops()
	a.becomes(state{status: "STOPPED"})
	a.noPods(0)
	a.answers(appv1.Status_DEPLOYMENT_STATUS_STOPPED)
	suite.Eventually(t, patience, "its address is local to the cluster", func() error {
		if host := a.host(); !strings.HasSuffix(host, clusterLocal) {
			return fmt.Errorf("its host is %s", host)
		}
		return nil
	})
	if got := a.asks(subjects.APIStop, &appv1.UpdateRequest{}); got.outcome() != subjects.OutcomeUnchanged {
		t.Errorf("a second stop: got outcome %q and error %q, want %s", got.outcome(), got.refused(), subjects.OutcomeUnchanged)
	}

	a.deploys(want, subjects.OutcomeUpdated)
	e := a.until("it is active again", func(e event) bool { return e.status() == "ACTIVE" && e.replicas() == 2 })
	if got := e.revision(); got == a.revisionName(1) {
		t.Errorf("Revision %s serves, which the stop removed", got)
	}
	suite.Eventually(t, patience, "its address is a public one", func() error {
		if host := a.host(); strings.HasSuffix(host, clusterLocal) {
			return fmt.Errorf("its host is %s", host)
		}
		return nil
	})
	a.judged()
}

const clusterLocal = ".svc.cluster.local"

// host is where Knative says that the app is reached.
func (a *app) host() string {
	a.t.Helper()
	if url := a.stored().Status.URL; url != nil {
		return url.Host
	}
	return ""
}

// answers checks that get returns an app whose first condition is of that status.
func (a *app) answers(want appv1.Status_DeploymentStatus) {
	a.t.Helper()
	suite.Eventually(a.t, patience, "get returns it", func() error {
		got := a.asks(subjects.APIGet, &appv1.GetRequest{})
		if text := got.refused(); text != "" {
			return fmt.Errorf("it is refused: %s", text)
		}
		body := &appv1.GetResponse{}
		if err := appv1.Decode(got.Data, got.Header.Get(subjects.HeaderContentType), body); err != nil {
			return err
		}
		conditions := body.GetApp().GetStatus().GetConditions()
		if len(conditions) == 0 || conditions[0].GetDeploymentStatus() != want {
			return fmt.Errorf("its conditions are %v", conditions)
		}
		return nil
	})
}

// An image that Knative cannot resolve fails the app, with Knative's reason.
func TestUnresolvableImage(t *testing.T) {
	t.Parallel()
	a := sharedWorld(t).app(t, "unresolvable")
	a.deploys(spec(unresolvable, 1, 2), subjects.OutcomeCreated)
	e := a.becomes(state{status: "FAILED"})
	a.saysWhy(e, "RevisionFailed: ", unresolvable)
	if got := e.revision(); got != "" {
		t.Errorf("replicas are those of Revision %s, want none", got)
	}
	a.deploys(spec(image("unresolvable:2"), 1, 2), subjects.OutcomeUpdated)
	a.becomes(state{status: "ACTIVE", revision: 2, replicas: 1})
	a.goes()
	a.isGone()
	a.judged()
}

// saysWhy checks that a failed condition has these texts.
func (a *app) saysWhy(e event, texts ...string) {
	a.t.Helper()
	for _, c := range e.app.GetStatus().GetConditions() {
		missing := c.GetDeploymentStatus() != appv1.Status_DEPLOYMENT_STATUS_FAILED
		for _, text := range texts {
			missing = missing || !strings.Contains(c.GetMessage(), text)
		}
		if !missing {
			return
		}
	}
	a.t.Errorf("no condition is failed with %q: %s", texts, e)
}

// A rollout that fails leaves the Revision before it serving, with its replicas: whether Knative
// cannot resolve the image, or its container ends again and again.
func TestFailedRollout(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, image string
		why         []string
	}{
		{"unresolvable", unresolvable, []string{"RevisionFailed: ", unresolvable}},
		{"crashing", "dev.local/crash/rollout:1", []string{"RevisionFailed: "}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			a := sharedWorld(t).app(t, "rollout-"+test.name)
			a.deploys(spec(image("rollout:1"), 2, 3), subjects.OutcomeCreated)
			a.becomes(state{status: "ACTIVE", revision: 1, replicas: 2})

			a.deploys(spec(test.image, 2, 3), subjects.OutcomeUpdated)
			a.saysWhy(a.becomes(state{status: "FAILED", revision: 1, replicas: 2}), test.why...)
			a.serves(1)
			if pods, err := a.pods(t.Context(), 1); err != nil || len(pods) != 2 {
				t.Errorf("Revision 1 has %d pods, %v, want 2", len(pods), err)
			}
			a.loads(1, 3)
			a.becomes(state{status: "FAILED", revision: 1, replicas: 3})

			a.deploys(spec(image("rollout:3"), 1, 3), subjects.OutcomeUpdated)
			a.becomes(state{status: "ACTIVE", revision: 3, replicas: 1})
			a.serves(3)
			a.judged()
		})
	}
}
