package corpus

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// DeployCase is an entry of deploy.json: steps, one after the other, in a cluster
// that is empty at first.
type DeployCase struct {
	Name   string               `json:"name"`
	Config Strict[DeployConfig] `json:"config"`
	Steps  []DeployStep         `json:"steps"`
}

// DeployConfig is the configuration of a case. A timeout that is left out is 0.
type DeployConfig struct {
	Config
	Namespace             string            `json:"namespace"`
	DefaultRequestTimeout Duration          `json:"defaultRequestTimeout"`
	MaxRequestTimeout     Duration          `json:"maxRequestTimeout"`
	SuffixTemplate        string            `json:"namespacedNameSuffixTemplate"`
	DefaultEnvVars        map[string]string `json:"defaultEnvVars"`
	DefaultServiceAccount string            `json:"defaultServiceAccount"`
	// Enabled and WatchBufferSize say nothing about what deploy makes of an app.
	Enabled         json.RawMessage `json:"enabled"`
	WatchBufferSize json.RawMessage `json:"watchBufferSize"`
}

// Deploy is the configuration as package kservice takes it. What public URLs are
// made of is [Config.KService].
func (c DeployConfig) Deploy() kservice.DeployConfig {
	return kservice.DeployConfig{
		Namespace:             c.Namespace,
		DefaultRequestTimeout: time.Duration(c.DefaultRequestTimeout),
		MaxRequestTimeout:     time.Duration(c.MaxRequestTimeout),
		DefaultEnv:            c.DefaultEnvVars,
		DefaultServiceAccount: c.DefaultServiceAccount,
		SuffixTemplate:        c.SuffixTemplate,
	}
}

// SortDefaultEnv is a copy of a Knative Service in which the configured default
// environment is sorted by name. It stands first in the first container, in an
// order that differs from run to run in Flyte. Whatever else is in that place is
// left as it is, and so is all that comes after it.
func (c DeployConfig) SortDefaultEnv(object map[string]any) map[string]any {
	out := runtime.DeepCopyJSON(object)
	found, _, err := unstructured.NestedFieldNoCopy(out, "spec", "template", "spec", "containers")
	containers, _ := found.([]any)
	if err != nil || len(containers) == 0 {
		return out
	}
	first, _ := containers[0].(map[string]any)
	env, _ := first["env"].([]any)
	if len(env) < len(c.DefaultEnvVars) {
		return out
	}
	defaults, seen := env[:len(c.DefaultEnvVars)], map[string]bool{}
	for _, entry := range defaults {
		name, value, plain := plainEnv(entry)
		if want, ok := c.DefaultEnvVars[name]; !plain || !ok || value != want || seen[name] {
			return out
		}
		seen[name] = true
	}
	slices.SortFunc(defaults, func(a, b any) int {
		first, _, _ := plainEnv(a)
		second, _, _ := plainEnv(b)
		return cmp.Compare(first, second)
	})
	return out
}

// plainEnv is a variable with a value, which is left out when it is empty.
func plainEnv(entry any) (name, value string, ok bool) {
	fields, _ := entry.(map[string]any)
	name, _ = fields["name"].(string)
	value, _ = fields["value"].(string)
	return name, value, fields["valueFrom"] == nil
}

// Duration is one that is written as "5m0s".
type Duration time.Duration

// UnmarshalText implements [encoding.TextUnmarshaler].
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = Duration(parsed)
	return err
}

// DeployStep is one thing that is done: "deploy", "stop", "delete" or "seed".
// Object is what a seed puts into the cluster.
type DeployStep struct {
	Op     string                     `json:"op"`
	RawApp json.RawMessage            `json:"app"`
	Object *unstructured.Unstructured `json:"object"`
	Expect Strict[DeployExpect]       `json:"expect"`
}

// App is the app that a step names, nil when it is about the last one named.
func (s DeployStep) App(tb testing.TB) *appv1.App {
	tb.Helper()
	if len(s.RawApp) == 0 {
		return nil
	}
	app := &appv1.App{}
	if err := protojson.Unmarshal(s.RawApp, app); err != nil {
		tb.Fatalf("read the app: %v", err)
	}
	return app
}

// DeployExpect is how things are after a step.
type DeployExpect struct {
	Error         string                     `json:"error"`
	Panic         string                     `json:"panic"`
	NotFound      bool                       `json:"notFound"`
	KServiceName  string                     `json:"kserviceName"`
	KService      *unstructured.Unstructured `json:"kservice"`
	RevisionsLeft []string                   `json:"revisionsLeft"`
	// Unstable names values that differ from run to run in Flyte, such as
	// "metadata.annotations[flyte.org/spec]".
	Unstable []string `json:"unstable"`
}

// ForgetUnstable takes the annotations that are not stable from both sides; what
// is in them is for [Spec] to compare, and an unstable environment for
// [DeployConfig.SortDefaultEnv]. An error names what it does not know.
func (e DeployExpect) ForgetUnstable(got, want map[string]string) error {
	for _, path := range e.Unstable {
		if strings.HasPrefix(path, "spec.template.spec.containers[0].env") {
			continue
		}
		key := strings.TrimSuffix(strings.TrimPrefix(path, "metadata.annotations["), "]")
		if key != kservice.AnnotationSpec && key != kservice.AnnotationSpecSHA {
			return fmt.Errorf("unstable %q: not one that is known here", path)
		}
		delete(got, key)
		delete(want, key)
	}
	return nil
}

// Spec is what is in the spec annotation of a Knative Service, nil when it has
// none. A digest that is not the one of the bytes beside it is an error.
func Spec(annotations map[string]string) (*appv1.Spec, error) {
	written, ok := annotations[kservice.AnnotationSpec]
	if !ok {
		return nil, nil
	}
	wire, err := base64.StdEncoding.DecodeString(written)
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", kservice.AnnotationSpec, err)
	}
	if got, want := annotations[kservice.AnnotationSpecSHA], kservice.SpecDigest(wire); got != want {
		return nil, fmt.Errorf("digest of %s: got %q, want %q", written, got, want)
	}
	spec := &appv1.Spec{}
	if err := proto.Unmarshal(wire, spec); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", kservice.AnnotationSpec, err)
	}
	return spec, nil
}

// AppID is the identifier of an app as subjects have it.
func AppID(app *appv1.App) subjects.AppID {
	id := app.GetMetadata().GetId()
	return subjects.AppID{Project: id.GetProject(), Domain: id.GetDomain(), Name: id.GetName()}
}
