package knative_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv/corpus"
)

const repositoryRoot = "../.."

// differences are the cases whose Knative Service, as Flyte writes it, Knative refuses: with what
// its webhook says. A case that is no longer refused fails, and so does one refused with other words.
func differences() map[string]string {
	return map[string]string{
		"deploy.json pod":                         "missing field(s): spec.template.spec.containers[*].ports", // of two containers one has to have a port
		"cases autoscaling-replicas-min-over-max": "max-scale=2 is less than min-scale=5",
		"cases autoscaling-window-1h30m":          "expected 6s <= 1h30m0s <= 1h0m0s",
		"cases container-env-odd-keys":            "missing field(s): spec.template.spec.containers[0].env[1].name",
		"cases container-ports-two":               "more than one container port is set",
		"cases ingress-name-upper":                "could not parse reference: ghcr.io/acme/MyApp:1.4.2", // upper case in a repository
	}
}

// checkDifferences holds refusals, by case, to the table.
func checkDifferences(t *testing.T, in string, refusals map[string]string) {
	t.Helper()
	named := differences()
	for name, text := range refusals {
		if want, ok := named[in+" "+name]; !ok || !strings.Contains(text, want) {
			t.Errorf("%s: Knative refuses it: %s; the table has %q", name, text, want)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(named)) {
		if name, ok := strings.CutPrefix(key, in+" "); ok && refusals[name] == "" {
			t.Errorf("%s: Knative takes it: remove it from the table of differences", name)
		}
	}
}

// replaceImages gives images whose repository has a name of one letter another name: Knative
// refuses them, and they are in the corpus for shortness alone.
func replaceImages(value any) {
	switch v := value.(type) {
	case []any:
		for _, item := range v {
			replaceImages(item)
		}
	case map[string]any:
		for key, item := range v {
			name, isText := item.(string)
			repository, tag, _ := strings.Cut(name, ":")
			if key == "image" && isText && len(path.Base(repository)) == 1 {
				v[key] = strings.TrimSuffix("dev.local/corpus/image-"+path.Base(repository)+":"+tag, ":")
			}
			replaceImages(item)
		}
	}
}

func replacedApp(t *testing.T, app *appv1.App) *appv1.App {
	t.Helper()
	text, err := protojson.Marshal(app)
	if err != nil {
		t.Fatal(err)
	}
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatal(err)
	}
	replaceImages(value)
	if text, err = json.Marshal(value); err != nil {
		t.Fatal(err)
	}
	out := &appv1.App{}
	if err := protojson.Unmarshal(text, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// stage is where the steps of the corpus are played.
type stage struct {
	*world
	t       *testing.T
	step    string
	app     *appv1.App // the last one named
	written int
	refusal string // the webhook's
	steps   int
}

// TestCorpusDeploys plays the deploy steps of the corpus through the bridge and the webhook: what
// is stored is what the webhook makes of the Knative Service that Flyte writes.
func TestCorpusDeploys(t *testing.T) {
	w := sharedWorld(t)
	began, refusals, steps := time.Now(), map[string]string{}, 0
	ids := map[subjects.AppID]bool{}
	cases := corpus.Each(t, filepath.Join(corpus.Dir(repositoryRoot), "deploy.json"), func(t *testing.T, one corpus.DeployCase) {
		s := &stage{world: w, t: t}
		used := map[subjects.AppID]bool{}
		defer func() {
			for id := range used {
				ids[id] = true
				s.clear(id)
			}
		}()
		for i, step := range one.Steps {
			s.step = fmt.Sprintf("step %d, %s", i, step.Op)
			if app := step.App(t); app != nil {
				s.app = replacedApp(t, app)
				used[corpus.AppID(s.app)] = true
			}
			if !s.play(step) {
				break
			}
		}
		if s.refusal != "" {
			refusals[one.Name] = s.refusal
		}
		steps += s.steps
	})
	if cases == 0 || steps == 0 {
		t.Fatalf("%d cases and %d steps were played", cases, steps)
	}
	checkDifferences(t, "deploy.json", refusals)
	t.Logf("deploy.json: %d cases, %d steps compared, %d refused by Knative", cases, steps, len(refusals))
	all := slices.Collect(maps.Keys(ids))
	results.add(result{t.Name(), w.judge(t, nil, all...), time.Since(began)})
}

// play plays a step and reports whether the case can go on.
func (s *stage) play(step corpus.DeployStep) bool {
	s.t.Helper()
	if step.Op == "seed" {
		s.seed(step.Object)
		return true
	}
	want, id := step.Expect.Value, corpus.AppID(s.app)
	before := s.object(id)
	got := s.operate(step.Op, id)
	if want.Error != "" || want.Panic != "" {
		s.steps++
		if code := subjects.CodeInvalidArgument.HeaderValue(); !strings.HasPrefix(got.refused(), code+" ") {
			s.t.Errorf("%s: got %q, want code %s", s.step, got.refused(), code)
		}
		return true
	}
	if want.NotFound {
		s.steps++
		if got.outcome() != subjects.OutcomeMissing && got.outcome() != subjects.OutcomeDeleted {
			s.t.Errorf("%s: got outcome %q and error %q", s.step, got.outcome(), got.refused())
		}
		return true
	}
	if owner, owned := before.GetAnnotations()[kservice.AnnotationAppID]; before.Object != nil && (!owned || owner != id.String()) {
		// Another app's object, which Flyte takes over.
		if code := subjects.CodeFailedPrecondition.HeaderValue(); !strings.HasPrefix(got.refused(), code+" ") {
			s.t.Errorf("%s: got %q, want code %s", s.step, got.refused(), code)
		}
		return false
	}
	flyte := want.KService.DeepCopy()
	replaceImages(flyte.Object)
	s.written++
	stored, err := s.writes(s.t, fmt.Sprintf("%s-%d", path.Base(s.t.Name()), s.written), flyte)
	if err != nil {
		s.refusal = err.Error()
		s.steps++
		if code := subjects.CodeInvalidArgument.HeaderValue(); !strings.HasPrefix(got.refused(), code+" ") {
			s.t.Errorf("%s: got %q, want code %s: Knative refuses it: %v", s.step, got.refused(), code, err)
		}
		return false
	}
	if text := got.refused(); text != "" {
		s.t.Errorf("%s: it is refused, and Knative takes it: %s", s.step, text)
		return false
	}
	s.compare(s.object(id), stored, flyte)
	s.steps++
	return true
}

func (s *stage) operate(op string, id subjects.AppID) answer {
	s.t.Helper()
	var body proto.Message
	var api subjects.APIOp
	switch op {
	case "deploy":
		api, body = subjects.APIDeploy, &appv1.CreateRequest{App: s.app}
	case "stop":
		api, body = subjects.APIStop, &appv1.UpdateRequest{App: &appv1.App{Metadata: s.app.GetMetadata()}}
	case "delete":
		api, body = subjects.APIDelete, &appv1.DeleteRequest{AppId: s.app.GetMetadata().GetId()}
	default:
		s.t.Fatalf("op %q: not one that this test knows", op)
	}
	got, err := s.request(s.t.Context(), api, id, body)
	if err != nil {
		s.t.Fatal(err)
	}
	return got
}

func service() *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kservice.GroupVersion().WithKind("Service"))
	return object
}

