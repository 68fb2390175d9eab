package kservice_test

import (
	"encoding/json"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/testdata/testenv/corpus"
)

func TestCheck(t *testing.T) {
	const (
		refused     = ": knative refuses it: "
		annotations = "spec.template.metadata.annotations.autoscaling.knative.dev/"
	)
	tests := []struct {
		name string
		spec string
		want []string
	}{
		{"minimal", `{"container": {"image": "app:1"}}`, nil},
		{"no image", `{"container": {}}`, []string{
			`app.spec.container.image` + refused + `missing field(s): spec.template.spec.containers[0].image`,
		}},
		{"image of one letter", `{"container": {"image": "i:1"}}`, []string{
			`app.spec.container.image` + refused + `Failed to parse image reference: spec.template.spec.containers[0].image (image: "i:1", error: could not parse reference: i:1)`,
		}},
		{"ports", `{"container": {"image": "app:1", "ports": [{"containerPort": 65536, "name": "web"}, {"containerPort": 80}]}}`, []string{
			`app.spec.container.ports` + refused + `Port name web is not allowed: spec.template.spec.containers[0].ports (Name must be empty, or one of: 'h2c', 'http1')`,
			`app.spec.container.ports.containerPort` + refused + `expected 0 <= 65536 <= 65535: spec.template.spec.containers[0].ports.containerPort`,
			`app.spec.container.ports` + refused + `more than one container port is set: spec.template.spec.containers[*].ports (Only a single port is allowed across all containers)`,
		}},
		{"reserved variable", `{"container": {"image": "app:1", "env": [{"key": "OK"}, {"key": "K_SERVICE"}, {"key": ""}]}}`, []string{
			`app.spec.container.env[1].key` + refused + `"K_SERVICE" is a reserved environment variable: spec.template.spec.containers[0].env[3].name`,
			`app.spec.container.env[2].key` + refused + `missing field(s): spec.template.spec.containers[0].env[4].name`,
		}},
		{"scaling", `{"container": {"image": "app:1"}, "autoscaling": {
			"replicas": {"min": 3, "max": 2}, "scaledownPeriod": "2s", "scalingMetric": {"requestRate": {}}}}`, []string{
			`app.spec.autoscaling.scaledownPeriod` + refused + `expected 6s <= 2s <= 1h0m0s: ` + annotations + `window`,
			`app.spec.autoscaling.replicas.max, app.spec.autoscaling.replicas.min` + refused + `max-scale=2 is less than min-scale=3: ` + annotations + `max-scale, ` + annotations + `min-scale`,
			`app.spec.autoscaling.scalingMetric.requestRate.targetValue` + refused + `target 0 should be at least 0.01: ` + annotations + `target`,
		}},
		{"more replicas than Knative counts", `{"container": {"image": "app:1"}, "autoscaling": {
			"replicas": {"max": 4294967295}, "scaledownPeriod": "-3s", "scalingMetric": {"concurrency": {}}}}`, []string{
			`app.spec.autoscaling.replicas.max` + refused + `expected 0 <= 4294967295 <= 2147483647: ` + annotations + `max-scale`,
			`app.spec.autoscaling.scaledownPeriod` + refused + `expected 6s <= -3s <= 1h0m0s: ` + annotations + `window`,
			`app.spec.autoscaling.scalingMetric.concurrency.targetValue` + refused + `target 0 should be at least 0.01: ` + annotations + `target`,
		}},
		{"negative timeout", `{"container": {"image": "app:1"}, "timeouts": {"requestTimeout": "-1s"}}`, []string{
			`app.spec.timeouts.requestTimeout` + refused + `expected 0 <= -1 <= 3600: spec.template.spec.timeoutSeconds`,
		}},
		{"timeout of the maximum", `{"container": {"image": "app:1"}, "timeouts": {"requestTimeout": "5000s"}}`, nil},
		{"timeout of zero", `{"container": {"image": "app:1"}, "timeouts": {"requestTimeout": "0s"}}`, nil},
		{"service account", `{"container": {"image": "app:1"}, "securityContext": {"runAs": {"k8sServiceAccount": "Not A Name"}}}`, []string{
			`app.spec.securityContext.runAs.k8sServiceAccount` + refused + `invalid value: Not A Name: spec.template.spec.serviceAccountName (a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'examp…`,
		}},
		{"pod", `{"pod": {"podSpec": {"containers": [
			{"image": "app:1", "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}, "env": [{"name": "PORT"}]},
			{"image": "side:1", "volumeMounts": [{"name": "v", "mountPath": "relative"}]}
		], "restartPolicy": "Never"}}}`, []string{
			`app.spec.pod.podSpec.containers[1].volumeMounts[0].mountPath` + refused + `invalid value: relative: spec.template.spec.containers[1].volumeMounts[0].mountPath`,
			`app.spec.pod.podSpec.containers[*].ports` + refused + `missing field(s): spec.template.spec.containers[*].ports`,
			`app.spec.pod.podSpec.containers[0].lifecycle` + refused + `must not set the field(s): spec.template.spec.containers[0].lifecycle`,
			`app.spec.pod.podSpec.restartPolicy` + refused + `must not set the field(s): spec.template.spec.restartPolicy`,
			`app.spec.pod.podSpec.containers[1].volumeMounts[0].name` + refused + `volumeMount has no matching volume: spec.template.spec.containers[1].volumeMounts[0].name`,
		}},
		{"init container", `{"pod": {"podSpec": {"containers": [{"image": "app:1"}], "initContainers": [{"image": "i", "env": [{"name": "K_REVISION"}]}]}}}`, []string{
			`app.spec.pod.podSpec` + refused + `"K_REVISION" is a reserved environment variable: spec.template.spec.containers[0].env[0].name`,
			`app.spec.pod.podSpec` + refused + `Failed to parse image reference: spec.template.spec.containers[0].image (image: "i", error: could not parse reference: i)`,
		}},
		{"containers of one name", `{"pod": {"podSpec": {"containers": [{"image": "i", "name": "x"}, {"image": "app:1", "name": "x", "ports": [{"containerPort": 80}]}]}}}`, []string{
			`app.spec.pod.podSpec` + refused + `Failed to parse image reference: spec.template.spec.containers[1].containers[0].image (image: "i", error: could not parse reference: i)`,
			`app.spec.pod.podSpec.containers[1].name` + refused + `duplicate container name "x": spec.template.spec.containers[1].name`,
		}},
		{"no containers", `{"pod": {"podSpec": {}}}`, []string{
			`app.spec.pod.podSpec.containers` + refused + `missing field(s): spec.template.spec.containers`,
		}},
		{"volume without a source", `{"pod": {"podSpec": {"containers": [{"image": "app:1", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}], "volumes": [{"name": "v"}]}}}`, []string{
			`app.spec.pod.podSpec.volumes[0]` + refused + `expected exactly one, got neither: spec.template.spec.volumes[0].configMap, spec.template.spec.volumes[0].csi, spec.template.spec.volumes[0].emptyDir, spec.template.spec.volumes[0].ephemeral, spec.template.spec.volumes[0].hostPath, spec.templat…`,
		}},
		{"every feature", everyFeature, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			id, app := deployedApp(t, tt.spec)
			cfg := deployDefaults()
			cfg.DefaultEnv = map[string]string{"A": "1", "B": "2"}
			cfg.Policy = allowing(t, []string{"Not A Name"}, "persistentvolumeclaim/data")
			svc, err := build(id, app, cfg)
			if err != nil {
				t.Fatal(err)
			}
			before := svc.DeepCopy()
			if diff := cmp.Diff(kservice.Check(svc, app, cfg), tt.want); diff != "" {
				t.Errorf("got, want: %s", diff)
			}
			if diff := cmp.Diff(svc, before); diff != "" {
				t.Errorf("the Service was changed: %s", diff)
			}
		})
	}
}

