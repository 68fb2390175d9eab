package knative_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/subjects"
)

// With --pod-conditions, an event of a rollout that cannot start has the reason of its pods and the
// Revision that they are of, while the Revision before it serves. Every reason is one that the pods
// had, in their order.
func TestReasons(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t).beside(t, "reasons")
	w.conditions = true
	err := w.open(t.Context(), func() error {
		_, err := w.serve(t.Context())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	a := w.app(t, "reasons")
	a.deploys(spec(image("reasons:1"), 1, 2), subjects.OutcomeCreated)
	a.becomes(state{status: "ACTIVE", revision: 1, replicas: 1})

	revision := 1
	for _, rollout := range []struct {
		image string
		want  subjects.Reason
	}{
		{"dev.local/crash/reasons:2", subjects.ReasonCrashLoop},
		{"dev.local/oom/reasons:3", subjects.ReasonOOMKilled},
		{"dev.local/pull/reasons:4", subjects.ReasonImagePullError},
	} {
		a.deploys(spec(rollout.image, 1, 2), subjects.OutcomeUpdated)
		revision++
		a.until("its rollout has the reason "+string(rollout.want), func(e event) bool {
			return e.Header.Get(subjects.HeaderReason) == string(rollout.want) &&
				e.Header.Get(subjects.HeaderReasonRevision) == a.revisionName(revision) &&
				e.revision() == a.revisionName(1) && e.replicas() == 1
		})
	}

	a.deploys(spec(image("reasons:5"), 1, 2), subjects.OutcomeUpdated)
	a.until("the last rollout serves, and no pod has a reason", func(e event) bool {
		return e.status() == "ACTIVE" && e.revision() == a.revisionName(revision+1) && e.Header.Get(subjects.HeaderReason) == ""
	})
	a.judged()
	w.verified(t)

	// The same state is not published twice.
	events, err := w.of(a.id)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range events[1:] {
		before := events[i]
		same := proto.Equal(e.app, before.app)
		for _, name := range []string{subjects.HeaderUID, subjects.HeaderResourceVersion, subjects.HeaderReason, subjects.HeaderReasonRevision} {
			same = same && e.Header.Get(name) == before.Header.Get(name)
		}
		if same {
			t.Errorf("published twice: %s", e)
		}
	}
}
