package appsvc_test

import (
	"maps"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// deploy asks for an app with an image.
func (p *place) deploy(id subjects.AppID, image string) *appv1.CreateRequest {
	p.t.Helper()
	request := deployment(image)
	request.App.Metadata = &appv1.Meta{Id: identifier(id)}
	request.App.Metadata.Id.Org = "acme"
	return request
}

// stored is a Knative Service as the API server stores it.
func (p *place) stored(svc *servingv1.Service) *servingv1.Service {
	p.t.Helper()
	svc = svc.DeepCopy()
	svc.Name = "as-stored"
	p.must(p.Client.Create(p.t.Context(), svc, client.DryRunAll))
	return svc
}

// An app's life: each operation, what it does to the object, and what it answers.
func TestLife(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	ctx, id := t.Context(), checkout
	name := kservice.Name(id)
	do := func(op subjects.APIOp, request proto.Message, want subjects.Outcome) *appv1.App {
		t.Helper()
		answer := p.outcome(p.json(p.subject(op, id), request), want)
		app := read(p.world, answer, &appv1.UpdateResponse{}).GetApp()
		if app == nil {
			return nil
		}
		svc := p.present(name)
		for header, want := range map[string]string{
			subjects.HeaderUID: string(svc.UID), subjects.HeaderResourceVersion: svc.ResourceVersion, subjects.HeaderNamespace: p.namespace,
		} {
			if got := answer.Header.Get(header); got != want {
				t.Errorf("%s: got %q, want %q", header, got, want)
			}
		}
		return app
	}

	do(subjects.APIStop, nil, subjects.OutcomeMissing)
	do(subjects.APIDelete, nil, subjects.OutcomeMissing)
	one := p.deploy(id, "registry.example.com/hello:1")
	app := do(subjects.APIDeploy, one, subjects.OutcomeCreated)
	if got := app.GetMetadata().GetId(); got.GetOrg() != "acme" || got.GetName() != id.Name || !proto.Equal(app.GetSpec(), one.GetApp().GetSpec()) {
		t.Errorf("got %v", app)
	}
	svc := p.present(name)
	want := p.stored(p.app(id).Service())
	if diff := cmp.Diff(svc.Spec, want.Spec); diff != "" {
		t.Errorf("spec, got, want: %s", diff)
	}
	if !maps.Equal(svc.Labels, want.Labels) || !maps.Equal(svc.Annotations, want.Annotations) {
		t.Errorf("got %v %v, want %v %v", svc.Labels, svc.Annotations, want.Labels, want.Annotations)
	}
	soon(t, "the cache shows it", func() error {
		answer := p.json(p.subject(subjects.APIGet, id), nil)
		if answer.Header.Get(subjects.HeaderServiceErrorCode) != "" {
			return errNotYet
		}
		if got := read(p.world, answer, &appv1.GetResponse{}).GetApp(); !proto.Equal(got.GetSpec(), app.GetSpec()) {
			t.Errorf("get: got %v, want %v", got, app)
		}
		return nil
	})
	do(subjects.APIDeploy, one, subjects.OutcomeUnchanged)
	p.untouched(svc)

	// What others have written stays; what is in the spec does not.
	svc.Labels["team"], svc.Annotations["note"], svc.Finalizers = "ml", "kept", []string{"example.com/kept"}
	no := false
	svc.Spec.Template.Spec.AutomountServiceAccountToken = &no
	p.must(p.Client.Update(ctx, svc))
	svc, err := p.Ready(ctx, svc, "", 2)
	p.must(err)
	two := p.deploy(id, "registry.example.com/hello:2")
	app = do(subjects.APIDeploy, two, subjects.OutcomeUpdated)
	if got := app.GetSpec().GetContainer().GetImage(); got != "registry.example.com/hello:2" {
		t.Errorf("the answer has the image %q", got)
	}
	now := p.present(name)
	if now.Labels["team"] != "ml" || now.Annotations["note"] != "kept" || !slices.Equal(now.Finalizers, svc.Finalizers) || now.UID != svc.UID || len(now.Status.Conditions) == 0 {
		t.Errorf("what others have written is lost: %v", now)
	}
	second := p.app(id)
	second.Image = "registry.example.com/hello:2"
	if diff := cmp.Diff(now.Spec, p.stored(second.Service()).Spec); diff != "" {
		t.Errorf("spec, got, want: %s", diff)
	}

	revision := now.Status.LatestReadyRevisionName
	app = do(subjects.APIStop, &appv1.UpdateRequest{App: &appv1.App{Metadata: one.GetApp().GetMetadata()}, Reason: "enough"}, subjects.OutcomeStopped)
	if got := app.GetStatus().GetConditions(); len(got) != 1 || got[0].GetDeploymentStatus() != appv1.Status_DEPLOYMENT_STATUS_STOPPED {
		t.Errorf("the answer has the conditions %v", got)
	}
	stopped := p.present(name)
	scale := stopped.Spec.Template.Annotations
	if stopped.Labels[kservice.LabelStopped] != "true" || stopped.Labels[kservice.LabelVisibility] != "cluster-local" || stopped.Labels["team"] != "ml" ||
		scale["autoscaling.knative.dev/min-scale"] != "0" || scale["autoscaling.knative.dev/initial-scale"] != "0" {
		t.Errorf("got %v %v", stopped.Labels, scale)
	}
	if err := p.Client.Get(ctx, client.ObjectKey{Namespace: p.namespace, Name: revision}, &servingv1.Revision{}); !apierrors.IsNotFound(err) {
		t.Errorf("the revision %s: got %v, want it gone", revision, err)
	}
	do(subjects.APIStop, nil, subjects.OutcomeUnchanged)
	p.untouched(stopped)

	do(subjects.APIDeploy, two, subjects.OutcomeUpdated)
	now = p.present(name)
	if _, ok := now.Labels[kservice.LabelStopped]; ok || now.Labels[kservice.LabelVisibility] != "" || len(now.Spec.Template.Annotations) != 0 {
		t.Errorf("it is not started again: %v %v", now.Labels, now.Spec.Template.Annotations)
	}
	now.Finalizers = nil
	p.must(p.Client.Update(ctx, now))
	answer := p.outcome(p.json(p.subject(subjects.APIDelete, id), &appv1.DeleteRequest{AppId: identifier(id)}), subjects.OutcomeDeleted)
	read(p.world, answer, &appv1.DeleteResponse{})
	if svc := p.knativeService(name); svc != nil {
		t.Errorf("it is still there: %v", svc)
	}
	do(subjects.APIDelete, nil, subjects.OutcomeMissing)
}

// A namespace that is missing is made.
func TestDeployMakesNamespace(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.namespace += "-new"
	w := serve(t, func(s *setup) { s.kube, s.cfg.Deploy.Namespace = admin(p.Cluster), p.namespace })
	w.outcome(w.json(w.subject(subjects.APIDeploy, checkout), deployment("registry.example.com/hello:1")), subjects.OutcomeCreated)
	p.present(kservice.Name(checkout))
	w.outcome(w.json(w.subject(subjects.APIDeploy, checkout), deployment("registry.example.com/hello:1")), subjects.OutcomeUnchanged)
}

// What is in a namespace that is on its way out cannot be made.
func TestDeployIntoTerminatingNamespace(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.must(p.Client.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.namespace}}))
	p.refused(p.json(p.subject(subjects.APIDeploy, checkout), deployment("registry.example.com/hello:1")),
		subjects.CodeFailedPrecondition, "kubernetes refuses it", p.namespace, "being terminated")
}

