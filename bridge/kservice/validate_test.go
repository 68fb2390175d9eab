package kservice_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

func TestValidateAppID(t *testing.T) {
	long := strings.Repeat("x", 63)
	tests := []struct {
		name string
		id   subjects.AppID
		want []string
	}{
		{"good", subjects.AppID{Project: "p", Domain: "d", Name: "n"}, nil},
		{"upper case and digits", subjects.AppID{Project: "1P", Domain: "D1", Name: "My-App2"}, nil},
		{"longer than Flyte's schema says", subjects.AppID{Project: "p", Domain: "d", Name: strings.Repeat("n", 31)}, nil},
		{"longest", subjects.AppID{Project: long, Domain: long, Name: long}, nil},
		{"empty", subjects.AppID{}, []string{
			`app.metadata.id.name: "": must not be empty`,
			`app.metadata.id.project: "": must not be empty`,
			`app.metadata.id.domain: "": must not be empty`,
		}},
		{"too long", subjects.AppID{Project: "p", Domain: "d", Name: long + "x"}, []string{
			`app.metadata.id.name: "` + long + `x": is 64 bytes, want at most 63`,
		}},
		{"no label", subjects.AppID{Project: "a/b", Domain: "-d", Name: "n é"}, []string{
			`app.metadata.id.name: "n é": must not hold ' ': want letters, digits and any of - _ .`,
			`app.metadata.id.project: "a/b": must not hold '/': want letters, digits and any of - _ .`,
			`app.metadata.id.domain: "-d": must begin and end with a letter or a digit`,
		}},
		{"not UTF-8", subjects.AppID{Project: "p", Domain: "d", Name: "n\xff"}, []string{
			`app.metadata.id.name: "n\xff": must not hold '�': want letters, digits and any of - _ .`,
		}},
		{"no name of a service", subjects.AppID{Project: "a_b", Domain: "c.d", Name: "1n"}, []string{
			`app.metadata.id.name: "1n": must begin with a letter: Knative would refuse the name "1n-a_b-c.d"`,
			`app.metadata.id.project: "a_b": must not hold '_': Knative would refuse the name "1n-a_b-c.d"`,
			`app.metadata.id.domain: "c.d": must not hold '.': Knative would refuse the name "1n-a_b-c.d"`,
		}},
		{"behind the cut", subjects.AppID{Project: "p", Domain: "a_b", Name: long}, nil},
		{"before the cut", subjects.AppID{Project: "a_b", Domain: long, Name: "n"}, []string{
			`app.metadata.id.project: "a_b": must not hold '_': Knative would refuse the name "` +
				kservice.Name(subjects.AppID{Project: "a_b", Domain: long, Name: "n"}) + `"`,
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, app := deployedApp(t, `{"container": {"image": "i"}}`)
			if got, _ := validateApp(tt.id, app, deployDefaults()); !slices.Equal(got, tt.want) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

func TestValidateAppSpec(t *testing.T) {
	resourcesOf := func(value string) *appv1.Spec {
		return &appv1.Spec{AppPayload: &appv1.Spec_Container{Container: &appv1.Container{Resources: &appv1.Resources{
			Limits: []*appv1.Resources_ResourceEntry{
				{Name: appv1.Resources_GPU, Value: "not looked at"},
				{Name: appv1.Resources_MEMORY, Value: value},
			},
		}}}}
	}
	pod := func(fields map[string]*structpb.Value) *appv1.Spec {
		return &appv1.Spec{AppPayload: &appv1.Spec_Pod{Pod: &appv1.K8SPod{PodSpec: &structpb.Struct{Fields: fields}}}}
	}
	parsed := func(spec string) *appv1.Spec {
		_, app := deployedApp(t, spec)
		return app.GetSpec()
	}
	timeout := func(d *durationpb.Duration) *appv1.Spec {
		spec := parsed(`{"container": {}}`)
		spec.Timeouts = &appv1.TimeoutConfig{RequestTimeout: d}
		return spec
	}
	const memory = "app.spec.container.resources.limits[1].value: "
	tests := []struct {
		name string
		spec *appv1.Spec
		want []string
	}{
		{"no spec", nil, []string{`app.spec: has neither a container nor a pod`}},
		{"no payload", &appv1.Spec{}, []string{`app.spec: has neither a container nor a pod`}},
		{"bad quantity", resourcesOf("lots"), []string{memory + `"lots": want a quantity, for example 500m or 2Gi`}},
		{"no quantity", resourcesOf(""), []string{memory + `"": want a quantity, for example 500m or 2Gi`}},
		{"negative quantity", resourcesOf("-1Gi"), []string{memory + `"-1Gi": want no negative quantity`}},
		{"quantity that takes all memory", resourcesOf("1e-2000000000"), []string{memory + `"1e-2000000000": want a quantity, for example 500m or 2Gi`}},
		{"long quantity", resourcesOf(strings.Repeat("1", 100)), []string{
			memory + `"` + strings.Repeat("1", 64) + `"…: want a quantity, for example 500m or 2Gi`,
		}},
		{"quantity of control bytes", resourcesOf(strings.Repeat("\x00", 65)), []string{
			memory + `"` + strings.Repeat(`\x00`, 16) + `"…: want a quantity, for example 500m or 2Gi`,
		}},
		{"every problem", parsed(`{
			"container": {"ports": [{"containerPort": 4294967295}], "resources": {"requests": [{"name": "CPU", "value": "x"}]}},
			"securityContext": {"secrets": [{"mountRequirement": 9}]}
		}`), []string{
			`app.spec.container.resources.requests[0].value: "x": want a quantity, for example 500m or 2Gi`,
			`app.spec.container.ports[0].containerPort: "4294967295": want at most 65535`,
			`app.spec.securityContext.secrets[0].mountRequirement: "9": want ANY, ENV_VAR or FILE`,
		}},
		{"negative fraction of a second", timeout(&durationpb.Duration{Nanos: -500_000_000}), []string{
			`app.spec.timeouts.requestTimeout: "-500ms": want no negative duration`,
		}},
		{"duration out of range", timeout(&durationpb.Duration{Seconds: math.MaxInt64}), []string{
			`app.spec.timeouts.requestTimeout: "9223372036854775807 seconds and 0 nanoseconds": want a duration as protobuf has it`,
		}},
		{"duration of mixed signs", timeout(&durationpb.Duration{Seconds: 1, Nanos: -1}), []string{
			`app.spec.timeouts.requestTimeout: "1 seconds and -1 nanoseconds": want a duration as protobuf has it`,
		}},
		{"duration over the maximum", timeout(durationpb.New(1000 * time.Hour)), nil},
		{"no pod spec", &appv1.Spec{AppPayload: &appv1.Spec_Pod{Pod: &appv1.K8SPod{}}}, []string{`app.spec.pod.podSpec: missing`}},
		{"not a number", parsedWith(pod, structpb.NewNumberValue(math.NaN())), []string{
			`app.spec.pod.podSpec.containers[1].x: NaN: want a number`,
		}},
		{"infinite", parsedWith(pod, structpb.NewNumberValue(math.Inf(-1))), []string{
			`app.spec.pod.podSpec.containers[1].x: -Inf: want a number`,
		}},
		{"no value", parsedWith(pod, &structpb.Value{}), []string{`app.spec.pod.podSpec.containers[1].x: has no value`}},
		{"pod's quantity that takes all memory", parsed(`{"pod": {"podSpec": {"containers": [{"resources": {"Limits": {"cpu": "1e-2000000000"}}}]}}}`), []string{
			`app.spec.pod.podSpec.containers[0].resources.Limits.cpu: "1e-2000000000": want a quantity, for example 500m or 2Gi`,
		}},
		{"pod's other quantity", parsed(`{"pod": {"podSpec": {"volumes": [{"emptyDir": {"sizeLimit": "1E+99999999"}}]}}}`), []string{
			`app.spec.pod.podSpec.volumes[0].emptyDir.sizeLimit: "1E+99999999": want a quantity, for example 500m or 2Gi`,
		}},
		{"text that only looks like one", parsed(`{"pod": {"podSpec": {"containers": [{"env": [{"name": "SHA", "value": "1234e5678"}]}]}}}`), nil},
		{"pod's port is a text", parsed(`{"pod": {"podSpec": {"containers": [{"ports": [{"containerPort": "8080"}]}]}}}`), []string{
			`app.spec.pod.podSpec: field "containers.ports.containerPort" is "string": want int32`,
		}},
		{"pod's port is a fraction", parsed(`{"pod": {"podSpec": {"containers": [{"ports": [{"containerPort": 80.5}]}]}}}`), []string{
			`app.spec.pod.podSpec: field "containers.ports.containerPort" is "number 80.5": want int32`,
		}},
		{"pod's quantity is none", parsed(`{"pod": {"podSpec": {"containers": [{"resources": {"limits": {"cpu": "lots"}}}]}}}`), []string{
			`app.spec.pod.podSpec.containers[0].resources.limits.cpu: "lots": want a quantity, for example 500m or 2Gi`,
		}},
		{"pod's containers are an object", parsed(`{"pod": {"podSpec": {"containers": {}}}}`), []string{
			`app.spec.pod.podSpec: field "containers" is "object": want list`,
		}},
		{"more than an annotation holds", parsed(`{"container": {"image": "` + strings.Repeat("i", 200<<10) + `"}}`), []string{
			`app.spec: takes 273080 bytes of annotations, want at most 262144`,
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			id, app := deployedApp(t, `{}`)
			app.Spec = tt.spec
			if got, _ := validateApp(id, app, deployDefaults()); !slices.Equal(got, tt.want) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
			m, err := build(id, app, deployDefaults())
			if (err == nil) != (len(tt.want) == 0) || (m == nil) != (err != nil) {
				t.Errorf("Build: got %v and %v, want what ValidateApp says", m, err)
			} else if err != nil && err.Error() != strings.Join(tt.want, "\n") {
				t.Errorf("Build: got %q, want %q", err, tt.want)
			}
		})
	}
}

// parsedWith is a pod with a value in its second container.
func parsedWith(pod func(map[string]*structpb.Value) *appv1.Spec, value *structpb.Value) *appv1.Spec {
	return pod(map[string]*structpb.Value{"containers": structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{
		structpb.NewStructValue(&structpb.Struct{}),
		structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"x": value}}),
	}})})
}

