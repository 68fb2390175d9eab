package appsvc_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/corpus"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// conformDeploy plays the cases of a file, each with the options that allow what it names.
func conformDeploy(t *testing.T, path string) int {
	return conformDeployWith(t, path, func(c corpus.DeployCase) kservice.Policy { return c.Names(t).Policy(t) })
}

// TestConformancePolicy plays the corpus without options: what names something is denied, and
// nothing else is.
func TestConformancePolicy(t *testing.T) {
	path := filepath.Join(corpus.Dir(repositoryRoot), "deploy.json")
	conformDeployWith(t, path, func(corpus.DeployCase) kservice.Policy { return kservice.Policy{} })
}

func conformDeployWith(t *testing.T, path string, policy func(corpus.DeployCase) kservice.Policy) int {
	c := cluster.Get(t)
	server := suite.NATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
	cache := startBridge(t, server.ClientURL(), c, corpus.Namespace)
	steps := 0
	cases := corpus.Each(t, path, func(t *testing.T, one corpus.DeployCase) {
		config := one.Config.Value
		stage := &stage{Cluster: c, config: config, world: serve(t, func(s *setup) {
			s.url, s.cache, s.kube = server.ClientURL(), cache, admin(c)
			s.cfg.App, s.cfg.Deploy = config.KService(), config.Deploy()
			s.cfg.Deploy.Policy = policy(one)
		})}
		stage.clear()
		defer stage.clear()
		for i, step := range one.Steps {
			stage.step = fmt.Sprintf("step %d, %s", i, step.Op)
			if !stage.play(step) {
				t.Logf("%s: Flyte goes on from something that is refused here", stage.step)
				break
			}
			steps++
		}
	})
	t.Logf("conformance: %s: %d steps compared", filepath.Base(path), steps)
	return min(cases, steps)
}

// TestConformanceDefaults plays a made-up case with what the corpus does not
// configure: a default environment, in an order of its own, and service account.
func TestConformanceDefaults(t *testing.T) {
	if cases := conformDeploy(t, filepath.Join(repositoryRoot, corpus.DefaultsFile)); cases != 1 {
		t.Errorf("got %d cases, want 1", cases)
	}
}

// stage is the cluster in which a case is played.
type stage struct {
	*testenv.Cluster
	*world

	config corpus.DeployConfig

	step string
	app  *appv1.App // the last one named
	// version counts the writes as the corpus does.
	version int
}

func kind(kind string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kservice.GroupVersion().WithKind(kind))
	return object
}