// req makes a request with the stock CLI, which waits 5 s, and returns all that it prints.
func (w *world) req(op subjects.APIOp, id subjects.AppID, body string) string {
	w.t.Helper()
	nats, err := testenv.NATSCLI()
	if err != nil {
		w.t.Error(err)
		return ""
	}
	req := exec.CommandContext(w.t.Context(), nats, "--server", w.nc.ConnectedUrl(), "req", w.subject(op, id), body)
	req.Env = []string{"HOME=" + w.t.TempDir()}
	out, err := req.CombinedOutput()
	if err != nil {
		w.t.Errorf("%s: %v: %s", op, err, out)
	}
	return string(out)
}

// terminating is an app whose Knative Service is deleted and waits for a finalizer.
func (p *place) terminating(id subjects.AppID) *servingv1.Service {
	p.t.Helper()
	svc := p.create(p.app(id))
	svc.Finalizers = []string{"example.com/wait"}
	p.must(p.Client.Update(p.t.Context(), svc))
	p.must(p.Client.Delete(p.t.Context(), svc))
	return svc
}

// A deploy onto an app that waits for a finalizer is answered before the stock CLI gives up, and so
// is every other write of that app meanwhile.
func TestWritesOfTerminatingApp(t *testing.T) {
	t.Parallel()
	p := newPlace(t, func(s *setup) { s.ownTimeouts = true })
	svc := p.terminating(checkout)
	deploy := `{"app": {"spec": {"container": {"image": "registry.example.com/hello:2"}}}}`
	var deploys sync.WaitGroup
	for range 3 {
		deploys.Go(func() {
			out := p.req(subjects.APIDeploy, checkout, deploy)
			for _, want := range []string{
				subjects.HeaderServiceErrorCode + ": 409", p.namespace + "/" + svc.Name + " is being deleted and waits for the finalizers example.com/wait",
			} {
				if !strings.Contains(out, want) {
					t.Errorf("deploy: got %s, want %s", out, want)
				}
			}
		})
	}
	soon(t, "the deploys wait", func() error {
		if p.metric("appbridge_api_write_retries_total") < 3 {
			return errNotYet
		}
		return nil
	})
	for op, want := range map[subjects.APIOp]subjects.Outcome{subjects.APIStop: subjects.OutcomeStopped, subjects.APIDelete: subjects.OutcomeDeleted} {
		if out := p.req(op, checkout, ""); !strings.Contains(out, subjects.HeaderOutcome+": "+string(want)) {
			t.Errorf("%s: got %s, want %s", op, out, want)
		}
	}
	deploys.Wait()
	if now := p.present(svc.Name); now.UID != svc.UID || now.Spec.Template.Spec.Containers[0].Image != svc.Spec.Template.Spec.Containers[0].Image {
		t.Errorf("got %v, want what was there", now)
	}
}

