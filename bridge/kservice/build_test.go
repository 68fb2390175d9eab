package kservice_test

import (
	"errors"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// deployDefaults is the configuration of a program that nobody configured.
func deployDefaults() kservice.DeployConfig {
	return kservice.DeployConfig{
		Namespace:             "flyte",
		DefaultRequestTimeout: 5 * time.Minute,
		MaxRequestTimeout:     time.Hour,
		SuffixTemplate:        "{{ project }}-{{ domain }}",
	}
}

// allowing is a policy with service accounts and references.
func allowing(t *testing.T, accounts []string, references ...string) kservice.Policy {
	t.Helper()
	policy := kservice.Policy{ServiceAccounts: accounts}
	for _, text := range references {
		reference, err := kservice.ParseReference(text)
		if err != nil {
			t.Fatal(err)
		}
		policy.References = append(policy.References, reference)
	}
	return policy
}

// deployedApp is an app p/d/n of the organization acme with the given spec.
func deployedApp(t *testing.T, spec string) (subjects.AppID, *appv1.App) {
	t.Helper()
	app := &appv1.App{
		Metadata: &appv1.Meta{Id: &appv1.Identifier{Org: "acme", Project: "p", Domain: "d", Name: "n"}},
		Spec:     &appv1.Spec{},
	}
	if err := protojson.Unmarshal([]byte(spec), app.GetSpec()); err != nil {
		t.Fatalf("read the spec: %v", err)
	}
	return subjects.AppID{Project: "p", Domain: "d", Name: "n"}, app
}

func built(t *testing.T, spec string, cfg kservice.DeployConfig) *servingv1.Service {
	t.Helper()
	id, app := deployedApp(t, spec)
	m, err := build(id, app, cfg)
	if err != nil {
		t.Fatalf("Build: %v", err)
	}
	return m
}

const fullSpec = `{
	"container": {
		"image": "registry.example.com/i:1", "command": ["c"], "args": ["a", "b"],
		"env": [{"key": "OWN", "value": "1"}, {"key": "B", "value": "own"}],
		"ports": [{"containerPort": 8080, "name": "h2c"}, {"containerPort": 65535}],
		"resources": {
			"requests": [{"name": "CPU", "value": "250m"}, {"name": "GPU", "value": "any"}, {"name": "UNKNOWN", "value": "?"}],
			"limits": [
				{"name": "CPU", "value": "1"}, {"name": "CPU", "value": "2"}, {"name": "MEMORY", "value": "2Gi"},
				{"name": "STORAGE", "value": "1G"}, {"name": "EPHEMERAL_STORAGE", "value": "0"}
			]
		}
	},
	"autoscaling": {
		"replicas": {"min": 1, "max": 4294967295}, "scaledownPeriod": "90s",
		"scalingMetric": {"requestRate": {"targetValue": 7}}
	},
	"timeouts": {"requestTimeout": "12.900s"},
	"securityContext": {"runAs": {"k8sServiceAccount": "asked"}, "secrets": [{"key": "a"}]}
}`

func TestBuild(t *testing.T) {
	id, app := deployedApp(t, fullSpec)
	before := proto.CloneOf(app)
	cfg := deployDefaults()
	cfg.DefaultEnv = map[string]string{"Z": "26", "B": "2", "A": "1"}
	cfg.DefaultServiceAccount = "default"
	cfg.Policy = allowing(t, []string{"asked"})

	got, err := build(id, app, cfg)
	if err != nil {
		t.Fatalf("Build: %v", err)
	}

	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(app.GetSpec())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := got.Annotations[kservice.AnnotationSpecSHA], kservice.SpecDigest(wire); got != want {
		t.Errorf("digest: got %q, want %q", got, want)
	}
	delete(got.Annotations, kservice.AnnotationSpec)
	delete(got.Annotations, kservice.AnnotationSpecSHA)
	want := &servingv1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "serving.knative.dev/v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "n-p-d", Namespace: "flyte",
			Labels: map[string]string{
				"flyte.org/app-managed": "true", "flyte.org/project": "p", "flyte.org/domain": "d", "flyte.org/app-name": "n",
			},
			Annotations: map[string]string{"flyte.org/app-id": "p/d/n", "flyte.org/app-org": "acme"},
		},
	}
	want.Spec.Template = servingv1.RevisionTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{
			Labels: map[string]string{
				"organization": "flyte", "project": "p", "domain": "d", "inject-flyte-secrets": "true",
			},
			Annotations: map[string]string{
				"autoscaling.knative.dev/min-scale": "1", "autoscaling.knative.dev/max-scale": "4294967295",
				"autoscaling.knative.dev/metric": "rps", "autoscaling.knative.dev/target": "7",
				"autoscaling.knative.dev/window": "1m30s", "flyte.secrets/s0": "nnsxsoraejqsecq",
			},
		},
		Spec: servingv1.RevisionSpec{
			TimeoutSeconds: new(int64(12)),
			PodSpec: corev1.PodSpec{
				EnableServiceLinks: new(false), ServiceAccountName: "asked",
				Containers: []corev1.Container{{
					Name: "app", Image: "registry.example.com/i:1", Command: []string{"c"}, Args: []string{"a", "b"},
					Ports: []corev1.ContainerPort{{Name: "h2c", ContainerPort: 8080}, {ContainerPort: 65535}},
					Env: []corev1.EnvVar{
						{Name: "A", Value: "1"},
						{Name: "B", Value: "2"},
						{Name: "Z", Value: "26"},
						{Name: "OWN", Value: "1"},
						{Name: "B", Value: "own"},
						{Name: "INTERNAL_APP_ENDPOINT_PATTERN", Value: "http://{app_fqdn}-p-d.flyte.svc.cluster.local"},
						{Name: "FLYTE_INTERNAL_EXECUTION_PROJECT", Value: "p"},
						{Name: "FLYTE_INTERNAL_EXECUTION_DOMAIN", Value: "d"},
					},
					Resources: corev1.ResourceRequirements{
						Requests: corev1.ResourceList{"cpu": resource.MustParse("250m")},
						Limits: corev1.ResourceList{
							"cpu": resource.MustParse("2"), "memory": resource.MustParse("2Gi"),
							"storage": resource.MustParse("1G"), "ephemeral-storage": resource.MustParse("0"),
						},
					},
				}},
			},
		},
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("got, want: %s", diff)
	}

	// Nothing is shared.
	first := &got.Spec.Template.Spec.Containers[0]
	first.Command[0], first.Args[0] = "changed", "changed"
	if !proto.Equal(app, before) {
		t.Errorf("the app was changed:\n got %v\nwant %v", app, before)
	}
}

