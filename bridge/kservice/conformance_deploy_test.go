package kservice_test

import (
	"encoding/json"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv/corpus"
)

// runDeploy plays every case of deploy.json on objects in memory. That a foreign
// object is not taken over is not for these functions to see, so here it is, as in
// Flyte.
func runDeploy(t *testing.T, path string) int {
	return corpus.Each(t, path, func(t *testing.T, c corpus.DeployCase) {
		world := &deployWorld{
			config:    c.Config.Value,
			policy:    c.Names(t).Policy(t),
			services:  map[string]map[string]any{},
			revisions: map[string]bool{},
		}
		for i, step := range c.Steps {
			t.Run(strconv.Itoa(i)+"-"+step.Op, func(t *testing.T) { world.play(t, step) })
		}
	})
}

// TestConformanceDefaults plays a made-up case with what the corpus does not
// configure: a default environment, in an order of its own, and service account.
func TestConformanceDefaults(t *testing.T) {
	if cases := runDeploy(t, filepath.Join(repositoryRoot, corpus.DefaultsFile)); cases != 1 {
		t.Errorf("got %d cases, want 1", cases)
	}
}

// deployWorld is a cluster that stores what it is given.
type deployWorld struct {
	config    corpus.DeployConfig
	policy    kservice.Policy           // what the case needs
	services  map[string]map[string]any // by name
	revisions map[string]bool           // by name
	app       *appv1.App                // the last one named
	// ended tells that Flyte has deployed what is refused here.
	ended bool
}

func (w *deployWorld) play(t *testing.T, step corpus.DeployStep) {
	t.Helper()
	if w.ended {
		return
	}
	if app := step.App(t); app != nil {
		w.app = app
	}
	want := step.Expect.Value
	name := kservice.Name(corpus.AppID(w.app))
	switch step.Op {
	case "seed":
		w.seed(t, name, step.Object)
		return
	case "deploy":
		w.deploy(t, name, want)
	case "stop":
		w.stop(t, name)
	case "delete":
		delete(w.services, name)
	default:
		t.Fatalf("op %q: not one that this test knows", step.Op)
	}
	if !w.ended {
		w.check(t, name, want)
	}
}

func (w *deployWorld) seed(t *testing.T, name string, seeded *unstructured.Unstructured) {
	t.Helper()
	switch kind := seeded.GetKind(); kind {
	case "Service":
		w.put(seeded.GetName(), seeded.Object)
	case "Revision":
		w.revisions[seeded.GetName()] = true
	case "ServiceStatus":
		svc := w.services[name]
		if svc == nil {
			t.Fatalf("a status for %s, which is not there", name)
		}
		svc["status"] = seeded.Object["status"]
		w.put(name, svc)
	default:
		t.Fatalf("kind %q: not one that this test knows", kind)
	}
}

// put writes an object. Its version counts the writes.
func (w *deployWorld) put(name string, content map[string]any) {
	object := unstructured.Unstructured{Object: content}
	written, _ := strconv.Atoi(object.GetResourceVersion())
	object.SetResourceVersion(strconv.Itoa(written + 1))
	w.services[name] = object.Object
}

func (w *deployWorld) deploy(t *testing.T, name string, want corpus.DeployExpect) {
	t.Helper()
	refused := want.Error != "" || want.Panic != ""
	id, cfg := corpus.AppID(w.app), w.config.Deploy()
	cfg.Policy = w.policy
	before := proto.CloneOf(w.app)
	found, denied := validateApp(id, w.app, cfg)
	if len(denied) > 0 {
		t.Errorf("denied: %q", denied)
	}
	manifest, err := build(id, w.app, cfg)
	if !proto.Equal(w.app, before) {
		t.Error("the app was changed")
	}
	if refused {
		if err == nil || manifest != nil || len(found) == 0 {
			t.Errorf("got %v, %v and problems %q, want an error alone and a problem", manifest, err, found)
		}
		return
	}
	if err != nil {
		for problem := range strings.Lines(err.Error()) {
			if whyRefused(problem) == "" {
				t.Errorf("Build: %s", problem)
			}
		}
		t.Logf("not deployed, and nothing after it looked at: %v", err)
		w.ended = true
		return
	}
	if len(found) > 0 {
		t.Logf("a real API server would refuse this: %q", found)
	}
	if manifest.Name != name {
		t.Errorf("name: got %q, want %q", manifest.Name, name)
	}
	existing, ok := w.services[name]
	if !ok {
		checkAsKnative(t, manifest, w.app, cfg, want.KService)
		w.put(name, deployedObject(t, manifest))
		return
	}
	there := unstructured.Unstructured{Object: existing}
	if kservice.Unchanged(there.GetLabels(), there.GetAnnotations(), manifest) {
		return
	}
	checkAsKnative(t, manifest, w.app, cfg, want.KService)
	if err := kservice.Apply(manifest, existing); err != nil {
		t.Fatalf("Apply: %v", err)
	}
	w.put(name, existing)
}

func (w *deployWorld) stop(t *testing.T, name string) {
	t.Helper()
	existing, ok := w.services[name]
	if !ok {
		return
	}
	there := unstructured.Unstructured{Object: existing}
	var patch map[string]any
	if err := json.Unmarshal(kservice.StopPatch(there.GetResourceVersion()), &patch); err != nil {
		t.Fatalf("the patch is no JSON object: %v", err)
	}
	w.put(name, mergePatch(existing, patch))
	ready, _, err := unstructured.NestedString(existing, "status", "latestReadyRevisionName")
	if err != nil {
		t.Fatal(err)
	}
	delete(w.revisions, ready)
}