// clear takes away what other cases left.
func (s *stage) clear() {
	s.t.Helper()
	for _, name := range []string{"Service", "Revision"} {
		if err := s.Client.DeleteAllOf(s.t.Context(), kind(name), client.InNamespace(s.cfg.Deploy.Namespace)); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *stage) id() subjects.AppID {
	return corpus.AppID(s.app)
}

// object is the app's Knative Service, nil when there is none.
func (s *stage) object() *unstructured.Unstructured {
	s.t.Helper()
	object := kind("Service")
	err := s.Client.Get(s.t.Context(), client.ObjectKey{Namespace: s.cfg.Deploy.Namespace, Name: kservice.Name(s.id())}, object)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return object
}

// play does a step and tells whether the case can go on.
func (s *stage) play(step corpus.DeployStep) bool {
	s.t.Helper()
	if app := step.App(s.t); app != nil {
		s.app = app
	}
	var answer *nats.Msg
	if step.Op == "seed" {
		s.seed(step.Object)
		return true
	}
	before := s.object()
	switch step.Op {
	case "deploy":
		answer = s.json(s.subject(subjects.APIDeploy, s.id()), &appv1.CreateRequest{App: s.app})
	case "stop":
		answer = s.json(s.subject(subjects.APIStop, s.id()), &appv1.UpdateRequest{App: &appv1.App{Metadata: s.app.GetMetadata()}})
	case "delete":
		answer = s.json(s.subject(subjects.APIDelete, s.id()), &appv1.DeleteRequest{AppId: s.app.GetMetadata().GetId()})
	default:
		s.t.Fatalf("op %q: not one that this test knows", step.Op)
	}
	after, want := s.object(), step.Expect.Value
	if named := step.Names(s.t); want.Error+want.Panic == "" && s.denied(named) {
		s.refused(answer, subjects.CodePermissionDenied, "app.spec.", "--allowed-")
		s.same(before, after)
		return false
	}
	if _, ok := s.owner(before); before != nil && !ok && step.Op == "deploy" && before.GetLabels()[kservice.LabelManaged] != "true" {
		// Somebody's, which Flyte does not look at either.
		s.refused(answer, subjects.CodeFailedPrecondition, "neither an app id")
		s.same(before, after)
		return false
	}
	if owner, ok := s.owner(before); before != nil && owner != s.id().String() && (ok || step.Op != "deploy") {
		// Another app's, which Flyte does not look at.
		if step.Op == "deploy" {
			s.refused(answer, subjects.CodeFailedPrecondition, "belongs to another app")
		} else {
			s.outcome(answer, subjects.OutcomeMissing)
		}
		s.same(before, after)
		return false
	}
	if want.Error != "" || want.Panic != "" {
		s.refused(answer, subjects.CodeInvalidArgument, "app.spec")
		s.same(before, after)
		return true
	}
	if step.Op == "deploy" && answer.Header.Get(subjects.HeaderServiceErrorCode) != "" {
		s.refused(answer, subjects.CodeInvalidArgument)
		if reason := s.impossible(want.KService); reason == "" {
			s.t.Errorf("%s: it is refused: %s", s.step, answer.Data)
		} else {
			s.t.Logf("%s: impossible: %s", s.step, reason)
		}
		return false
	}
	if step.Op == "deploy" && after != nil && (before == nil || before.GetResourceVersion() != after.GetResourceVersion()) {
		written := map[string]any{"metadata": map[string]any{"name": "app"}, "spec": after.Object["spec"]}
		if reason := corpus.Refusal(s.t, corpus.Settings(s.t), written, nil); reason != "" {
			s.t.Errorf("%s: it is written, and Knative would refuse it: %s", s.step, reason)
		}
	}
	s.compare(before, after, want, answer, step.Op)
	return true
}

// denied reports whether the service is configured without what an app names.
func (s *stage) denied(named corpus.Named) bool {
	policy := s.cfg.Deploy.Policy
	return len(policy.ServiceAccounts)+len(policy.References) == 0 && !named.None(s.cfg.Deploy)
}

// owner is the app that a Knative Service belongs to.
func (s *stage) owner(object *unstructured.Unstructured) (string, bool) {
	if object == nil {
		return "", false
	}
	owner, ok := object.GetAnnotations()[kservice.AnnotationAppID]
	return owner, ok
}

// same checks that nothing was written.
func (s *stage) same(before, after *unstructured.Unstructured) {
	s.t.Helper()
	if diff := cmp.Diff(before, after); diff != "" {
		s.t.Errorf("%s: the object was changed: %s", s.step, diff)
	}
}

func (s *stage) seed(object *unstructured.Unstructured) {
	s.t.Helper()
	object.SetResourceVersion("")
	ctx := s.t.Context()
	switch object.GetKind() {
	case "Service":
		s.version = 1
		if err := s.Client.Create(ctx, object); err != nil {
			s.t.Fatalf("%s: %v", s.step, err)
		}
	case "Revision":
		if err := s.Client.Create(ctx, object); err != nil {
			s.t.Fatalf("%s: %v", s.step, err)
		}
	case "ServiceStatus":
		s.version++
		now := s.object()
		if now == nil {
			s.t.Fatalf("%s: there is no Knative Service", s.step)
		}
		now.Object["status"] = object.Object["status"]
		if err := s.Client.Status().Update(ctx, now); err != nil {
			s.t.Fatalf("%s: %v", s.step, err)
		}
	default:
		s.t.Fatalf("%s: kind %q: not one that this test knows", s.step, object.GetKind())
	}
}

// impossible is the reason why Kubernetes or Knative would not take an object, empty if they would.
func (s *stage) impossible(object *unstructured.Unstructured) string {
	if object == nil {
		return "Flyte refuses it"
	}
	if wrong := validation.IsDNS1035Label(object.GetName()); len(wrong) > 0 {
		return strings.Join(wrong, "; ")
	}
	if _, err := s.stored(object); err != nil {
		return err.Error()
	}
	return corpus.Refusal(s.t, corpus.Settings(s.t), object.Object, nil)
}

// stored is an object as the API server would store it.
func (s *stage) stored(object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	stored := kind("Service")
	stored.SetName("as-stored-" + strconv.Itoa(s.version))
	stored.SetNamespace(s.cfg.Deploy.Namespace)
	stored.SetLabels(object.GetLabels())
	stored.SetAnnotations(object.GetAnnotations())
	stored.Object["spec"] = object.Object["spec"]
	return stored, s.Client.Create(s.t.Context(), stored, client.DryRunAll)
}

func (s *stage) compare(before, after *unstructured.Unstructured, want corpus.DeployExpect, answer *nats.Msg, op string) {
	s.t.Helper()
	s.revisionsLeft(want.RevisionsLeft)
	if want.KServiceName != kservice.Name(s.id()) {
		s.t.Errorf("%s: the name is %s, want %s", s.step, kservice.Name(s.id()), want.KServiceName)
	}
	if want.NotFound {
		s.version = 0
		if after != nil {
			s.t.Errorf("%s: got %v, want no such object", s.step, after)
		}
		if op != "deploy" {
			s.outcome(answer, map[bool]subjects.Outcome{true: subjects.OutcomeMissing, false: subjects.OutcomeDeleted}[before == nil])
		}
		return
	}
	if want.KService == nil || after == nil {
		s.t.Fatalf("%s: got %v, want %v", s.step, after, want.KService)
	}
	stored, err := s.stored(want.KService)
	if err != nil {
		s.t.Fatalf("%s: what Flyte writes cannot be stored: %v", s.step, err)
	}
	gotObject, wantObject := s.config.SortDefaultEnv(after.Object), s.config.SortDefaultEnv(stored.Object)
	if diff := cmp.Diff(gotObject["spec"], wantObject["spec"]); diff != "" {
		s.t.Errorf("%s: spec, got, want: %s", s.step, diff)
	}
	if diff := cmp.Diff(after.GetLabels(), want.KService.GetLabels()); diff != "" {
		s.t.Errorf("%s: labels, got, want: %s", s.step, diff)
	}
	got, wanted := after.GetAnnotations(), want.KService.GetAnnotations()
	if !proto.Equal(s.specOf(got), s.specOf(wanted)) {
		s.t.Errorf("%s: spec annotation:\n got %v\nwant %v", s.step, s.specOf(got), s.specOf(wanted))
	}
	if err := want.ForgetUnstable(got, wanted); err != nil {
		s.t.Errorf("%s: %v", s.step, err)
	}
	if diff := cmp.Diff(got, wanted); diff != "" {
		s.t.Errorf("%s: annotations, got, want: %s", s.step, diff)
	}
	s.writes(before, after, want.KService, answer, op)
}

// writes compares whether something was written, and whether the answer says so.
func (s *stage) writes(before, after, want *unstructured.Unstructured, answer *nats.Msg, op string) {
	s.t.Helper()
	version, err := strconv.Atoi(want.GetResourceVersion())
	if err != nil {
		s.t.Fatal(err)
	}
	written := before == nil || before.GetResourceVersion() != after.GetResourceVersion()
	// A patch that changes nothing is a write in Flyte's test client alone.
	if op == "deploy" && written != (version != s.version) {
		s.t.Errorf("%s: written: got %t, want %t", s.step, written, version != s.version)
	}
	s.version = version
	outcome := subjects.OutcomeUnchanged
	switch {
	case before == nil:
		outcome = subjects.OutcomeCreated
	case written && op == "stop":
		outcome = subjects.OutcomeStopped
	case written:
		outcome = subjects.OutcomeUpdated
	}
	s.outcome(answer, outcome)
	if got, want := answer.Header.Get(subjects.HeaderResourceVersion), after.GetResourceVersion(); got != want {
		s.t.Errorf("%s: the answer tells of version %s, want %s", s.step, got, want)
	}
	response := read(s.world, answer, &appv1.UpdateResponse{}) // a CreateResponse has the same form
	if got := corpus.AppID(response.GetApp()); got != s.id() {
		s.t.Errorf("%s: the answer tells of %s, want %s", s.step, got, s.id())
	}
}

// specOf reads the spec annotation, and holds the digest to the bytes beside it.
func (s *stage) specOf(annotations map[string]string) *appv1.Spec {
	s.t.Helper()
	spec, err := corpus.Spec(annotations)
	if err != nil {
		s.t.Fatalf("%s: %v", s.step, err)
	}
	return spec
}

func (s *stage) revisionsLeft(want []string) {
	s.t.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kservice.GroupVersion().WithKind("RevisionList"))
	if err := s.Client.List(s.t.Context(), list, client.InNamespace(s.cfg.Deploy.Namespace)); err != nil {
		s.t.Fatal(err)
	}
	got := []string{}
	for _, item := range list.Items {
		got = append(got, item.GetName())
	}
	slices.Sort(got)
	if want := slices.Sorted(slices.Values(want)); !slices.Equal(got, want) {
		s.t.Errorf("%s: revisions left: got %q, want %q", s.step, got, want)
	}
}