func TestIsReserved(t *testing.T) {
	for _, name := range []string{"PORT", "K_SERVICE", "K_CONFIGURATION", "K_REVISION"} {
		if !kservice.IsReserved(name) {
			t.Errorf("%s is not reserved", name)
		}
	}
	for _, name := range []string{"A", "PORTS", "port", "K_SINK", "a.b-c", "FLYTE_INTERNAL_EXECUTION_PROJECT"} {
		if kservice.IsReserved(name) {
			t.Errorf("%s is reserved", name)
		}
	}
}

// What appbridge sends to stop an app passes Knative's validation of an update, and an update of a
// stopped app does, whatever Knative and others have written into it. A Knative that does not allow
// a scale of zero from the start refuses the stop.
func TestCheckOfStop(t *testing.T) {
	settings := corpus.Settings(t)
	strict := *settings
	strict.Autoscaler = settings.Autoscaler.DeepCopy()
	strict.Autoscaler.AllowZeroInitialScale = false
	var patch map[string]any
	if err := json.Unmarshal(kservice.StopPatch("7"), &patch); err != nil {
		t.Fatal(err)
	}
	for _, spec := range []string{
		`{"container": {"image": "app:1"}}`,
		`{"container": {"image": "app:1"}, "autoscaling": {"replicas": {"min": 2, "max": 3}, "scalingMetric": {"concurrency": {"targetValue": 1}}}}`,
		everyFeature,
	} {
		id, app := deployedApp(t, spec)
		cfg := deployDefaults()
		cfg.Policy = allowing(t, nil, "persistentvolumeclaim/data")
		svc, err := build(id, app, cfg)
		if err != nil {
			t.Fatal(err)
		}
		running := deployedObject(t, svc)
		annotations := running["metadata"].(map[string]any)["annotations"].(map[string]any)
		annotations["serving.knative.dev/creator"], annotations["serving.knative.dev/lastModifier"] = "flyte", "someone"
		stopped := mergePatch(runtime.DeepCopyJSON(running), runtime.DeepCopyJSON(patch))
		if got := corpus.Refusal(t, settings, stopped, running); got != "" {
			t.Errorf("stop: got %s, want no refusal", got)
		}
		if got, want := corpus.Refusal(t, &strict, stopped, running), "initial-scale=0 not allowed by cluster"; !strings.Contains(got, want) {
			t.Errorf("stop without allow-zero-initial-scale: got %q, want %q", got, want)
		}
		started := runtime.DeepCopyJSON(stopped)
		if err := kservice.Apply(svc, started); err != nil {
			t.Fatal(err)
		}
		if got := corpus.Refusal(t, settings, started, stopped); got != "" {
			t.Errorf("deploy of the stopped app: got %s, want no refusal", got)
		}
	}
}