func (w *deployWorld) check(t *testing.T, name string, want corpus.DeployExpect) {
	t.Helper()
	if want.KServiceName != "" && name != want.KServiceName {
		t.Errorf("name: got %q, want %q", name, want.KServiceName)
	}
	left := make([]string, 0, len(w.revisions))
	for revision := range w.revisions {
		left = append(left, revision)
	}
	slices.Sort(left)
	if wantLeft := slices.Sorted(slices.Values(want.RevisionsLeft)); !slices.Equal(left, wantLeft) {
		t.Errorf("revisions left: got %q, want %q", left, wantLeft)
	}
	got, ok := w.services[name]
	switch {
	case want.NotFound:
		if ok {
			t.Errorf("got %v, want no such object", got)
		}
		return
	case want.KService == nil:
		if want.Error == "" && want.Panic == "" {
			t.Error("the step has no expectation")
		}
		return
	case !ok:
		t.Fatal("got no such object, want one")
	}
	gotService := serviceOf(t, w.config.SortDefaultEnv(got))
	wantService := serviceOf(t, w.config.SortDefaultEnv(want.KService.Object))
	checkSpecAnnotations(t, gotService, wantService)
	if err := want.ForgetUnstable(gotService.Annotations, wantService.Annotations); err != nil {
		t.Error(err)
	}
	if !equality.Semantic.DeepEqual(gotService, wantService) {
		t.Errorf("got, want: %s", cmp.Diff(gotService, wantService))
	}
}

// checkSpecAnnotations compares the spec of two objects as messages, and each
// digest with the bytes beside it.
func checkSpecAnnotations(t *testing.T, got, want *servingv1.Service) {
	t.Helper()
	gotSpec, wantSpec := specOf(t, got), specOf(t, want)
	if !proto.Equal(gotSpec, wantSpec) {
		t.Errorf("spec annotation:\n got %v\nwant %v", gotSpec, wantSpec)
	}
}

func specOf(t *testing.T, svc *servingv1.Service) *appv1.Spec {
	t.Helper()
	spec, err := corpus.Spec(svc.Annotations)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// serviceOf reads an object, or JSON, as Knative does; a field that it does not
// know is an error.
func serviceOf(t *testing.T, from any) *servingv1.Service {
	t.Helper()
	raw, ok := from.(json.RawMessage)
	if !ok {
		var err error
		if raw, err = json.Marshal(from); err != nil {
			t.Fatal(err)
		}
	}
	var out corpus.Strict[servingv1.Service]
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatalf("not a Knative Service: %v\n%s", err, raw)
	}
	return &out.Value
}

// mergePatch applies a JSON merge patch (RFC 7386).
func mergePatch(object, patch map[string]any) map[string]any {
	if object == nil {
		object = map[string]any{}
	}
	for key, value := range patch {
		switch v := value.(type) {
		case nil:
			delete(object, key)
		case map[string]any:
			inner, _ := object[key].(map[string]any)
			object[key] = mergePatch(inner, v)
		default:
			object[key] = v
		}
	}
	return object
}

// checkAsKnative checks that Check refuses a Service if Knative refuses the spec that Flyte makes of
// the app. The metadata have more: what others wrote, and a name that is checked with the id.
func checkAsKnative(t *testing.T, got *servingv1.Service, app *appv1.App, cfg kservice.DeployConfig, want *unstructured.Unstructured) {
	t.Helper()
	plain := map[string]any{"metadata": map[string]any{"name": "app"}, "spec": want.Object["spec"]}
	refusal := corpus.Refusal(t, corpus.Settings(t), plain, nil)
	problems := kservice.Check(got, app, cfg)
	if (refusal == "") != (len(problems) == 0) {
		t.Errorf("Check: got %q, and Knative says %q", problems, refusal)
	}
	if refusal != "" {
		t.Logf("Knative refuses what Flyte writes: %q", refusal)
	}
}

// deployedObject is a manifest as an object that Kubernetes' types can hold.
func deployedObject(t *testing.T, m *servingv1.Service) map[string]any {
	t.Helper()
	got, err := kservice.Object(m)
	if err != nil {
		t.Fatalf("Object: %v", err)
	}
	// Panics on a type that is not one of JSON's.
	if again := runtime.DeepCopyJSON(got); !reflect.DeepEqual(again, got) {
		t.Errorf("a copy differs:\n got %v\nwant %v", again, got)
	}
	return got
}

// whyRefused says why an app with such a problem is not deployed, empty when there
// is no reason that is known.
func whyRefused(problem string) string {
	const impossible = "Kubernetes refuses it, so that it is refused here before that"
	for _, known := range []struct{ problem, reason string }{
		{`^app\.spec: has neither a container nor a pod`, "Flyte refuses it too"},
		{`^app\.spec\.pod\.podSpec.*: (missing|.*want a number|has no value|field .* is )`, "Flyte refuses it too"},
		{`^app\.spec\..*: want a quantity`, "Flyte panics"},
		{`^app\.spec\.securityContext\.secrets\[\d+\]\.mountRequirement: `, "Flyte refuses it too"},
		{`: want at most 65535`, impossible},
		{`: want no negative quantity`, impossible},
		{`: want a duration as protobuf has it`, impossible},
	} {
		if regexp.MustCompile(known.problem).MatchString(problem) {
			return known.reason
		}
	}
	return ""
}
