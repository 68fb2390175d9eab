// Package chart tests the Helm chart: what each variant of its values renders is created on a real
// API server, and the program starts with the configuration in it.
package chart

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

const (
	root     = "../.."
	chartDir = "deploy/chart/appbridge"
)

var world = kubesuite.SharedWorld{Prepare: installMonitoring}

func TestMain(m *testing.M) { suite.Main(m, world.Stop) }

// installMonitoring installs the definitions of PodMonitor and PrometheusRule.
func installMonitoring(ctx context.Context, w *kubesuite.World) error {
	const module = "github.com/prometheus-operator/prometheus-operator"
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-modfile=.ci/prometheus-operator.mod", "-json", module)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return errors.Join(err, errors.New(string(out)))
	}
	var downloaded struct{ Dir string }
	if err := json.Unmarshal(out, &downloaded); err != nil {
		return err
	}
	for _, name := range []string{"podmonitors", "prometheusrules"} {
		file := filepath.Join(downloaded.Dir, "example", "prometheus-operator-crd", "monitoring.coreos.com_"+name+".yaml")
		apply := w.Prepare(exec.CommandContext(ctx, "kubectl", "apply", "--server-side", "-f", file))
		if out, err := apply.CombinedOutput(); err != nil {
			return errors.Join(err, errors.New(string(out)))
		}
	}
	wait := w.Prepare(exec.CommandContext(ctx, "kubectl", "wait", "--for=condition=Established", "--timeout=5m", "crd/podmonitors.monitoring.coreos.com", "crd/prometheusrules.monitoring.coreos.com"))
	if out, err := wait.CombinedOutput(); err != nil {
		return errors.Join(err, errors.New(string(out)))
	}
	return nil
}

// template runs helm template, and returns what it prints on standard error when it fails.
func template(t *testing.T, release, namespace string, args ...string) (rendered string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), suite.Tool(t, root, "helm"), append([]string{"template", release, chartDir, "--namespace", namespace}, args...)...)
	cmd.Dir = root
	var out, failed bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &failed
	if err := cmd.Run(); err != nil {
		return "", errors.New(failed.String())
	}
	return out.String(), nil
}

// A release is the chart rendered with values.
type release struct {
	name, namespace string
	text            string
	objects         []*unstructured.Unstructured
}

func render(t *testing.T, name string, args ...string) release {
	t.Helper()
	r := release{name: name, namespace: "bridge-" + name}
	text, err := template(t, r.name, r.namespace, args...)
	if err != nil {
		t.Fatal(err)
	}
	r.text = text
	for document := range strings.SplitSeq(text, "\n---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict([]byte(document), &object.Object); err != nil {
			t.Fatalf("%v:\n%s", err, document)
		}
		if len(object.Object) > 0 {
			r.objects = append(r.objects, object)
		}
	}
	return r
}

// get is the object of a kind and a name into the given one.
func (r release) get(t *testing.T, kind, name string, into any) {
	t.Helper()
	for _, object := range r.objects {
		if object.GetKind() == kind && (name == "" || object.GetName() == name) {
			text, err := object.MarshalJSON()
			if err == nil {
				err = json.Unmarshal(text, into)
			}
			if err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("%s: no %s %s", r.name, kind, name)
}

// kinds counts the objects.
func (r release) kinds() map[string]int {
	kinds := map[string]int{}
	for _, object := range r.objects {
		kinds[object.GetKind()]++
	}
	return kinds
}

// namespaces are those of the objects.
func (r release) namespaces() []string {
	names := map[string]bool{r.namespace: true}
	for _, object := range r.objects {
		if namespace := object.GetNamespace(); namespace != "" {
			names[namespace] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// variants are the values of the chart's folder ci, and none: the defaults.
func variants(t *testing.T) map[string][]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, chartDir, "ci", "*-values.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no values: %v", err)
	}
	all := map[string][]string{"default": nil}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), "-values.yaml")
		all[name] = []string{"--values", filepath.Join(chartDir, "ci", filepath.Base(file))}
	}
	return all
}

// createNamespaces makes those that are missing; the API server checks pods of the release's own
// namespace by the strictest standard.
func createNamespaces(t *testing.T, w *kubesuite.World, r release) {
	t.Helper()
	for _, name := range r.namespaces() {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if name == r.namespace {
			namespace.Labels = map[string]string{"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"}
		}
		if err := w.Client.Create(t.Context(), namespace); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
}

// apply runs kubectl apply and returns what it prints.
func apply(t *testing.T, w *kubesuite.World, text string, args ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rendered.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := w.Prepare(exec.CommandContext(t.Context(), "kubectl", append([]string{"apply", "--server-side", "--validate=strict", "-f", file}, args...)...))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl apply %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// config is the configuration file.
func (r release) config(t *testing.T) string {
	t.Helper()
	var files corev1.ConfigMap
	for _, object := range r.objects {
		if object.GetKind() != "ConfigMap" {
			continue
		}
		r.get(t, "ConfigMap", object.GetName(), &files)
		if text, ok := files.Data["appbridge.yaml"]; ok {
			return text
		}
	}
	t.Fatalf("%s: no configuration file", r.name)
	return ""
}

// option is an option of the configuration file that is one text.
func (r release) option(t *testing.T, name string) string {
	t.Helper()
	values := map[string]any{}
	if err := yaml.UnmarshalStrict([]byte(r.config(t)), &values); err != nil {
		t.Fatal(err)
	}
	text, ok := values[name].(string)
	if !ok {
		t.Fatalf("%s: %s is %v, want a text", r.name, name, values[name])
	}
	return text
}
