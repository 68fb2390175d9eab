package chart

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/appbridge/appbridge/testdata/testenv/configtest"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// TestConform: kubeconform accepts every variant by the schemas of the API server, in which an
// unknown field is an error, and by them finds a field that does not exist.
func TestConform(t *testing.T) {
	w := world.Get(t)
	all := variants(t)
	rendered := map[string]release{}
	for name, values := range all {
		rendered[name] = render(t, name, values...)
	}
	schemas := writeSchemas(t, w, rendered)
	kubeconform := suite.Tool(t, root, "kubeconform")
	check := func(text string) (string, error) {
		t.Helper()
		file := configtest.WriteFile(t, t.TempDir(), "rendered.yaml", text)
		out, err := exec.CommandContext(t.Context(), kubeconform, "-strict", "-summary", "-schema-location", schemas+"/{{ .ResourceKind }}{{ .KindSuffix }}.json", file).CombinedOutput()
		return string(out), err
	}
	for name, r := range rendered {
		out, err := check(r.text)
		if want := fmt.Sprintf("%d resources found in 1 file - Valid: %d,", len(r.objects), len(r.objects)); err != nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v\n%s\nwant %q", name, err, out, want)
		}
	}
	for _, wrong := range []struct{ old, new, want string }{
		{"readOnlyRootFilesystem: true", "readOnlyRootFileSystem: true", "'readOnlyRootFileSystem'"},
		{"maxUnavailable: 1", "maxUnavailable: [1]", "maxUnavailable"},
		{"path: /metrics", "pathh: /metrics", "'pathh'"},
	} {
		text := rendered["everything"].text
		if !strings.Contains(text, wrong.old) {
			t.Fatalf("no %q is rendered", wrong.old)
		}
		out, err := check(strings.ReplaceAll(text, wrong.old, wrong.new))
		if err == nil || !strings.Contains(out, wrong.want) {
			t.Errorf("with %q: got %v\n%s\nwant %q in it", wrong.new, err, out, wrong.want)
		}
	}
}

// writeSchemas writes a JSON schema for each kind of the releases, from what the API server
// publishes, and returns the folder.
func writeSchemas(t *testing.T, w *kubesuite.World, releases map[string]release) string {
	t.Helper()
	dir := t.TempDir()
	paths := map[string]map[string]bool{} // of a group and version → kinds
	for _, r := range releases {
		for _, object := range r.objects {
			path := "apis/" + object.GetAPIVersion()
			if object.GetAPIVersion() == "v1" {
				path = "api/v1"
			}
			if paths[path] == nil {
				paths[path] = map[string]bool{}
			}
			paths[path][object.GetKind()] = true
		}
	}
	for path, kinds := range paths {
		// A definition that is new appears seconds after it serves.
		suite.Eventually(t, suite.Patience, "the schemas of "+path, func() error { return writeSchemasOf(t, w, dir, path, maps.Clone(kinds)) })
	}
	return dir
}

func writeSchemasOf(t *testing.T, w *kubesuite.World, dir, path string, kinds map[string]bool) error {
	t.Helper()
	out, err := w.Prepare(exec.CommandContext(t.Context(), "kubectl", "get", "--raw", "/openapi/v3/"+path)).Output()
	if err != nil {
		return err
	}
	var document struct {
		Components struct {
			Schemas map[string]map[string]any `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(out, &document); err != nil {
		return err
	}
	for _, schema := range document.Components.Schemas { // before the first is written: each file has all
		refuseUnknown(schema)
	}
	for name, schema := range document.Components.Schemas {
		names, _ := schema["x-kubernetes-group-version-kind"].([]any)
		for _, of := range names {
			kind, _ := of.(map[string]any)["kind"].(string)
			if !kinds[kind] || len(names) > 1 { // options of requests are of every group
				continue
			}
			delete(kinds, kind)
			text, err := json.Marshal(map[string]any{"$ref": "#/components/schemas/" + name, "components": document.Components})
			if err != nil {
				return err
			}
			version := strings.ReplaceAll(strings.TrimPrefix(strings.TrimPrefix(path, "apis/"), "api/"), "/", "-")
			// kubeconform's KindSuffix has the first part of a group alone.
			if group, rest, found := strings.Cut(version, "."); found {
				version = group + rest[strings.LastIndex(rest, "-"):]
			}
			if err := os.WriteFile(filepath.Join(dir, strings.ToLower(kind)+"-"+version+".json"), text, 0o600); err != nil {
				return err
			}
		}
	}
	if len(kinds) > 0 {
		return fmt.Errorf("%s: no schema of %v", path, kinds)
	}
	return nil
}

// refuseUnknown has a schema and those in it accept no property beside the ones that they name.
func refuseUnknown(value any) {
	switch value := value.(type) {
	case []any:
		for _, item := range value {
			refuseUnknown(item)
		}
	case map[string]any:
		for _, item := range value {
			refuseUnknown(item)
		}
		_, named := value["properties"].(map[string]any)
		_, more := value["additionalProperties"]
		if named && !more && value["type"] == "object" && value["x-kubernetes-preserve-unknown-fields"] == nil {
			value["additionalProperties"] = false
		}
	}
}
