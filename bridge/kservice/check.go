package kservice

import (
	"context"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"knative.dev/pkg/apis"
	"knative.dev/serving/pkg/apis/config"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	autoscaler "knative.dev/serving/pkg/autoscaler/config"
	"knative.dev/serving/pkg/autoscaler/config/autoscalerconfig"

	"github.com/appbridge/appbridge/subjects/appv1"
)

// Knative copies all the errors that it has found for each further one, and the paths of some grow
// with each: 300 bad items took a minute and allocated 50 GiB. These bound the number of errors.
const (
	maxContainers = 32  // containers and init containers
	maxEnvFrom    = 32  // in all containers
	maxPodItems   = 256 // in all lists of objects in the pod spec but those of variables
	maxEnvAtOnce  = 256 // variables in one validation
)

// Check returns what Knative's own validation finds wrong with a Service that Build returned for an
// app: Knative's words with its path to the field, after the field of the app that the value is
// from. The list is bounded as those of Build. The Service is not changed.
//
// The settings of the cluster are not known here. What they may allow passes: every feature, a
// scale of zero from the start, and request timeouts up to MaxTimeoutSeconds. The cluster's webhook decides
// on those.
func Check(svc *servingv1.Service, app *appv1.App, cfg DeployConfig) []string {
	found := &Problems{}
	from := origins{spec: app.GetSpec(), cfg: cfg, pod: &svc.Spec.Template.Spec.PodSpec}
	if wrong := tooMany(svc); wrong != "" {
		found.Add("app.spec", wrong)
		return found.Texts()
	}
	ctx := apis.WithinCreate(knativeContext(cfg))
	for part := range parts(svc) {
		for _, e := range validate(ctx, part.svc).WrappedErrors() {
			for i := range e.Paths {
				e.Paths[i] = part.whole(e.Paths[i])
			}
			for _, paths := range byParent(e.Paths) {
				if !slices.Equal(paths, []string{namePath}) { // Build has checked the id
					found.Add(from.fields(paths), "knative refuses it: "+knativeText(e, paths))
				}
			}
		}
		if found.count() > 0 {
			break // the rest would repeat these
		}
	}
	return found.Texts()
}

// IsReserved reports whether Knative refuses a variable of a container for its name.
func IsReserved(variable string) bool {
	spec := corev1.PodSpec{Containers: []corev1.Container{{Image: "image", Env: []corev1.EnvVar{{Name: variable}}}}}
	return serving.ValidatePodSpec(knativeContext(DeployConfig{}), spec).Filter(apis.ErrorLevel) != nil
}

// tooMany is the reason why a pod spec has too many items to be validated, empty if it has not.
func tooMany(svc *servingv1.Service) string {
	containers, envFrom := containersOf(svc), 0
	for _, c := range containers {
		envFrom += len(c.EnvFrom)
	}
	for _, bound := range []struct {
		count, most int
		of          string
	}{
		{len(containers), maxContainers, "containers"},
		{envFrom, maxEnvFrom, "items of envFrom"},
		{countItems(reflect.ValueOf(svc.Spec.Template.Spec.PodSpec)), maxPodItems, "items in its lists, not counting variables"},
	} {
		if bound.count > bound.most {
			return fmt.Sprintf("has %d %s, want at most %d", bound.count, bound.of, bound.most)
		}
	}
	return ""
}