// The maximum is the configured one, or an hour if that is longer. The default for apps without a
// timeout is held to it.
func TestCheckTimeout(t *testing.T) {
	for _, tt := range []struct {
		name           string
		fallback, most time.Duration
		spec           string
		want           []string
	}{
		{"capped", time.Minute, 2 * time.Minute, `"timeouts": {"requestTimeout": "7200s"}`, nil},
		{"Knative's default above the maximum", time.Minute, 2 * time.Minute, `"timeouts": {"requestTimeout": "0s"}`, nil},
		{"default above the maximum of apps", time.Hour, time.Minute, `"timeouts": {}`, nil},
		{"default above Knative's maximum", 2 * time.Hour, time.Hour, `"timeouts": {}`, []string{
			"--default-request-timeout: knative refuses it: expected 0 <= 7200 <= 3600: spec.template.spec.timeoutSeconds",
		}},
		{"app with a timeout beside such a default", 2 * time.Hour, time.Hour, `"timeouts": {"requestTimeout": "3600s"}`, nil},
		{"default in a cluster that allows more", 2 * time.Hour, 2 * time.Hour, `"timeouts": {}`, nil},
		{"no maximum", time.Minute, 0, `"timeouts": {"requestTimeout": "315576000000s"}`, nil},
		{"a maximum of less than a second", time.Minute, time.Millisecond, `"timeouts": {"requestTimeout": "7200s"}`, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := deployDefaults()
			cfg.DefaultRequestTimeout, cfg.MaxRequestTimeout = tt.fallback, tt.most
			id, app := deployedApp(t, `{"container": {"image": "app:1"}, `+tt.spec+`}`)
			svc, err := build(id, app, cfg)
			if err != nil {
				t.Fatal(err)
			}
			if got := kservice.Check(svc, app, cfg); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// Knative's validation takes time and memory with the square of the errors, and more for some.
func TestCheckIsBounded(t *testing.T) {
	list := func(item string, count int) string { return "[" + strings.Repeat(item+",", count-1) + item + "]" }
	pod := func(containers, more string) string {
		return `{"pod": {"podSpec": {"containers": ` + containers + more + `}}}`
	}
	for _, tt := range []struct {
		name string
		spec string
		want string // begin of the first problem
	}{
		{"containers", pod(list(`{}`, 33), ""), "app.spec: has 33 containers, want at most 32"},
		{"init containers", pod(`[{}]`, `, "initContainers": `+list(`{}`, 32)), "app.spec: has 33 containers, want at most 32"},
		{"envFrom", pod(`[{"envFrom": `+list(`{}`, 33)+`}]`, ""), "app.spec: has 33 items of envFrom, want at most 32"},
		{"volumes", pod(`[{}]`, `, "volumes": `+list(`{}`, 256)), "app.spec: has 257 items in its lists"},
		{"items of a volume", pod(`[{}]`, `, "volumes": [{"downwardAPI": {"items": `+list(`{}`, 255)+`}}]`), "app.spec: has 257 items in its lists"},
		{"groups", pod(`[{}]`, `, "securityContext": {"supplementalGroups": `+list(`-1`, 256)+`}`), "app.spec: has 257 items in its lists"},
		{"as many as may be", pod(list(`{"env": `+list(`{}`, 8)+`}`, 32), `, "volumes": `+list(`{}`, 224)), "app.spec.pod.podSpec"},
		{
			"variables", `{"container": {"image": "app:1", "env": ` + list(`{"key": "PORT"}`, 12_000) + `}}`,
			`app.spec.container.env[99].key: knative refuses it: "PORT" is a reserved`,
		},
		{
			"a variable behind others", `{"container": {"image": "app:1", "env": [` + strings.Repeat(`{"key": "A"},`, 3000) + `{"key": "PORT"}]}}`,
			`app.spec.container.env[3000].key: knative refuses it: "PORT" is a reserved environment variable: spec.template.spec.containers[0].env[3001].name`,
		},
		{
			"a variable of a sidecar", pod(`[{"image": "app:1", "ports": [{"containerPort": 80}]}, {"image": "side:1", "env": [`+strings.Repeat(`{"name": "A"},`, 600)+`{"name": "K_SERVICE"}]}]`, ""),
			`app.spec.pod.podSpec.containers[1].env[600].name: knative refuses it: "K_SERVICE" is a reserved`,
		},
		{"many good variables", `{"container": {"image": "app:1", "env": ` + list(`{"key": "A"}`, 3000) + `}}`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			id, app := deployedApp(t, tt.spec)
			cfg := deployDefaults()
			cfg.DefaultEnv = map[string]string{"A": "1"}
			svc, err := build(id, app, cfg)
			if err != nil {
				t.Fatal(err)
			}
			var before, after goruntime.MemStats
			goruntime.ReadMemStats(&before)
			got := kservice.Check(svc, app, cfg)
			goruntime.ReadMemStats(&after)
			if len(got) == 0 && tt.want != "" || len(got) > 0 && (tt.want == "" || !strings.HasPrefix(got[0], tt.want)) {
				t.Errorf("got %q, want %q first", got, tt.want)
			}
			for _, problem := range got {
				if len(problem) > 300 {
					t.Errorf("%q: %d bytes, want at most 300", problem, len(problem))
				}
			}
			if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 1024 {
				t.Errorf("took %d MiB", took)
			}
		})
	}
}

// everyFeature is an app that needs the features of Knative that appbridge's own policy leaves it.
const everyFeature = `{"pod": {"podSpec": {
	"containers": [
		{
			"name": "app", "image": "app:1", "ports": [{"containerPort": 8080}],
			"env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
			"securityContext": {"capabilities": {"add": ["NET_BIND_SERVICE"]}},
			"volumeMounts": [
				{"name": "scratch", "mountPath": "/scratch"}, {"name": "data", "mountPath": "/data"},
				{"name": "model", "mountPath": "/model", "readOnly": true, "mountPropagation": "None"}
			]
		},
		{"name": "side", "image": "side:1", "livenessProbe": {"tcpSocket": {"port": 9000}}}
	],
	"initContainers": [{"name": "init", "image": "init:1"}],
	"volumes": [
		{"name": "scratch", "emptyDir": {}}, {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
		{"name": "model", "image": {"reference": "model:1"}}
	],
	"nodeSelector": {"gpu": "yes"}, "tolerations": [{"key": "gpu", "operator": "Exists"}],
	"affinity": {"nodeAffinity": {}},
	"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
	"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["db"]}],
	"securityContext": {"runAsUser": 1000, "fsGroup": 1000},
	"dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.0.0.2"]}
}}}`
