package kservice

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"knative.dev/serving/pkg/apis/autoscaling"

	"github.com/appbridge/appbridge/subjects/appv1"
)

// Knative's paths to what Build writes.
const (
	namePath           = "metadata.name"
	templateSpecPath   = "spec.template.spec"
	annotationsPath    = "spec.template.metadata.annotations"
	firstContainerPath = templateSpecPath + ".containers[0]"
	someContainerPath  = templateSpecPath + ".containers[*]" // one of them, which Knative does not report
)

// Fields of an app, and options, that values are from.
const (
	appField             = "app" // the origin is not known
	containerField       = "app.spec.container"
	defaultEnvOption     = "--default-env"
	defaultAccountOption = "--default-service-account"
	defaultTimeoutOption = "--default-request-timeout"
)

// origins finds the field of an app, or the option, that a value of its Knative Service is from.
type origins struct {
	spec *appv1.Spec
	cfg  DeployConfig
	pod  *corev1.PodSpec // that Build returned
}

// fields are the origins of Knative's paths, which have one parent: at most two, or that of the
// parent.
func (o *origins) fields(paths []string) string {
	var out []string
	for _, path := range paths {
		if field := o.field(path); !slices.Contains(out, field) {
			out = append(out, field)
		}
	}
	switch len(out) {
	case 0:
		return appField
	case 1, 2:
		return strings.Join(out, ", ")
	default:
		return o.field(paths[0][:max(0, strings.LastIndexByte(paths[0], '.'))])
	}
}

// field is the origin of one path.
func (o *origins) field(path string) string {
	if annotation, ok := strings.CutPrefix(path, annotationsPath+"."); ok {
		return o.annotation(annotation)
	}
	switch path {
	case templateSpecPath + ".timeoutSeconds":
		if o.spec.GetTimeouts().GetRequestTimeout() == nil {
			return defaultTimeoutOption
		}
		return "app.spec.timeouts.requestTimeout"
	case templateSpecPath + ".serviceAccountName":
		if o.spec.GetSecurityContext().GetRunAs().GetK8SServiceAccount() == "" && o.cfg.DefaultServiceAccount != "" {
			return defaultAccountOption
		}
		return accountField(o.spec)
	}
	if in, ok := strings.CutPrefix(path, firstContainerPath+".env["); ok && len(o.pod.InitContainers) == 0 {
		return o.variable(in)
	}
	if o.spec.GetPod() != nil {
		in, ok := strings.CutPrefix(path, templateSpecPath+".")
		switch {
		case !ok:
			return appField
		case strings.Count(in, "containers[") > 1, strings.HasPrefix(in, "containers[") && len(o.pod.InitContainers) > 0:
			return podSpecField // Knative's path names several containers, or may mean an init container
		}
		return podSpecField + "." + in
	}
	for _, prefix := range []string{firstContainerPath, someContainerPath} {
		if in, ok := strings.CutPrefix(path, prefix); ok {
			return containerField + in
		}
	}
	return appField
}

// variable is the origin of a variable of the first container, given the path from its index on.
// The configured ones precede those of the app, and the internal ones follow.
func (o *origins) variable(path string) string {
	written, rest, _ := strings.Cut(path, "]")
	at, err := strconv.Atoi(written)
	own := len(o.pod.Containers[0].Env) - len(o.cfg.DefaultEnv) - internalVariables
	at -= len(o.cfg.DefaultEnv)
	switch {
	case err != nil || at >= own:
		return appField
	case at < 0:
		return defaultEnvOption
	case o.spec.GetPod() != nil:
		return podSpecField + ".containers[0].env[" + strconv.Itoa(at) + "]" + rest
	case rest == ".name":
		rest = ".key"
	}
	return containerField + ".env[" + strconv.Itoa(at) + "]" + rest
}

// annotation is the origin of an annotation of the template, to whose key Knative may add a text.
func (o *origins) annotation(path string) string {
	const scaling = "app.spec.autoscaling."
	metric := scaling + "scalingMetric.concurrency"
	if o.spec.GetAutoscaling().GetScalingMetric().GetRequestRate() != nil {
		metric = scaling + "scalingMetric.requestRate"
	}
	switch path {
	case autoscaling.MinScaleAnnotationKey:
		return scaling + "replicas.min"
	case autoscaling.MaxScaleAnnotationKey:
		return scaling + "replicas.max"
	case autoscaling.MetricAnnotationKey:
		return metric
	case autoscaling.TargetAnnotationKey:
		return metric + ".targetValue"
	case autoscaling.WindowAnnotationKey:
		return scaling + "scaledownPeriod"
	default:
		return appField
	}
}
