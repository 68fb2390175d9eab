package kservice_test

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// podPath is a field of a pod spec, found in the types of Kubernetes alone.
type podPath struct {
	text string // such as volumes[].secret.secretName
	// spec is a pod spec in JSON that sets this field and nothing else.
	spec any
	leaf bool // it has no fields of its own
}

// podPaths are all fields that a pod spec can set, those of lists in their first element, in
// order. A type within itself would make it endless, and there is none.
func podPaths(t *testing.T) []podPath {
	t.Helper()
	var found []podPath
	var fields func(reflect.Type, string, func(any) any)
	values := func(typ reflect.Type, path string, wrap func(any) any) {
		if typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		for typ.Kind() == reflect.Slice && typ != reflect.TypeFor[[]byte]() {
			outer := wrap
			typ, path, wrap = typ.Elem(), path+"[]", func(v any) any { return outer([]any{v}) }
		}
		if typ.Kind() == reflect.Struct && example(typ) == nil {
			found = append(found, podPath{path, wrap(map[string]any{}), false})
			fields(typ, path+".", wrap)
			return
		}
		value := example(typ)
		if value == nil {
			t.Fatalf("%s: a %s, of which this test knows no value", path, typ)
		}
		found = append(found, podPath{path, wrap(value), true})
	}
	fields = func(typ reflect.Type, path string, wrap func(any) any) {
		for i := range typ.NumField() {
			field := typ.Field(i)
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name == "" {
				fields(field.Type, path, wrap)
				continue
			}
			values(field.Type, path+name, func(v any) any { return wrap(map[string]any{name: v}) })
		}
	}
	fields(reflect.TypeFor[corev1.PodSpec](), "", func(v any) any { return v })
	return found
}

// example is a value of a type that is none of a pod spec's own, nil for another type.
func example(typ reflect.Type) any {
	switch typ {
	case reflect.TypeFor[resource.Quantity]():
		return "1"
	case reflect.TypeFor[intstr.IntOrString]():
		return 80.0
	case reflect.TypeFor[metav1.LabelSelector](), reflect.TypeFor[metav1.ObjectMeta]():
		return map[string]any{}
	case reflect.TypeFor[metav1.Time]():
		return "2026-01-01T00:00:00Z"
	}
	switch typ.Kind() {
	case reflect.String:
		return "x"
	case reflect.Bool:
		return true
	case reflect.Int32, reflect.Int64:
		return 1.0
	case reflect.Map:
		return map[string]any{"x": example(typ.Elem())}
	case reflect.Slice:
		return "eA=="
	default:
		return nil
	}
}

// deniedBy is what the policy denies of an app with a pod spec.
func deniedBy(t *testing.T, cfg kservice.DeployConfig, podSpec any) []string {
	t.Helper()
	value, err := structpb.NewValue(podSpec)
	if err != nil {
		t.Fatal(err)
	}
	id, app := deployedApp(t, `{}`)
	app.Spec.AppPayload = &appv1.Spec_Pod{Pod: &appv1.K8SPod{PodSpec: value.GetStructValue()}}
	wrong, denied := validateApp(id, app, cfg)
	if len(wrong) > 0 {
		t.Fatalf("%v: %q", podSpec, wrong)
	}
	return denied
}

// suspicious are names of fields by which a pod spec may name a Secret, a ConfigMap, a service
// account, another object, the node or the host. It knows nothing of the table.
var suspicious = regexp.MustCompile(`(?i)secret|configmap|account|token|host|node|user|privilege|procmount|sysctl|selinux|profile|claim|class|signer|template|device|driver|priority|schedul|propagation|namespace|gate|overhead|share`)

// inside are suspicious fields that reach nothing, by the end of their path, with the reason.
var inside = map[string]string{
	"automountServiceAccountToken": "a token of an account that the app may run as",
	"hostname":                     "the pod's own",
	"hostnameOverride":             "the pod's own",
	"setHostnameAsFQDN":            "the pod's own",
	"hostnames[]":                  "lines in the pod's own hosts file",
	"runAsUser":                    "within the container, as in the baseline of Pod Security",
	"allowPrivilegeEscalation":     "within the container, as in the baseline of Pod Security",
	"devicePath":                   "where a volume of the pod is",
	"nodeSelector":                 "the scheduler decides",
	"nodeAffinityPolicy":           "the scheduler decides",
	"nodeTaintsPolicy":             "the scheduler decides",
	"namespaces[]":                 "where the scheduler looks for pods to be near to",
	"namespaceSelector":            "where the scheduler looks for pods to be near to",
}

// verdicts are what the reasons for a denial begin with, by what they come to.
var verdicts = []struct{ verdict, reason string }{
	{"service account", "not in --allowed-service-accounts"},
	{"secret", "no pattern of --allowed-references matches this secret"},
	{"configmap", "no pattern of --allowed-references matches this configmap"},
	{"persistentvolumeclaim", "no pattern of --allowed-references matches this persistentvolumeclaim"},
	{"host", "reaches the node, no option allows it"},
	{"host", "tolerates the taints of the control plane, no option allows it"},
	{"refused", "reaches beyond the app, no option allows it"},
}

// Every field in the types of Kubernetes is classified: in a pod spec of its own it is allowed or
// denied as testdata/policy.golden has it, which leaves out what is below a denied field. A field
// that a later version adds is denied, and fails this test until it is in the table.
func TestPolicyPaths(t *testing.T) {
	var lines []string
	for _, path := range podPaths(t) {
		verdict, whole := "allowed", true
		for _, text := range deniedBy(t, deployDefaults(), path.spec) {
			field, reason, _ := strings.Cut(text, ": ")
			field = strings.ReplaceAll(strings.TrimPrefix(field, "app.spec.pod.podSpec."), "[0]", "[]")
			verdict = ""
			for _, v := range verdicts {
				if reason == v.reason || strings.HasPrefix(reason, `"`) && strings.Contains(reason, ": "+v.reason) {
					verdict = v.verdict
				}
			}
			if verdict == "" {
				t.Errorf("%s: not classified: %s", path.text, text)
			}
			// What is denied is the field or what it is part of.
			switch {
			case field == path.text, field+"[]" == path.text, strings.HasPrefix(path.text, "tolerations[]"):
			case strings.HasPrefix(path.text, field+"."), strings.HasPrefix(path.text, field+"["):
				whole = false
			default:
				t.Errorf("%s: denied as %s", path.text, text)
			}
		}
		last := path.text[strings.LastIndex(path.text, ".")+1:]
		if verdict == "allowed" && path.leaf && suspicious.MatchString(last) && inside[last] == "" {
			t.Errorf("%s: allowed, and not known to reach nothing", path.text)
		}
		if whole {
			lines = append(lines, path.text+": "+verdict+"\n")
		}
	}
	golden := filepath.Join("testdata", "policy.golden")
	got := strings.Join(lines, "")
	if *apptest.Update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(got, "\n"), strings.Split(string(want), "\n")); diff != "" {
		t.Errorf("testdata/policy.golden: got, want; -update rewrites it: %s", diff)
	}
}
