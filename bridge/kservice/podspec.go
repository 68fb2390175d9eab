package kservice

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// internalVariables are the last ones of the first container, the pattern of endpoints first.
const internalVariables = 3

// podSpec is the payload of an app as Kubernetes has it.
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
		if number > math.MaxUint16 {
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
func (t *Template) addEnv(id subjects.AppID, cfg DeployConfig) {
	if len(t.PodSpec.Containers) == 0 {
		return
	}
	first := &t.PodSpec.Containers[0]
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
func (m *Manifest) DropOverridden(cfg DeployConfig) {
	if len(m.Template.PodSpec.Containers) == 0 {
		return
	}
	first := &m.Template.PodSpec.Containers[0]
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

// Place moves the manifest to where the Knative Service of its app is.
func (m *Manifest) Place(at types.NamespacedName) {
	if containers := m.Template.PodSpec.Containers; at.Namespace != m.Namespace && len(containers) > 0 {
		endpoint := &containers[0].Env[len(containers[0].Env)-internalVariables]
		endpoint.Value = strings.TrimSuffix(endpoint.Value, internalDomain(m.Namespace)) + internalDomain(at.Namespace)
	}
	m.Namespace, m.Name = at.Namespace, at.Name
}