// An app that is on its way out is waited for.
func TestDeployWhileDeleting(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	ctx := t.Context()
	svc := p.terminating(checkout)
	inbox := p.nc.NewInbox()
	sub, err := p.nc.SubscribeSync(inbox)
	p.must(err)
	request, _, err := appv1.Encode(p.deploy(checkout, "registry.example.com/hello:2"), subjects.ContentTypeJSON)
	p.must(err)
	p.must(p.nc.PublishRequest(p.subject(subjects.APIDeploy, checkout), inbox, request))
	soon(t, "it is tried again", func() error {
		if p.metric("appbridge_api_write_retries_total") < 2 {
			return errNotYet
		}
		return nil
	})
	svc = p.present(svc.Name)
	was := svc.UID
	svc.Finalizers = nil
	p.must(p.Client.Update(ctx, svc))
	answer := p.next(sub)
	for answer.Header.Get(subjects.HeaderServiceErrorCode) == subjects.CodeFailedPrecondition.HeaderValue() { // a busy machine
		answer = p.json(p.subject(subjects.APIDeploy, checkout), p.deploy(checkout, "registry.example.com/hello:2"))
	}
	p.outcome(answer, subjects.OutcomeCreated)
	if now := p.present(svc.Name); now.UID == was || now.Spec.Template.Spec.Containers[0].Image != "registry.example.com/hello:2" {
		t.Errorf("got %v", now)
	}
}