func TestBuildTimeout(t *testing.T) {
	tests := []struct {
		name     string
		spec     string
		fallback time.Duration
		most     time.Duration
		want     int64
	}{
		{"none", `{"container": {}}`, 5 * time.Minute, time.Hour, 300},
		{"unset", `{"container": {}, "timeouts": {}}`, 5 * time.Minute, time.Hour, 300},
		{"default over the maximum", `{"container": {}}`, 2 * time.Hour, time.Hour, 7200},
		{"zero", `{"container": {}, "timeouts": {"requestTimeout": "0s"}}`, 5 * time.Minute, time.Hour, 0},
		{"fraction", `{"container": {}, "timeouts": {"requestTimeout": "1.999999999s"}}`, time.Minute, time.Hour, 1},
		{"at the maximum", `{"container": {}, "timeouts": {"requestTimeout": "3600s"}}`, time.Minute, time.Hour, 3600},
		{"over the maximum", `{"container": {}, "timeouts": {"requestTimeout": "3601s"}}`, time.Minute, time.Hour, 3600},
		{"longer than Go's", `{"container": {}, "timeouts": {"requestTimeout": "315576000000s"}}`, time.Minute, time.Hour, 3600},
		{"no maximum", `{"container": {}, "timeouts": {"requestTimeout": "315576000000s"}}`, time.Minute, 0, 315576000000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := deployDefaults()
			cfg.DefaultRequestTimeout, cfg.MaxRequestTimeout = tt.fallback, tt.most
			if got := built(t, tt.spec, cfg).Spec.Template.Spec.TimeoutSeconds; got == nil || *got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

func TestBuildServiceAccount(t *testing.T) {
	const (
		container = `"container": {}`
		pod       = `"pod": {"podSpec": {"serviceAccountName": "of-pod", "containers": [{}]}}`
		asked     = `, "securityContext": {"runAs": {"k8sServiceAccount": "asked"}}`
	)
	tests := []struct {
		name     string
		spec     string
		fallback string
		want     string
	}{
		{"none", container, "", ""},
		{"default", container, "default", "default"},
		{"asked for", container + asked, "default", "asked"},
		{"of the pod", pod, "", "of-pod"},
		{"default before the pod's", pod, "default", "default"},
		{"asked for before the pod's", pod + asked, "", "asked"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := deployDefaults()
			cfg.DefaultServiceAccount = tt.fallback
			cfg.Policy = allowing(t, []string{"asked", "of-pod"})
			if got := built(t, "{"+tt.spec+"}", cfg).Spec.Template.Spec.ServiceAccountName; got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestBuildScaling(t *testing.T) {
	const prefix = "autoscaling.knative.dev/"
	tests := []struct {
		name    string
		scaling string
		want    map[string]string
	}{
		{"nothing", `{}`, nil},
		{"zero replicas", `{"replicas": {}}`, map[string]string{prefix + "min-scale": "0", prefix + "max-scale": "0"}},
		{"concurrency", `{"scalingMetric": {"concurrency": {"targetValue": 3}}}`, map[string]string{prefix + "metric": "concurrency", prefix + "target": "3"}},
		{"rate without target", `{"scalingMetric": {"requestRate": {}}}`, map[string]string{prefix + "metric": "rps", prefix + "target": "0"}},
		{"metric without one", `{"scalingMetric": {}}`, nil},
		{"no window", `{"scaledownPeriod": "0s"}`, map[string]string{prefix + "window": "0s"}},
		{"window", `{"scaledownPeriod": "3600.5s"}`, map[string]string{prefix + "window": "1h0m0.5s"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := built(t, `{"container": {}, "autoscaling": `+tt.scaling+`}`, deployDefaults()).Spec.Template
			if !reflect.DeepEqual(got.Annotations, tt.want) {
				t.Errorf("got %v, want %v", got.Annotations, tt.want)
			}
			if got.Labels != nil {
				t.Errorf("labels: got %v, want none", got.Labels)
			}
		})
	}
}

func TestBuildEndpointPattern(t *testing.T) {
	tests := []struct {
		name, template, want string
	}{
		{"default", "{{ project }}-{{ domain }}", "http://{app_fqdn}-proj-dev.flyte.svc.cluster.local"},
		{"one space on each side", "{{project}}-{{  domain }}", "http://{app_fqdn}-{{project}}-{{  domain }}.flyte.svc.cluster.local"},
		{"twice", "{{ domain }}{{ domain }}", "http://{app_fqdn}-devdev.flyte.svc.cluster.local"},
		{"fixed", "x", "http://{app_fqdn}-x.flyte.svc.cluster.local"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, app := deployedApp(t, `{"container": {}}`)
			cfg := deployDefaults()
			cfg.SuffixTemplate = tt.template
			m, err := build(subjects.AppID{Project: "Proj", Domain: "DEV", Name: "n"}, app, cfg)
			if err != nil {
				t.Fatal(err)
			}
			env := m.Spec.Template.Spec.Containers[0].Env
			want := []corev1.EnvVar{
				{Name: "INTERNAL_APP_ENDPOINT_PATTERN", Value: tt.want},
				{Name: "FLYTE_INTERNAL_EXECUTION_PROJECT", Value: "Proj"},
				{Name: "FLYTE_INTERNAL_EXECUTION_DOMAIN", Value: "DEV"},
			}
			if diff := cmp.Diff(env, want); diff != "" {
				t.Errorf("got, want: %s", diff)
			}
		})
	}
}

func TestBuildPod(t *testing.T) {
	got := built(t, `{"pod": {"metadata": {"labels": {"not": "used"}}, "primaryContainerName": "b", "podSpec": {
		"enableServiceLinks": true, "NODESELECTOR": {"a": "b"}, "unheardOf": {"x": [1]}, "tolerations": null,
		"terminationGracePeriodSeconds": 1e6,
		"containers": [
			{"name": "a", "env": [{"name": "OWN", "value": "1"}], "resources": {"limits": {"cpu": 2, "memory": "1Gi"}}},
			{"name": "b", "ports": [{"containerPort": 8080}], "readinessProbe": {"httpGet": {"port": 80}}}
		]}}}`, deployDefaults()).Spec.Template.Spec.PodSpec

	containers := got.Containers
	if len(containers) != 2 {
		t.Fatalf("got %d containers, want 2", len(containers))
	}
	if got, want := len(containers[0].Env), 4; got != want || containers[0].Env[0].Name != "OWN" {
		t.Errorf("env of the first container: got %v, want its own and three more", containers[0].Env)
	}
	if len(containers[1].Env) != 0 {
		t.Errorf("env of the second container: got %v, want none", containers[1].Env)
	}
	if got := containers[1].Ports[0].ContainerPort; got != 8080 {
		t.Errorf("port: got %d, want 8080", got)
	}
	if got := containers[1].ReadinessProbe.HTTPGet.Port.IntValue(); got != 80 {
		t.Errorf("port of the probe: got %d, want 80", got)
	}
	if got, want := containers[0].Resources.Limits.Cpu().String(), "2"; got != want {
		t.Errorf("cpu: got %s, want %s", got, want)
	}
	if got := got.TerminationGracePeriodSeconds; got == nil || *got != 1_000_000 {
		t.Errorf("grace period: got %v, want 1000000", got)
	}
	if !*got.EnableServiceLinks {
		t.Error("service links: got none, want those that the pod asks for")
	}
	if got.NodeSelector["a"] != "b" {
		t.Errorf("node selector: got %v, want one: the case of a field's name does not count", got.NodeSelector)
	}
}

func TestBuildPodWithoutContainers(t *testing.T) {
	m := built(t, `{"pod": {"podSpec": {}}}`, deployDefaults())
	if got := m.Spec.Template.Spec.Containers; len(got) != 0 {
		t.Errorf("containers: got %v, want none", got)
	}
	if links := m.Spec.Template.Spec.EnableServiceLinks; links == nil || *links {
		t.Errorf("service links: got %v, want false", links)
	}
	deployedObject(t, m)
}

func TestBuildKeepsUnknownFields(t *testing.T) {
	id, app := deployedApp(t, `{"container": {"image": "i"}}`)
	unknown := protowire.AppendString(protowire.AppendTag(nil, 4000, protowire.BytesType), "from the future")
	app.GetSpec().ProtoReflect().SetUnknown(unknown)
	m, err := build(id, app, deployDefaults())
	if err != nil {
		t.Fatal(err)
	}
	svc := sampleService()
	svc.Annotations = m.Annotations
	back, err := kservice.Convert(svc, nil, sampleConfig())
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(back.GetSpec(), app.GetSpec()) {
		t.Errorf("got %v, want %v", back.GetSpec(), app.GetSpec())
	}
}

func TestBuildIsDeterministic(t *testing.T) {
	fields := map[string]any{}
	for _, key := range strings.Split("a b c d e f g h i j", " ") {
		fields[key] = map[string]any{"x": 1.0, "y": "z", "w": true}
	}
	pod, err := structpb.NewStruct(map[string]any{"nodeSelector": map[string]any{}, "unheardOf": fields})
	if err != nil {
		t.Fatal(err)
	}
	id, app := deployedApp(t, `{}`)
	app.Spec.AppPayload = &appv1.Spec_Pod{Pod: &appv1.K8SPod{PodSpec: pod}}
	cfg := deployDefaults()
	cfg.DefaultEnv = map[string]string{"a": "", "b": "", "c": "", "d": ""}
	first, err := build(id, app, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		again, err := build(id, proto.CloneOf(app), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(again, first); diff != "" {
			t.Fatalf("got another manifest: %s", diff)
		}
	}
}

func TestBuildErrors(t *testing.T) {
	id, app := deployedApp(t, `{"container": {"ports": [{"containerPort": 4294967295}], "resources": {"limits": [{"name": "CPU", "value": "x"}]}}}`)
	m, err := build(id, app, deployDefaults())
	const want = "app.spec.container.resources.limits[0].value: \"x\": want a quantity, for example 500m or 2Gi\n" +
		"app.spec.container.ports[0].containerPort: \"4294967295\": want at most 65535"
	if err == nil || err.Error() != want || m != nil {
		t.Errorf("got %v and %v, want only the error %q", m, err, want)
	}
	for name, app := range map[string]*appv1.App{
		"no app":              nil,
		"no spec":             {},
		"no container inside": {Spec: &appv1.Spec{AppPayload: &appv1.Spec_Pod{}}},
		"not a number": {Spec: &appv1.Spec{AppPayload: &appv1.Spec_Pod{Pod: &appv1.K8SPod{
			PodSpec: &structpb.Struct{Fields: map[string]*structpb.Value{"a": structpb.NewNumberValue(math.NaN())}},
		}}}},
	} {
		if m, err := build(subjects.AppID{}, app, kservice.DeployConfig{}); err == nil || m != nil {
			t.Errorf("%s: got %v and %v, want an error alone", name, m, err)
		}
	}
}

// A small body can hold thousands of empty containers: it is refused before each becomes one.
func TestBuildOfManyContainers(t *testing.T) {
	for _, tt := range []struct {
		containers int
		want       string
	}{
		{8192, "app.spec.pod.podSpec: has 8193 fields and items, want at most 8192"},
		{100_000, "bytes of annotations, want at most 262144"},
	} {
		id, app := deployedApp(t, `{"pod": {"podSpec": {"containers": [{}`+strings.Repeat(",{}", tt.containers-1)+`]}}}`)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := build(id, app, deployDefaults())
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%d containers: got %v, want %q", tt.containers, err, tt.want)
		}
		if got := (after.TotalAlloc - before.TotalAlloc) >> 20; got > 64 {
			t.Errorf("%d containers: took %d MiB", tt.containers, got)
		}
	}
}

// build returns the manifest of an app, or an error with what prevents it.
func build(id subjects.AppID, app *appv1.App, cfg kservice.DeployConfig) (*servingv1.Service, error) {
	m, wrong, denied := kservice.Build(id, app, cfg)
	if m == nil {
		return nil, errors.New(strings.Join(append(wrong, denied...), "\n"))
	}
	return m, nil
}

// validateApp returns what Build reports.
func validateApp(id subjects.AppID, app *appv1.App, cfg kservice.DeployConfig) (wrong, denied []string) {
	_, wrong, denied = kservice.Build(id, app, cfg)
	return wrong, denied
}