func TestValidateAppIsBounded(t *testing.T) {
	id, app := deployedApp(t, `{"container": {}}`)
	id.Name = strings.Repeat("\x00", 10_000)
	for range 1000 {
		port := &appv1.ContainerPort{ContainerPort: 1 << 31}
		app.GetSpec().GetContainer().Ports = append(app.GetSpec().GetContainer().Ports, port)
	}
	got, _ := validateApp(id, app, deployDefaults())
	if len(got) != 33 || got[32] != "and 969 more" {
		t.Errorf("got %d problems, the last one %q, want 32 and how many more", len(got), got[len(got)-1])
	}
	for _, problem := range got {
		if len(problem) > 300 {
			t.Errorf("%q: %d bytes, want at most 300", problem, len(problem))
		}
	}

	deep := structpb.NewNumberValue(math.NaN())
	for range 2900 {
		deep = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{strings.Repeat("k", 10): deep}})
	}
	app.Spec = &appv1.Spec{AppPayload: &appv1.Spec_Pod{Pod: &appv1.K8SPod{PodSpec: deep.GetStructValue()}}}
	got, _ = validateApp(subjects.AppID{Project: "p", Domain: "d", Name: "n"}, app, deployDefaults())
	if len(got) != 1 || len(got[0]) > 300 || !strings.HasSuffix(got[0], "…: NaN: want a number") {
		t.Errorf("got %q, want one problem of at most 300 bytes", got)
	}
}

// What binary protobuf could not read again is refused.
func TestValidateAppDepth(t *testing.T) {
	for depth, want := range map[int]bool{2900: true, 3400: false, 9000: false} {
		deep := structpb.NewNumberValue(1)
		for range depth {
			deep = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"k": deep}})
		}
		app := &appv1.App{Spec: &appv1.Spec{AppPayload: &appv1.Spec_Pod{Pod: &appv1.K8SPod{PodSpec: deep.GetStructValue()}}}}
		got, _ := validateApp(subjects.AppID{Project: "p", Domain: "d", Name: "n"}, app, deployDefaults())
		if (len(got) == 0) != want || !want && !strings.HasPrefix(got[0], "app.spec: is nested") {
			t.Errorf("depth %d: got %q", depth, got)
		}
	}
}
