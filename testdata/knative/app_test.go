package knative_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// image is one that Knative takes as it is: it resolves no digest of dev.local's.
func image(name string) string { return "dev.local/shop/" + name }

// app is an app on its way through a scenario.
type app struct {
	*world
	t        *testing.T
	id       subjects.AppID
	scenario string
	began    time.Time
	position int // the events before are looked at
}

func (w *world) app(t *testing.T, name string) *app {
	return &app{
		world: w, t: t, scenario: t.Name(), began: time.Now(),
		id: subjects.AppID{Project: "shop", Domain: "production", Name: name},
	}
}

// service is the name of its Knative Service.
func (a *app) service() string { return kservice.Name(a.id) }

// revisionName is what Knative calls the n-th Revision of the app.
func (a *app) revisionName(n int) string { return fmt.Sprintf("%s-%05d", a.service(), n) }

// spec is that of a web server with so many replicas.
func spec(image string, least, most uint32) *appv1.Spec {
	return &appv1.Spec{
		AppPayload: &appv1.Spec_Container{Container: &appv1.Container{
			Image: image, Ports: []*appv1.ContainerPort{{ContainerPort: 8080}},
		}},
		Autoscaling: &appv1.AutoscalingConfig{Replicas: &appv1.Replicas{Min: least, Max: most}},
	}
}

// answer is the answer to a request.
type answer struct{ *nats.Msg }

// refused is the error that an answer is, empty if it is none.
func (a answer) refused() string {
	if code := a.Header.Get(subjects.HeaderServiceErrorCode); code != "" {
		return code + " " + a.Header.Get(subjects.HeaderServiceError)
	}
	return ""
}

func (a answer) outcome() subjects.Outcome {
	return subjects.Outcome(a.Header.Get(subjects.HeaderOutcome))
}

// request makes a request for an app operation.
func (w *world) request(ctx context.Context, op subjects.APIOp, id subjects.AppID, body proto.Message) (answer, error) {
	subject, err := w.names.API(op, id)
	if err != nil {
		return answer{}, err
	}
	data, form, err := appv1.Encode(body, subjects.ContentTypeJSON)
	if err != nil {
		return answer{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	msg, err := w.conn.RequestMsgWithContext(ctx, &nats.Msg{Subject: subject, Data: data, Header: nats.Header{subjects.HeaderContentType: {form}}})
	if err != nil {
		return answer{}, fmt.Errorf("request to %s: %w", subject, err)
	}
	return answer{msg}, nil
}

func (a *app) asks(op subjects.APIOp, body proto.Message) answer {
	a.t.Helper()
	got, err := a.request(a.t.Context(), op, a.id, body)
	if err != nil {
		a.t.Fatal(err)
	}
	return got
}

func (a *app) came(got answer, want subjects.Outcome) {
	a.t.Helper()
	if text := got.refused(); text != "" || got.outcome() != want {
		a.t.Fatalf("got outcome %q and error %q, want %s", got.outcome(), text, want)
	}
}

func (a *app) deploys(s *appv1.Spec, want subjects.Outcome) {
	a.t.Helper()
	a.came(a.asks(subjects.APIDeploy, &appv1.CreateRequest{App: &appv1.App{Spec: s}}), want)
}

func (a *app) stops() {
	a.t.Helper()
	a.came(a.asks(subjects.APIStop, &appv1.UpdateRequest{}), subjects.OutcomeStopped)
}

func (a *app) goes() {
	a.t.Helper()
	a.came(a.asks(subjects.APIDelete, &appv1.DeleteRequest{}), subjects.OutcomeDeleted)
}

// state is how an app is to be, as an event shows it.
type state struct {
	status   string
	revision int // that gives the replicas; 0: any or none
	replicas uint32
}

func (s state) is(e event, a *app) bool {
	return e.kind != subjects.Deleted && e.status() == s.status && e.replicas() == s.replicas &&
		(s.revision == 0 || e.revision() == a.revisionName(s.revision))
}

// becomes waits for an event that shows a state, after the last one that was waited for.
func (a *app) becomes(want state) event {
	a.t.Helper()
	return a.until(fmt.Sprintf("an event shows %+v", want), func(e event) bool { return want.is(e, a) })
}

// isGone waits for the event of the delete.
func (a *app) isGone() {
	a.t.Helper()
	a.until("an event of the delete", func(e event) bool { return e.kind == subjects.Deleted })
}

func (a *app) until(what string, found func(event) bool) (last event) {
	a.t.Helper()
	suite.Eventually(a.t, patience, what, func() error {
		events, err := a.of(a.id)
		if err != nil {
			return fmt.Errorf("%w: %w", suite.ErrFatal, err)
		}
		for i := a.position; i < len(events); i++ {
			if found(events[i]) {
				a.position, last = i+1, events[i]
				return nil
			}
		}
		text := fmt.Sprintf("%d events", len(events))
		for _, e := range events[a.position:] {
			text += "\n  " + e.String()
		}
		return fmt.Errorf("%s", text)
	})
	return last
}

// stored is the app's Knative Service in the cluster.
func (a *app) stored() *servingv1.Service {
	a.t.Helper()
	svc := &servingv1.Service{}
	if err := a.Client.Get(a.t.Context(), client.ObjectKey{Namespace: a.namespace, Name: a.service()}, svc); err != nil {
		a.t.Fatal(err)
	}
	return svc
}

// serves checks that all traffic goes to the n-th Revision.
func (a *app) serves(n int) {
	a.t.Helper()
	suite.Eventually(a.t, patience, fmt.Sprintf("Revision %d serves", n), func() error {
		for _, target := range a.stored().Status.Traffic {
			if target.RevisionName != a.revisionName(n) || target.Percent == nil || *target.Percent != 100 {
				return fmt.Errorf("traffic goes to %+v", a.stored().Status.Traffic)
			}
		}
		return nil
	})
}

// pods are those of a Revision, or of all with 0.
func (a *app) pods(ctx context.Context, n int) ([]corev1.Pod, error) {
	labels := client.MatchingLabels{labelService: a.service()}
	if n > 0 {
		labels[labelRevision] = a.revisionName(n)
	}
	list := &corev1.PodList{}
	err := a.Client.List(ctx, list, client.InNamespace(a.namespace), labels)
	return list.Items, err
}

// noPods waits until the app, or one Revision of it, has none.
func (a *app) noPods(n int) {
	a.t.Helper()
	suite.Eventually(a.t, patience, "its pods are gone", func() error {
		pods, err := a.pods(a.t.Context(), n)
		if err == nil && len(pods) > 0 {
			err = fmt.Errorf("there are %d, the first is %s", len(pods), pods[0].Name)
		}
		return err
	})
}

// What Knative labels Revisions and pods with.
const (
	labelService  = "serving.knative.dev/service"
	labelRevision = "serving.knative.dev/revision"
)
