package knative_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

const fleetSize = 30

// Thirty apps at once and two bridges. The one that leads is killed while Knative rolls the apps
// out, the other goes on.
func TestFleet(t *testing.T) {
	t.Parallel()
	base := sharedWorld(t)
	began := time.Now()
	w := base.beside(t, "fleet")
	var bridges []*kubesuite.Instance
	err := w.open(t.Context(), func() error {
		for range 2 {
			one, err := w.serve(t.Context(), "--leader-elect", "--lease-namespace", w.namespace, "--lease-name", w.namespace)
			if err != nil {
				return err
			}
			bridges = append(bridges, one)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	var fleet []*app
	var ids []subjects.AppID
	for i := range fleetSize {
		fleet = append(fleet, w.app(t, fmt.Sprintf("fleet-%d", i)))
		ids = append(ids, fleet[i].id)
	}
	deployed := w.all(fleet, func(a *app, i int) (subjects.APIOp, proto.Message) {
		return subjects.APIDeploy, &appv1.CreateRequest{App: &appv1.App{Spec: spec(image("fleet:1"), uint32(1+i%2), 3)}}
	})
	leader := w.leader(t, bridges)
	w.publishes(t, 2*fleetSize)
	killed := time.Now()
	if err := bridges[leader].Kill(); err != nil {
		t.Fatal(err)
	}
	w.rollsOut(t, fleet)
	deployed(t)
	bridges = append(bridges[:leader:leader], bridges[leader+1:]...)
	w.leader(t, bridges)
	for i, a := range fleet {
		a.becomes(state{status: "ACTIVE", revision: 1, replicas: uint32(1 + i%2)})
	}
	gap := audit.Gap{From: killed, To: time.Now(), Why: "the leading bridge was killed"}

	// Of what follows every version has its event.
	w.all(fleet, func(a *app, i int) (subjects.APIOp, proto.Message) {
		switch i % 3 {
		case 0:
			return subjects.APIDeploy, &appv1.CreateRequest{App: &appv1.App{Spec: spec(image("fleet:2"), 2, 3)}}
		case 1:
			return subjects.APIStop, &appv1.UpdateRequest{}
		default:
			return subjects.APIDelete, &appv1.DeleteRequest{}
		}
	})(t)
	for i, a := range fleet {
		switch i % 3 {
		case 0:
			a.becomes(state{status: "ACTIVE", revision: 2, replicas: 2})
		case 1:
			a.becomes(state{status: "STOPPED"})
		default:
			a.isGone()
		}
	}
	results.add(result{t.Name(), w.judge(t, []audit.Gap{gap}, ids...), time.Since(began)})
	w.verified(t)
}

// all makes a request for each app, all at once. A bridge that is killed may not answer: a request
// is repeated until it is answered. The function that is returned waits for the answers.
func (w *world) all(fleet []*app, request func(a *app, i int) (subjects.APIOp, proto.Message)) (wait func(*testing.T)) {
	var requests sync.WaitGroup
	failures := make([]error, len(fleet))
	for i, a := range fleet {
		op, body := request(a, i)
		requests.Go(func() { failures[i] = a.insists(op, body) })
	}
	return func(t *testing.T) {
		t.Helper()
		requests.Wait()
		if err := errors.Join(failures...); err != nil {
			t.Fatal(err)
		}
	}
}

// publishes waits until the stream has more events than so many.
func (w *world) publishes(t *testing.T, count int) {
	t.Helper()
	suite.Eventually(t, patience, "events are published", func() error {
		messages, err := w.events.all()
		if err == nil && len(messages) <= count {
			err = fmt.Errorf("%d are", len(messages))
		}
		return err
	})
}

// rollsOut checks that the rollout of some apps is not published to its end.
func (w *world) rollsOut(t *testing.T, fleet []*app) {
	t.Helper()
	for _, a := range fleet {
		events, err := w.of(a.id)
		if err != nil {
			t.Fatal(err)
		}
		if len(events) == 0 || events[len(events)-1].status() != "ACTIVE" {
			return
		}
	}
	t.Error("every app was active before the kill")
}

// leader waits until one bridge leads.
func (w *world) leader(t *testing.T, bridges []*kubesuite.Instance) (leader int) {
	t.Helper()
	suite.Eventually(t, patience, "a bridge leads", func() error {
		for i, one := range bridges {
			if one.Metric(t, "appbridge_leader") == 1 {
				leader = i
				return nil
			}
		}
		return errors.New("none does")
	})
	return leader
}

// verified has appbridge compare cluster, stream and bucket.
func (w *world) verified(t *testing.T) {
	t.Helper()
	out := w.Start(t, fmt.Sprintf("appbridge verify --kubeconfig %s --cluster-name %s --namespaces %s --base-domain %s --pod-conditions=%t",
		w.KubeconfigPath, clusterName, w.namespace, baseDomain, w.conditions)).Wait()
	t.Logf("appbridge verify: %s", out)
}

// insists repeats a request until it is answered, and not with an error that time may heal.
func (a *app) insists(op subjects.APIOp, body proto.Message) error {
	for {
		ctx, cancel := context.WithTimeout(a.t.Context(), 20*time.Second)
		got, err := a.request(ctx, op, a.id, body)
		cancel()
		if err == nil && got.refused() == "" {
			return nil
		}
		if err == nil && !retriable(got) {
			return fmt.Errorf("%s: %s", a.id, got.refused())
		}
		if err := testenv.Pause(a.t.Context(), 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// retriable reports whether the same request may succeed later, also after Knative has changed the
// object again and again.
func retriable(got answer) bool {
	if strings.Contains(got.refused(), "try again later") {
		return true
	}
	codes := []subjects.Code{subjects.CodeUnavailable, subjects.CodeResourceExhausted, subjects.CodeDeadlineExceeded}
	return slices.ContainsFunc(codes, func(code subjects.Code) bool {
		return got.Header.Get(subjects.HeaderServiceErrorCode) == code.HeaderValue()
	})
}
