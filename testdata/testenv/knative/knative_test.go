package knative

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/appbridge/appbridge/testdata/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// write writes files below a new folder and returns it.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const (
	featuresFile = "config/configmaps/features.yaml"
	networkFile  = "config/networking/config-network.yaml"
	networkYAML  = "metadata: {name: config-network}\n"
)

// Knative's config maps are taken without their examples, with every feature of pods that the
// example names, and no other.
func TestConfigMaps(t *testing.T) {
	k := &Knative{bin: write(t, map[string]string{
		featuresFile: `
metadata:
  name: config-features
  annotations: {knative.dev/example-checksum: x}
data:
  _example: |
    # What a cluster allows.
    kubernetes.podspec-affinity: "disabled"
    kubernetes.podspec-tolerations: "disabled"
    multi-container: "enabled"
`,
		networkFile: networkYAML,
	})}
	maps, err := k.configMaps()
	if err != nil {
		t.Fatal(err)
	}
	features := maps["config-features"]
	if len(maps) != 2 || features == nil || maps["config-network"] == nil {
		t.Fatalf("the config maps are %v", maps)
	}
	if len(features.Annotations) > 0 {
		t.Errorf("annotations %v: without its example a config map has another checksum", features.Annotations)
	}
	if got := features.Data; len(got) != 2 || got["kubernetes.podspec-affinity"] != "enabled" || got["kubernetes.podspec-tolerations"] != "enabled" {
		t.Errorf("the features are %v", got)
	}
}

func TestConfigMapsRefused(t *testing.T) {
	for name, test := range map[string]struct{ features, want string }{
		"no example":          {"metadata: {name: config-features}", "no feature of pods"},
		"an example of other": {"metadata: {name: config-features}\ndata: {_example: 'multi-container: \"enabled\"'}", "no feature of pods"},
		"an example no YAML":  {"metadata: {name: config-features}\ndata: {_example: '{'}", "features.yaml"},
		"no YAML":             {"{", "features.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			k := &Knative{bin: write(t, map[string]string{featuresFile: test.features, networkFile: networkYAML})}
			if _, err := k.configMaps(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
	k := &Knative{bin: write(t, map[string]string{featuresFile: "metadata: {name: config-other}"})}
	if _, err := k.configMaps(); err == nil || !strings.Contains(err.Error(), "config-network.yaml") {
		t.Errorf("%v, want that config-network.yaml is missing", err)
	}
}

// The settings that are put over Knative's own name its config maps, and do not depend on each other.
func TestFlyteSettings(t *testing.T) {
	first := flyteSettings()
	for name := range first {
		if !strings.HasPrefix(name, "config-") {
			t.Errorf("%s is no config map of Knative's", name)
		}
	}
	first[configDefaults][maxTimeout] = "1"
	if flyteSettings()[configDefaults][maxTimeout] == "1" {
		t.Error("a change of the settings stays")
	}
}

// kwok ignores what it does not know, so what it is given is checked here.
func TestStages(t *testing.T) {
	var names []string
	for _, document := range bytes.Split(kwokStages, []byte("\n---\n")) {
		var stage struct {
			Kind     string
			Metadata struct{ Name string }
			Spec     struct {
				ResourceRef struct{ APIGroup, Kind string }
				Selector    struct {
					MatchExpressions []struct{ Key, Operator string }
				}
				Next struct {
					StatusTemplate string
					Delete         bool
				}
			}
		}
		if err := yaml.Unmarshal(document, &stage); err != nil {
			t.Fatal(err)
		}
		names = append(names, stage.Metadata.Name)
		if stage.Kind != "Stage" || stage.Spec.ResourceRef.Kind == "" || len(stage.Spec.Selector.MatchExpressions) == 0 ||
			stage.Spec.Next.StatusTemplate == "" && !stage.Spec.Next.Delete {
			t.Errorf("a stage that does nothing: %+v", stage)
		}
	}
	if got, want := strings.Join(names, " "), "node-untouched pod-ready pod-fails pod-delete"; got != want {
		t.Errorf("stages %s, want %s", got, want)
	}
}

// Without its binaries Knative does not start, and the error says what builds them.
func TestStartWithoutBinaries(t *testing.T) {
	t.Setenv("APPBRIDGE_KNATIVE_BIN", t.TempDir())
	k, err := Start(t.Context(), &testenv.Cluster{}, Options{})
	if err == nil || !strings.Contains(err.Error(), "make knative-bin") {
		t.Errorf("%v, want that it says how to build them", err)
	}
	if k != nil {
		t.Error("it returns something that does not run")
	}
}
