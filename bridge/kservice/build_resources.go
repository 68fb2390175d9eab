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
		name := resourceName(entry.GetName())
		if name == "" {
			continue
		}
		field := fmt.Sprintf("%s[%d].value", field, i)
		if !boundedQuantity(entry.GetValue()) {
			found.AddValue(field, entry.GetValue(), wantQuantity)
			continue
		}
		quantity, err := resource.ParseQuantity(entry.GetValue())
		switch {
		case err != nil:
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

// resourceName is empty for a resource without counterpart.
func resourceName(name appv1.Resources_ResourceName) corev1.ResourceName {
	switch name {
	case appv1.Resources_CPU:
		return corev1.ResourceCPU
	case appv1.Resources_MEMORY:
		return corev1.ResourceMemory
	case appv1.Resources_STORAGE:
		return corev1.ResourceStorage
	case appv1.Resources_EPHEMERAL_STORAGE:
		return corev1.ResourceEphemeralStorage
	default:
		return ""
	}
}

// boundedQuantity reports whether it is safe to parse a text as a quantity. The parser takes time
// and memory in proportion to the exponent: "1e-2000000000" would exhaust the memory.
func boundedQuantity(text string) bool {
	const maxBytes, maxExponentDigits = 64, 3
	if len(text) > maxBytes {
		return false
	}
	at := strings.LastIndexAny(text, "eE")
	return at < 0 || len(strings.TrimLeft(text[at+1:], "+-")) <= maxExponentDigits
}

// isQuantity reports whether a text is a quantity.
func isQuantity(text string) bool {
	if !boundedQuantity(text) {
		return false
	}
	_, err := resource.ParseQuantity(text)
	return err == nil
}

// holdsQuantities reports whether a field of a pod spec is a map of quantities.
func holdsQuantities(key string) bool {
	return strings.EqualFold(key, "limits") || strings.EqualFold(key, "requests") || strings.EqualFold(key, "overhead")
}

// holdsQuantity reports whether a field of a pod spec is a quantity.
func holdsQuantity(key string) bool {
	return strings.EqualFold(key, "sizeLimit") || strings.EqualFold(key, "divisor")
}
