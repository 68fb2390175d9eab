package corpus_test

import (
	"encoding/json"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/testdata/testenv/corpus"
)

func TestDir(t *testing.T) {
	absolute := t.TempDir()
	for _, tt := range []struct{ name, set, want string }{
		{"not set", "", filepath.Join("..", "..", "testdata", "conformance")},
		{"relative", "other/place", filepath.Join("..", "..", "other", "place")},
		{"absolute", absolute, absolute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv(corpus.DirEnv, tt.set)
			if got := corpus.Dir("../.."); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestDeployConfig(t *testing.T) {
	const base = `"namespace": "flyte", "defaultRequestTimeout": "5m0s", "maxRequestTimeout": "1h0m0s", "namespacedNameSuffixTemplate": "x"`
	want := kservice.DeployConfig{
		Namespace: "flyte", DefaultRequestTimeout: 5 * time.Minute, MaxRequestTimeout: time.Hour, SuffixTemplate: "x",
	}
	withDefaults := want
	withDefaults.DefaultEnv, withDefaults.DefaultServiceAccount = map[string]string{"B": "2", "A": "1"}, "runner"
	for _, tt := range []struct {
		name, more string
		want       kservice.DeployConfig
		wantErr    string
	}{
		{name: "nothing more", want: want},
		{name: "defaults", more: `, "defaultEnvVars": {"A": "1", "B": "2"}, "defaultServiceAccount": "runner"`, want: withDefaults},
		{name: "what does not count", more: `, "watchBufferSize": 100, "enabled": true`, want: want},
		{name: "unknown", more: `, "defaultEnv": {}`, wantErr: "defaultEnv"},
		{name: "no duration", more: `, "maxRequestTimeout": "soon"`, wantErr: "soon"},
		{name: "env that is no string", more: `, "defaultEnvVars": {"A": 1}`, wantErr: "defaultEnvVars"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c corpus.DeployCase
			err := json.Unmarshal([]byte(`{"config": {`+base+tt.more+`}}`), &c)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("got error %v, want one about %s", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.Config.Value.Deploy(), tt.want); diff != "" {
				t.Errorf("got, want: %s", diff)
			}
		})
	}
}

// service is a Knative Service with the containers of the JSON text.
func service(t *testing.T, containers string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal([]byte(`{"spec": {"template": {"spec": {"containers": `+containers+`}}}}`), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestSortDefaultEnv(t *testing.T) {
	const (
		a, z, own, b = `{"name": "A", "value": "1"}`, `{"name": "Z"}`, `{"name": "OWN", "value": "x"}`, `{"name": "B", "value": "y"}`
		second       = `{"env": [` + z + `, ` + a + `]}`
	)
	env := func(second string, entries ...string) string {
		return `[{"env": [` + strings.Join(entries, ", ") + `]}, ` + second + `]`
	}
	sorted := env(second, a, z, own, b)
	two := map[string]string{"A": "1", "Z": ""}
	for _, tt := range []struct {
		name       string
		defaults   map[string]string
		containers string
		same       bool // as sorted
	}{
		{"as it is", two, sorted, true},
		{"the other way round", two, env(second, z, a, own, b), true},
		{"a wrong value", two, env(second, z, `{"name": "A", "value": "2"}`, own, b), false},
		{"a value from elsewhere", two, env(second, `{"name": "Z", "valueFrom": {}}`, a, own, b), false},
		{"one twice", two, env(second, a, a, own, b), false},
		{"one behind the app's own", two, env(second, a, own, z, b), false},
		{"the app's own in another order", two, env(second, a, z, b, own), false},
		{"another container in another order", two, env(`{"env": [`+a+`, `+z+`]}`, a, z, own, b), false},
		{"not configured", nil, env(second, z, a, own, b), false},
		{"too few", two, env(second, a), false},
		{"no env", two, `[{}]`, false},
		{"no container", two, `[]`, false},
		{"not a list", two, `{}`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			config := corpus.DeployConfig{DefaultEnvVars: tt.defaults}
			object := service(t, tt.containers)
			before := runtime.DeepCopyJSON(object)
			got, want := config.SortDefaultEnv(object), config.SortDefaultEnv(service(t, sorted))
			if same := cmp.Equal(got, want); same != tt.same {
				t.Errorf("same: got %t, want %t: %s", same, tt.same, cmp.Diff(got, want))
			}
			if !reflect.DeepEqual(object, before) {
				t.Error("SortDefaultEnv changed its input")
			}
		})
	}
}

func TestForgetUnstable(t *testing.T) {
	for _, tt := range []struct {
		name     string
		unstable []string
		want     map[string]string
		wantErr  bool
	}{
		{"none", nil, map[string]string{"flyte.org/spec": "s", "flyte.org/spec-sha": "d", "other": "o"}, false},
		{
			"spec and digest",
			[]string{"metadata.annotations[flyte.org/spec]", "metadata.annotations[flyte.org/spec-sha]"},
			map[string]string{"other": "o"},
			false,
		},
		{"unknown", []string{"metadata.annotations[other]"}, nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			expect := corpus.DeployExpect{Unstable: tt.unstable}
			got := map[string]string{"flyte.org/spec": "s", "flyte.org/spec-sha": "d", "other": "o"}
			want := map[string]string{"flyte.org/spec": "t", "flyte.org/spec-sha": "e", "other": "o"}
			err := expect.ForgetUnstable(got, want)
			if (err != nil) != tt.wantErr {
				t.Fatalf("got error %v, want one: %t", err, tt.wantErr)
			}
			if err == nil && !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
			if err == nil && len(want) != len(tt.want) {
				t.Errorf("the other side: got %v", want)
			}
		})
	}
}