// The name of an app's Knative Service may be another app's.
func TestForeignService(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	one, other := subjects.AppID{Project: "b-c", Domain: "dev", Name: "a"}, subjects.AppID{Project: "c", Domain: "dev", Name: "a-b"}
	svc := p.create(p.app(other))
	svc, err := p.Ready(t.Context(), svc, "", 1)
	p.must(err)
	p.refused(p.json(p.subject(subjects.APIDeploy, one), p.deploy(one, "registry.example.com/hello:1")),
		subjects.CodeFailedPrecondition, p.namespace+"/a-b-c-dev", "b-c/dev/a", "belongs to another app")
	p.outcome(p.json(p.subject(subjects.APIStop, one), nil), subjects.OutcomeMissing)
	p.outcome(p.json(p.subject(subjects.APIDelete, one), nil), subjects.OutcomeMissing)
	p.refused(p.json(p.subject(subjects.APIGet, one), nil), subjects.CodeNotFound)
	p.untouched(svc)
	revision := &servingv1.Revision{}
	p.must(p.Client.Get(t.Context(), client.ObjectKey{Namespace: p.namespace, Name: svc.Status.LatestReadyRevisionName}, revision))

	pod := p.pod("of-the-other", svc.Name)
	p.refused(p.json(p.subject(subjects.APIDeleteReplica, one), &appv1.ReplicaIdentifier{Name: pod.Name}), subjects.CodeNotFound)
	p.podStays(pod)
}

// A Knative Service of Flyte without an app id is nobody's: deploy takes it, while stop
// and delete do not know it.
func TestNobodysService(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	nobodys := p.app(checkout)
	nobodys.Annotations = map[string]string{kservice.AnnotationAppID: ""}
	nobodys.Labels = map[string]string{"team": "ml"}
	svc, err := p.Create(t.Context(), nobodys)
	p.must(err)
	p.outcome(p.json(p.subject(subjects.APIStop, checkout), nil), subjects.OutcomeMissing)
	p.outcome(p.json(p.subject(subjects.APIDelete, checkout), nil), subjects.OutcomeMissing)
	pod := p.pod("nobodys", svc.Name)
	p.refused(p.json(p.subject(subjects.APIDeleteReplica, checkout), &appv1.ReplicaIdentifier{Name: pod.Name}), subjects.CodeNotFound)
	p.podStays(pod)
	p.untouched(svc)
	// It has the digest of what is deployed, and is changed all the same.
	p.outcome(p.json(p.subject(subjects.APIDeploy, checkout), p.deploy(checkout, "registry.example.com/hello:1")), subjects.OutcomeUpdated)
	now := p.present(svc.Name)
	if now.UID != svc.UID || now.Annotations[kservice.AnnotationAppID] != checkout.String() || now.Labels["team"] != "ml" {
		t.Errorf("got %v", now)
	}
	p.outcome(p.json(p.subject(subjects.APIDelete, checkout), nil), subjects.OutcomeDeleted)
}

// A Knative Service with neither an app id nor the label of Flyte is somebody's own.
func TestUnmarkedService(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	foreign := p.app(checkout)
	foreign.Annotations = map[string]string{kservice.AnnotationAppID: ""}
	for _, value := range []string{"", "false"} {
		foreign.Labels = map[string]string{kservice.LabelManaged: value}
		svc, err := p.Create(t.Context(), foreign)
		p.must(err)
		p.refused(p.json(p.subject(subjects.APIDeploy, checkout), p.deploy(checkout, "registry.example.com/hello:1")), subjects.CodeFailedPrecondition,
			svc.Name, checkout.String(), "neither an app id nor the label flyte.org/app-managed")
		p.untouched(svc)
		p.must(p.Delete(t.Context(), svc))
	}
}

