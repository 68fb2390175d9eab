package kservice

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// internalVariables are the last ones of the first container, the pattern of endpoints first.
const internalVariables = 3

func podSpec(spec *appv1.Spec, found *Problems) corev1.PodSpec {
	var out corev1.PodSpec
	switch payload := spec.GetAppPayload().(type) {
	case *appv1.Spec_Container:
		out.Containers = []corev1.Container{container(payload.Container, found)}
	case *appv1.Spec_Pod:
		out = readPodSpec(payload.Pod.GetPodSpec(), found)
	default:
		found.Add("app.spec", "has neither a container nor a pod")
	}
	if out.EnableServiceLinks == nil {
		out.EnableServiceLinks = new(false)
	}
	return out
}

func container(c *appv1.Container, found *Problems) corev1.Container {
	out := corev1.Container{
		Name:      "app",
		Image:     c.GetImage(),
		Command:   slices.Clone(c.GetCommand()),
		Args:      slices.Clone(c.GetArgs()),
		Resources: resources(c.GetResources(), found),
	}
	for _, pair := range c.GetEnv() {
		out.Env = append(out.Env, corev1.EnvVar{Name: pair.GetKey(), Value: pair.GetValue()})
	}
	for i, port := range c.GetPorts() {
		number := port.GetContainerPort()
		if number > math.MaxInt32 { // Knative checks the others
			found.AddValue(fmt.Sprintf("app.spec.container.ports[%d].containerPort", i),
				strconv.FormatUint(uint64(number), 10), "at most 65535")
			continue
		}
		out.Ports = append(out.Ports, corev1.ContainerPort{Name: port.GetName(), ContainerPort: int32(number)})
	}
	return out
}

// addEnv adds the configured variables before those of the first container, and the internal ones
// after them.
func addEnv(pod *corev1.PodSpec, id subjects.AppID, cfg DeployConfig) {
	if len(pod.Containers) == 0 {
		return
	}
	first := &pod.Containers[0]
	env := make([]corev1.EnvVar, 0, len(cfg.DefaultEnv)+len(first.Env)+internalVariables)
	for _, key := range slices.Sorted(maps.Keys(cfg.DefaultEnv)) {
		env = append(env, corev1.EnvVar{Name: key, Value: cfg.DefaultEnv[key]})
	}
	env = append(env, first.Env...)
	env = append(env,
		corev1.EnvVar{Name: "INTERNAL_APP_ENDPOINT_PATTERN", Value: endpointPattern(id, cfg)},
		corev1.EnvVar{Name: "FLYTE_INTERNAL_EXECUTION_PROJECT", Value: id.Project},
		corev1.EnvVar{Name: "FLYTE_INTERNAL_EXECUTION_DOMAIN", Value: id.Domain},
	)
	first.Env = env
}

// DropOverridden removes the configured variables that the app overrides. Flyte's deploy keeps
// both, and the later one counts, but Knative's definition requires unique names.
func DropOverridden(svc *servingv1.Service, cfg DeployConfig) {
	containers := svc.Spec.Template.Spec.Containers
	if len(containers) == 0 {
		return
	}
	first := &containers[0]
	defaults, rest := first.Env[:len(cfg.DefaultEnv)], first.Env[len(cfg.DefaultEnv):]
	defaults = slices.DeleteFunc(defaults, func(v corev1.EnvVar) bool {
		return slices.ContainsFunc(rest, func(own corev1.EnvVar) bool { return own.Name == v.Name })
	})
	first.Env = slices.Concat(defaults, rest)
}

// endpointPattern is the address of another app of the same project and domain, with a placeholder
// for its name.
func endpointPattern(id subjects.AppID, cfg DeployConfig) string {
	suffix := strings.NewReplacer(
		"{{ project }}", strings.ToLower(id.Project),
		"{{ domain }}", strings.ToLower(id.Domain),
	).Replace(cfg.SuffixTemplate)
	return "http://{app_fqdn}-" + suffix + internalDomain(cfg.Namespace)
}

func internalDomain(namespace string) string { return "." + namespace + ".svc.cluster.local" }

// Place moves a Knative Service that Build returned to where that of its app is.
func Place(svc *servingv1.Service, at types.NamespacedName) {
	if containers := svc.Spec.Template.Spec.Containers; at.Namespace != svc.Namespace && len(containers) > 0 {
		endpoint := &containers[0].Env[len(containers[0].Env)-internalVariables]
		endpoint.Value = strings.TrimSuffix(endpoint.Value, internalDomain(svc.Namespace)) + internalDomain(at.Namespace)
	}
	svc.Namespace, svc.Name = at.Namespace, at.Name
}

const wantQuantity = "a quantity, for example 500m or 2Gi"

func resources(r *appv1.Resources, found *Problems) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{
		Requests: resourceList("app.spec.container.resources.requests", r.GetRequests(), found),
		Limits:   resourceList("app.spec.container.resources.limits", r.GetLimits(), found),
	}
}

// resourceList skips resources without counterpart in Kubernetes. It is nil if none is left.
func resourceList(field string, entries []*appv1.Resources_ResourceEntry, found *Problems) corev1.ResourceList {
	var out corev1.ResourceList
	for i, entry := range entries {
		name, ok := resourceNames[entry.GetName()]
		if !ok {
			continue
		}
		field := fmt.Sprintf("%s[%d].value", field, i)
		quantity, ok := parseQuantity(entry.GetValue())
		switch {
		case !ok:
			found.AddValue(field, entry.GetValue(), wantQuantity)
		case quantity.Sign() < 0:
			found.AddValue(field, entry.GetValue(), "no negative quantity")
		default:
			if out == nil {
				out = corev1.ResourceList{}
			}
			out[name] = quantity
		}
	}
	return out
}

// resourceNames are the resources that have a counterpart.
var resourceNames = map[appv1.Resources_ResourceName]corev1.ResourceName{
	appv1.Resources_CPU:               corev1.ResourceCPU,
	appv1.Resources_MEMORY:            corev1.ResourceMemory,
	appv1.Resources_STORAGE:           corev1.ResourceStorage,
	appv1.Resources_EPHEMERAL_STORAGE: corev1.ResourceEphemeralStorage,
}

// boundedQuantity reports whether it is safe to parse a text as a quantity. The parser takes time
// and memory in proportion to the exponent: "1e-2000000000" would exhaust the memory.
func boundedQuantity(text string) bool {
	const maxBytes, maxExponentDigits = 64, 3
	at := strings.LastIndexAny(text, "eE")
	return len(text) <= maxBytes && (at < 0 || len(strings.TrimLeft(text[at+1:], "+-")) <= maxExponentDigits)
}

// parseQuantity returns false if a text is no quantity that is safe to parse.
func parseQuantity(text string) (resource.Quantity, bool) {
	if !boundedQuantity(text) {
		return resource.Quantity{}, false
	}
	quantity, err := resource.ParseQuantity(text)
	return quantity, err == nil
}
