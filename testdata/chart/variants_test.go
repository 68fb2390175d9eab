package chart

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// kinds are the objects of each variant, beside one Deployment and one ConfigMap.
var kinds = map[string]map[string]int{
	"default":        {"ServiceAccount": 1, "Role": 3, "RoleBinding": 3, "ClusterRole": 1, "ClusterRoleBinding": 1, "PodDisruptionBudget": 1, "NetworkPolicy": 1},
	"minimal":        {"ServiceAccount": 1, "Role": 1, "RoleBinding": 1, "ClusterRole": 1, "ClusterRoleBinding": 1},
	"namespaces":     {"ServiceAccount": 1, "Role": 7, "RoleBinding": 7, "ClusterRole": 1, "ClusterRoleBinding": 1, "PodDisruptionBudget": 1, "NetworkPolicy": 1},
	"writes":         {"ServiceAccount": 1, "Role": 4, "RoleBinding": 4, "ClusterRole": 1, "ClusterRoleBinding": 1, "PodDisruptionBudget": 1, "NetworkPolicy": 1},
	"all-namespaces": {"ServiceAccount": 1, "Role": 1, "RoleBinding": 1, "ClusterRole": 5, "ClusterRoleBinding": 5, "PodDisruptionBudget": 1, "NetworkPolicy": 1},
	"embedded":       {"ServiceAccount": 1, "Role": 3, "RoleBinding": 3, "ClusterRole": 1, "ClusterRoleBinding": 1, "NetworkPolicy": 1, "Service": 1, "PersistentVolumeClaim": 1},
	"embedded-class": {"ServiceAccount": 1, "Role": 3, "RoleBinding": 3, "ClusterRole": 1, "ClusterRoleBinding": 1, "NetworkPolicy": 1, "Service": 1, "PersistentVolumeClaim": 1},
	"embedded-claim": {"ServiceAccount": 1, "Role": 3, "RoleBinding": 3, "ClusterRole": 1, "ClusterRoleBinding": 1, "NetworkPolicy": 1, "Service": 1},
	"creds":          {"ServiceAccount": 1, "Role": 3, "RoleBinding": 3, "ClusterRole": 1, "ClusterRoleBinding": 1, "PodDisruptionBudget": 1, "NetworkPolicy": 1},
	"nkey":           {"PodDisruptionBudget": 1, "NetworkPolicy": 1},
	"everything":     {"ServiceAccount": 1, "Role": 7, "RoleBinding": 7, "ClusterRole": 1, "ClusterRoleBinding": 1, "PodDisruptionBudget": 1, "NetworkPolicy": 1, "PodMonitor": 1},
}

func wantKinds(t *testing.T, name string) map[string]int {
	t.Helper()
	want, ok := kinds[name]
	if !ok {
		t.Fatalf("the table has no variant %s", name)
	}
	want = maps.Clone(want)
	want["Deployment"], want["ConfigMap"] = 1, 1
	if name == "everything" {
		for file, kind := range map[string]string{"rules.yaml": "PrometheusRule", "dashboard.json": "ConfigMap"} {
			if _, err := os.Stat(filepath.Join(root, chartDir, "files", file)); err == nil {
				want[kind]++
			}
		}
	}
	return want
}

// TestVariants: the API server takes every object of every variant, knows each of its fields and
// warns of none.
func TestVariants(t *testing.T) {
	w := world.Get(t)
	for name, values := range variants(t) {
		t.Run(name, func(t *testing.T) {
			r := render(t, name, values...)
			if got, want := r.kinds(), wantKinds(t, name); !reflect.DeepEqual(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
			createNamespaces(t, w, r)
			for _, args := range [][]string{{"--dry-run=server"}, nil} {
				out := apply(t, w, r.text, args...)
				if strings.Contains(out, "Warning") {
					t.Errorf("kubectl apply %q warns:\n%s", args, out)
				}
				if got, want := strings.Count(out, "serverside-applied"), len(r.objects); got != want {
					t.Errorf("kubectl apply %q: %d objects, want %d:\n%s", args, got, want, out)
				}
			}
		})
	}
}

// TestPods: the API server admits the pods of every variant in a namespace of the strictest pod
// security standard, and limits fit together.
func TestPods(t *testing.T) {
	w := world.Get(t)
	for name, values := range variants(t) {
		t.Run(name, func(t *testing.T) {
			r := render(t, name, values...)
			createNamespaces(t, w, r)
			var deployment appsv1.Deployment
			r.get(t, "Deployment", "", &deployment)
			template := deployment.Spec.Template
			create := func(change func(*corev1.PodSpec)) error {
				pod := &corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
				pod.Namespace, pod.GenerateName = r.namespace, name+"-"
				change(&pod.Spec)
				return w.Client.Create(t.Context(), pod, client.DryRunAll)
			}
			if err := create(func(*corev1.PodSpec) {}); err != nil {
				t.Error(err)
			}
			for want, change := range map[string]func(*corev1.PodSpec){
				"allowPrivilegeEscalation": func(s *corev1.PodSpec) { s.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil },
				"capabilities":             func(s *corev1.PodSpec) { s.Containers[0].SecurityContext.Capabilities = nil },
				"runAsNonRoot":             func(s *corev1.PodSpec) { s.SecurityContext.RunAsNonRoot = nil },
				"seccompProfile":           func(s *corev1.PodSpec) { s.SecurityContext.SeccompProfile = nil },
			} {
				if err := create(change); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("without %s: got %v, want an error that names it", want, err)
				}
			}

			container := template.Spec.Containers[0]
			if readOnly := container.SecurityContext.ReadOnlyRootFilesystem; readOnly == nil || !*readOnly {
				t.Error("the root file system can be written")
			}
			for _, probe := range []*corev1.Probe{container.StartupProbe, container.LivenessProbe, container.ReadinessProbe} {
				if probe == nil || probe.HTTPGet == nil {
					t.Errorf("got probe %v, want one of HTTP", probe)
				}
			}
			limit, memory := container.Resources.Limits.Memory().Value(), int64(0)
			for _, variable := range container.Env {
				if variable.Name == "GOMEMLIMIT" {
					quantity := resource.MustParse(variable.Value)
					memory = quantity.Value()
				}
			}
			if memory > limit*9/10 || memory < limit*8/10 {
				t.Errorf("GOMEMLIMIT is %d of %d bytes, want nine tenths", memory, limit)
			}
			flush, err := time.ParseDuration(r.option(t, "flush-timeout"))
			if err != nil {
				t.Fatal(err)
			}
			if got, least := *template.Spec.TerminationGracePeriodSeconds, int64(flush.Seconds())+5; got < least {
				t.Errorf("a pod gets %d s to end, want %d s at least: flush-timeout is %s", got, least, flush)
			}
		})
	}
}