// An app whose Knative Service has another name than the usual one is changed
// where it is.
func TestOtherObjectName(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	odd := p.app(checkout)
	odd.ObjectName = "somewhere-else"
	svc := p.create(odd)
	nothingElse := func() {
		t.Helper()
		if other := p.knativeService(kservice.Name(checkout)); other != nil {
			t.Errorf("there is a second object: %v", other)
		}
	}
	p.outcome(p.json(p.subject(subjects.APIDeploy, checkout), p.deploy(checkout, "registry.example.com/hello:1")), subjects.OutcomeUnchanged)
	p.outcome(p.json(p.subject(subjects.APIDeploy, checkout), p.deploy(checkout, "registry.example.com/hello:2")), subjects.OutcomeUpdated)
	nothingElse()
	if now := p.present(odd.ObjectName); now.UID != svc.UID || now.Spec.Template.Spec.Containers[0].Image != "registry.example.com/hello:2" {
		t.Errorf("got %v", now)
	}
	p.outcome(p.json(p.subject(subjects.APIStop, checkout), nil), subjects.OutcomeStopped)
	if now := p.present(odd.ObjectName); now.Labels[kservice.LabelStopped] != "true" {
		t.Errorf("got %v", now)
	}
	pod := p.pod("one", odd.ObjectName)
	p.outcome(p.json(p.subject(subjects.APIDeleteReplica, checkout), &appv1.ReplicaIdentifier{Name: pod.Name}), subjects.OutcomeDeleted)
	p.outcome(p.json(p.subject(subjects.APIDelete, checkout), nil), subjects.OutcomeDeleted)
	if now := p.knativeService(odd.ObjectName); now != nil {
		t.Errorf("got %v, want it gone", now)
	}
	nothingElse()
}

// pod makes a pod with the label of a Knative Service. No node has it, so that it
// goes at once when it is deleted.
func (p *place) pod(name, service string) *corev1.Pod {
	p.t.Helper()
	no := false
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: name, Labels: map[string]string{kservice.LabelService: service}},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: &no, Containers: []corev1.Container{{Name: "app", Image: "registry.example.com/hello:1"}},
		},
	}
	p.must(p.Client.Create(p.t.Context(), pod))
	return pod
}

func (p *place) podStays(pod *corev1.Pod) {
	p.t.Helper()
	now := &corev1.Pod{}
	p.must(p.Client.Get(p.t.Context(), client.ObjectKeyFromObject(pod), now))
	if now.UID != pod.UID || now.DeletionTimestamp != nil {
		p.t.Errorf("pod %s was deleted: %v", pod.Name, now)
	}
}

func (p *place) podGone(pod *corev1.Pod) {
	p.t.Helper()
	now := &corev1.Pod{}
	if err := p.Client.Get(p.t.Context(), client.ObjectKeyFromObject(pod), now); !apierrors.IsNotFound(err) {
		p.t.Errorf("pod %s: got %v, %v, want it gone", pod.Name, now.UID, err)
	}
}