// countItems counts the items of the lists in a pod spec, without those of texts and of variables.
func countItems(v reflect.Value) int {
	count := 0
	switch v.Kind() {
	case reflect.Pointer:
		count = countItems(v.Elem())
	case reflect.Slice:
		if element := v.Type().Elem(); element.Kind() != reflect.String && element != reflect.TypeFor[corev1.EnvVar]() {
			count = v.Len()
			for i := range v.Len() {
				count += countItems(v.Index(i))
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			count += countItems(v.Field(i))
		}
	}
	return count
}

// containersOf are the init containers of a Service and its containers.
func containersOf(svc *servingv1.Service) []*corev1.Container {
	var out []*corev1.Container
	for _, list := range [][]corev1.Container{svc.Spec.Template.Spec.InitContainers, svc.Spec.Template.Spec.Containers} {
		for i := range list {
			out = append(out, &list[i])
		}
	}
	return out
}

// part is a copy of a Service with some of its variables.
type part struct {
	svc   *servingv1.Service
	first int // the index of the first variable in the whole Service
}

// parts are a Service with all variables, or without any and then with some of one container each.
func parts(svc *servingv1.Service) iter.Seq[part] {
	return func(yield func(part) bool) {
		variables := 0
		for _, c := range containersOf(svc) {
			variables += len(c.Env)
		}
		if variables <= maxEnvAtOnce {
			yield(part{svc: svc.DeepCopy()})
			return
		}
		bare := svc.DeepCopy()
		for _, c := range containersOf(bare) {
			c.Env = nil
		}
		if !yield(part{svc: bare.DeepCopy()}) {
			return
		}
		for i, c := range containersOf(svc) {
			first := 0
			for some := range slices.Chunk(c.Env, maxEnvAtOnce) {
				one := bare.DeepCopy()
				containersOf(one)[i].Env = some
				if !yield(part{one, first}) {
					return
				}
				first += len(some)
			}
		}
	}
}

// whole is the path in the whole Service.
func (p part) whole(path string) string {
	const list = ".env["
	at := strings.LastIndex(path, list)
	if p.first == 0 || at < 0 {
		return path
	}
	index, rest, _ := strings.Cut(path[at+len(list):], "]")
	n, err := strconv.Atoi(index)
	if err != nil {
		return path
	}
	return path[:at] + list + strconv.Itoa(p.first+n) + "]" + rest
}

// validate sets Knative's defaults in a Service and returns the errors of Knative's validation, as
// Knative's webhooks do.
func validate(ctx context.Context, svc *servingv1.Service) (errs *apis.FieldError) {
	// Knative's webhook answers each request in a goroutine that may panic. Here a panic would end
	// the program.
	defer func() {
		if reason := recover(); reason != nil {
			errs = apis.ErrGeneric(fmt.Sprintf("its validation failed: %v", reason), "spec")
		}
	}()
	svc.SetDefaults(ctx)
	return svc.Validate(ctx).Filter(apis.ErrorLevel)
}

// knativeContext has the settings of a Knative that allows whatever a setting can allow.
func knativeContext(cfg DeployConfig) context.Context {
	defaults, _ := config.NewDefaultsConfigFromMap(nil) // Knative's own defaults are valid
	defaults.MaxRevisionTimeoutSeconds = cfg.MaxTimeoutSeconds()
	features, scaler := allowing()
	return config.ToContext(context.Background(), &config.Config{Defaults: defaults, Features: features, Autoscaler: scaler})
}

// allowing are the settings that allow every feature of Knative. They must not be changed.
var allowing = sync.OnceValues(func() (*config.Features, *autoscalerconfig.Config) {
	features := &config.Features{}
	flags := reflect.ValueOf(features).Elem()
	for i := range flags.NumField() {
		flags.Field(i).Set(reflect.ValueOf(config.Enabled))
	}
	features.SecurePodDefaults = config.Disabled  // it allows nothing, it sets other defaults
	scaler, _ := autoscaler.NewConfigFromMap(nil) // Knative's own defaults are valid
	scaler.AllowZeroInitialScale = true
	return features, scaler
})

// byParent splits paths into those that have a parent in common: Knative merges the errors of one
// text, whatever their fields.
func byParent(paths []string) [][]string {
	if len(paths) == 0 {
		return [][]string{nil} // an error about no field
	}
	var out [][]string
	last := ""
	for _, path := range paths { // which are sorted
		parent := path[:max(0, strings.LastIndexByte(path, '.'))]
		if len(out) == 0 || parent != last {
			out = append(out, nil)
		}
		last = parent
		out[len(out)-1] = append(out[len(out)-1], path)
	}
	return out
}

// knativeText is an error as Knative writes it, on one line.
func knativeText(e *apis.FieldError, paths []string) string {
	text := e.Message
	if len(paths) > 0 {
		text += ": " + strings.Join(paths, ", ")
	}
	if e.Details != "" {
		text += " (" + strings.ReplaceAll(e.Details, "\n", " ") + ")"
	}
	return text
}