// object is an app's Knative Service, empty when there is none.
func (s *stage) object(id subjects.AppID) *unstructured.Unstructured {
	s.t.Helper()
	object := service()
	err := s.Client.Get(s.t.Context(), client.ObjectKey{Namespace: s.namespace, Name: kservice.Name(id)}, object)
	if apierrors.IsNotFound(err) {
		return &unstructured.Unstructured{}
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return object
}

// seed creates what a case begins with. Statuses and Revisions are Knative's own to make.
func (s *stage) seed(object *unstructured.Unstructured) {
	s.t.Helper()
	if object.GetKind() != "Service" {
		return
	}
	object = object.DeepCopy()
	object.SetResourceVersion("")
	if err := s.Client.Create(s.t.Context(), object); err != nil {
		s.t.Fatalf("%s: %v", s.step, err)
	}
}

// corpusNamespace is where the webhook is shown what Flyte writes. No bridge watches it.
const corpusNamespace = "corpus"

// writes is an object of Flyte's as it would be stored after Knative's webhook, under another name,
// or the webhook's refusal.
func (w *world) writes(t *testing.T, name string, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	t.Helper()
	stored := service()
	stored.SetName(name)
	stored.SetNamespace(w.namespace)
	stored.SetLabels(object.GetLabels())
	stored.SetAnnotations(object.GetAnnotations())
	stored.Object["spec"] = object.DeepCopy().Object["spec"]
	inEarnest := stored.DeepCopy()
	err := w.Client.Create(t.Context(), stored, client.DryRunAll)
	if err == nil || !strings.Contains(err.Error(), "dry run failed") {
		return stored, err
	}
	// Of a dry run alone the webhook also asks Kubernetes whether it takes the pod.
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: corpusNamespace}}
	if err := w.Client.Create(t.Context(), namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	inEarnest.SetNamespace(corpusNamespace)
	return inEarnest, w.Client.Create(t.Context(), inEarnest)
}