func TestDeleteReplica(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	svc := p.create(p.app(checkout))
	own, foreign, bare := p.pod("own", svc.Name), p.pod("foreign", "another-service"), p.pod("bare", "x")
	bare.Labels = nil
	p.must(p.Client.Update(t.Context(), bare))
	subject := p.subject(subjects.APIDeleteReplica, checkout)
	ask := func(name string) *appv1.ReplicaIdentifier {
		return &appv1.ReplicaIdentifier{AppId: identifier(checkout), Name: name}
	}
	for _, pod := range []*corev1.Pod{foreign, bare} {
		p.refused(p.json(subject, ask(pod.Name)), subjects.CodeNotFound, pod.Name, checkout.String())
		p.podStays(pod)
	}
	p.outcome(p.json(subject, ask("nobody")), subjects.OutcomeMissing)
	p.podStays(own)
	p.outcome(p.json(subject, ask(own.Name)), subjects.OutcomeDeleted)
	p.podGone(own)
	p.outcome(p.json(subject, ask(own.Name)), subjects.OutcomeMissing)

	// Of an app that is gone, pods may be left. Nothing proves that they were its own.
	labelled := func(name string, uid types.UID) *corev1.Pod {
		pod := p.pod(name, svc.Name)
		pod.Labels[kservice.LabelServiceUID] = string(uid)
		p.must(p.Client.Update(t.Context(), pod))
		return pod
	}
	own, left := labelled("own", svc.UID), labelled("left", svc.UID)
	p.outcome(p.json(subject, ask(own.Name)), subjects.OutcomeDeleted)
	p.podGone(own)
	p.outcome(p.json(p.subject(subjects.APIDelete, checkout), nil), subjects.OutcomeDeleted)
	p.refused(p.json(subject, ask(left.Name)), subjects.CodeNotFound, left.Name, checkout.String())

	// The next app of that name may be another project's: names fold.
	same := subjects.AppID{Project: checkout.Project, Domain: checkout.Domain, Name: strings.ToUpper(checkout.Name)}
	next := p.create(p.app(same))
	if next.Name != svc.Name {
		t.Fatalf("got the name %s, want %s", next.Name, svc.Name)
	}
	name := &appv1.ReplicaIdentifier{Name: left.Name}
	p.refused(p.json(p.subject(subjects.APIDeleteReplica, same), name), subjects.CodeNotFound, left.Name, same.String())
	p.podStays(left)
	its := labelled("its", next.UID)
	p.outcome(p.json(p.subject(subjects.APIDeleteReplica, same), &appv1.ReplicaIdentifier{Name: its.Name}), subjects.OutcomeDeleted)
	p.podGone(its)
	p.podStays(foreign)
}

// What Kubernetes finds wrong with an app is the asker's to know: whether the app
// is wrong, or not let in as things are.
func TestRefusedByKubernetes(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	ctx := t.Context()
	rule := func(image string, reason metav1.StatusReason) admissionv1.Validation {
		return admissionv1.Validation{
			Expression: "object.spec.template.spec.containers.all(c, c.image != '" + image + "')",
			Message:    "image " + image + " is not welcome", Reason: &reason,
		}
	}
	const invalid, forbidden = "registry.example.com/invalid:1", "registry.example.com/forbidden:1"
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "images-" + p.namespace},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: p.namespace}},
				ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
					Rule: admissionv1.Rule{
						APIGroups: []string{kservice.GroupVersion().Group}, APIVersions: []string{"v1"}, Resources: []string{"services"},
					},
				}}},
			},
			Validations: []admissionv1.Validation{rule(invalid, metav1.StatusReasonInvalid), rule(forbidden, metav1.StatusReasonForbidden)},
		},
	}
	p.must(p.Client.Create(ctx, policy))
	p.must(p.Client.Create(ctx, &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: policy.Name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: policy.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}))
	soon(t, "the policy is in force", func() error {
		probe := p.app(checkout)
		probe.Image = invalid
		svc := probe.Service()
		if err := p.Client.Create(ctx, svc, client.DryRunAll); err == nil {
			return errNotYet
		}
		return nil
	})
	for _, test := range []struct {
		image string
		code  subjects.Code
	}{{invalid, subjects.CodeInvalidArgument}, {forbidden, subjects.CodeFailedPrecondition}} {
		p.refused(p.json(p.subject(subjects.APIDeploy, checkout), p.deploy(checkout, test.image)), test.code,
			"kubernetes refuses it", "image "+test.image+" is not welcome")
		if svc := p.knativeService(kservice.Name(checkout)); svc != nil {
			t.Errorf("got %v, want none", svc)
		}
	}
	p.outcome(p.json(p.subject(subjects.APIDeploy, checkout), p.deploy(checkout, "registry.example.com/hello:1")), subjects.OutcomeCreated)
	svc := p.present(kservice.Name(checkout))
	p.refused(p.json(p.subject(subjects.APIDeploy, checkout), p.deploy(checkout, invalid)), subjects.CodeInvalidArgument, "is not welcome")
	p.untouched(svc)
}
