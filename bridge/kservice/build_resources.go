package kservice

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/appbridge/appbridge/subjects/appv1"
)

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