// compare holds the stored object to what the webhook makes of Flyte's.
func (s *stage) compare(got, want, flyte *unstructured.Unstructured) {
	s.t.Helper()
	if got.Object == nil {
		s.t.Errorf("%s: there is no Knative Service", s.step)
		return
	}
	if diff := cmp.Diff(got.Object["spec"], want.Object["spec"]); diff != "" {
		s.t.Errorf("%s: spec, got, want: %s", s.step, diff)
	}
	if diff := cmp.Diff(got.GetLabels(), flyte.GetLabels()); diff != "" {
		s.t.Errorf("%s: labels, got, want: %s", s.step, diff)
	}
	written, err := corpus.Spec(flyte.GetAnnotations())
	if err != nil {
		s.t.Fatal(err)
	}
	spec, err := corpus.Spec(got.GetAnnotations())
	if err != nil {
		s.t.Fatal(err)
	}
	if want := replacedApp(s.t, &appv1.App{Spec: written}).GetSpec(); !proto.Equal(spec, want) {
		s.t.Errorf("%s: spec annotation:\n got %v\nwant %v", s.step, spec, want)
	}
	if diff := cmp.Diff(flytes(got), flytes(flyte)); diff != "" {
		s.t.Errorf("%s: annotations, got, want: %s", s.step, diff)
	}
}

// flytes are an object's annotations without those that Knative writes and that of the spec.
func flytes(object *unstructured.Unstructured) map[string]string {
	annotations := object.GetAnnotations()
	for _, name := range []string{
		"serving.knative.dev/creator", "serving.knative.dev/lastModifier", kservice.AnnotationSpec, kservice.AnnotationSpecSHA,
	} {
		delete(annotations, name)
	}
	return annotations
}

// clear deletes what a case left, and waits until its Revisions are gone.
func (s *stage) clear(id subjects.AppID) {
	s.t.Helper()
	object := service()
	object.SetName(kservice.Name(id))
	object.SetNamespace(s.namespace)
	if err := s.Client.Delete(s.t.Context(), object); client.IgnoreNotFound(err) != nil {
		s.t.Fatal(err)
	}
	(&app{world: s.world, t: s.t, id: id}).leavesNothing()
}

// TestCorpusObjects shows the webhook every Knative Service of the corpus.
func TestCorpusObjects(t *testing.T) {
	w := sharedWorld(t)
	files, err := filepath.Glob(filepath.Join(corpus.Dir(repositoryRoot), "cases", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	refusals := map[string]string{}
	for i, file := range files {
		var one struct {
			Name     string                     `json:"name"`
			KService *unstructured.Unstructured `json:"kservice"`
		}
		if err := json.Unmarshal(corpus.ReadFile(t, file), &one); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		replaceImages(one.KService.Object)
		if _, err := w.writes(t, "object-"+strconv.Itoa(i), one.KService); err != nil {
			refusals[one.Name] = err.Error()
		}
	}
	checkDifferences(t, "cases", refusals)
	t.Logf("cases: %d objects, %d refused by Knative", len(files), len(refusals))
}
