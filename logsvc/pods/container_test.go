package pods_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

const defaultContainer = "kubectl.kubernetes.io/default-container"

// A sidecar may come first: the default container is the one that the pod names, else the serving
// container of the Revision.
func TestDefaultContainer(t *testing.T) {
	p := newPlace(t)
	k := p.kubernetes()
	http := func(c *corev1.Container) {
		c.Ports = []corev1.ContainerPort{{Name: "http-envoy-prom", ContainerPort: 15090}}
	}
	serves := func(c *corev1.Container) {
		c.Ports = []corev1.ContainerPort{{Name: servingv1.UserPortName, ContainerPort: 8080}}
	}
	for _, tt := range []struct {
		name       string
		containers []corev1.Container
		annotation string
		want       string
	}{
		{"annotation", containers("istio-proxy", http, "app", nil, "queue-proxy", nil), "app", "app"},
		{"serving container", containers("istio-proxy", http, "app", serves, "queue-proxy", nil), "", "app"},
		{"serving container of several", containers("istio-proxy", http, "metrics", nil, "app", serves, "queue-proxy", nil), "", "app"},
		{"annotation before serving container", containers("istio-proxy", http, "app", serves, "side", nil, "queue-proxy", nil), "side", "side"},
		{"annotation without its container", containers("istio-proxy", http, "app", serves, "queue-proxy", nil), "gone", "app"},
		{"neither", containers("queue-proxy", nil, "first", http, "second", nil), "", "first"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := p.newApp(strings.ReplaceAll(tt.name, " ", "-"))
			pod := a.runOf(tt.containers, nil, tt.annotation)
			for _, c := range tt.containers {
				pod.WriteTo(c.Name, "of "+c.Name)
			}
			r := read(t, k, logsvc.Query{App: a.id, Tail: -1, Follow: logsvc.FollowNever})
			r.end()
			r.noNotes(t)
			if got, want := r.of(pod), []string{"of " + tt.want}; !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// A container that `kubectl debug` adds to a pod has a log, too.
func TestEphemeralContainer(t *testing.T) {
	p := newPlace(t)
	k := p.kubernetes()
	a := p.newApp("ephemeral")
	pod := a.runOf(containers("queue-proxy", nil, "app", nil), containers("debugger", nil), "")
	pod.WriteTo("debugger", "of debugger")
	for _, follow := range []logsvc.Follow{logsvc.FollowNever, logsvc.FollowRunning} {
		r := read(t, k, logsvc.Query{App: a.id, Container: "debugger", Tail: -1, Follow: follow})
		r.wait(pod, "of debugger")
		r.cancel()
		_ = r.ended()
		r.noNotes(t)
	}
	_, err := k.Open(t.Context(), logsvc.Query{App: a.id, Container: "nope"})
	refused(t, err, subjects.CodeNotFound, `container "nope": replica `+pod.Name()+` has containers queue-proxy, app, debugger`)
}

// containers takes a name and a change, or nil, for each.
func containers(args ...any) []corev1.Container {
	var all []corev1.Container
	for pair := range slices.Chunk(args, 2) {
		c := corev1.Container{Name: pair[0].(string), Image: "image"}
		if change, ok := pair[1].(func(*corev1.Container)); ok {
			change(&c)
		}
		all = append(all, c)
	}
	return all
}

// runOf starts a replica with these containers, all of which run. annotation is the default
// container that it names, empty for none.
func (a *app) runOf(containers, ephemeral []corev1.Container, annotation string) *testenv.Pod {
	p := a.place
	p.t.Helper()
	check := func(err error) {
		p.t.Helper()
		if err != nil {
			p.t.Fatal(err)
		}
	}
	svc := &servingv1.Service{}
	check(p.Client.Get(p.t.Context(), types.NamespacedName{Namespace: p.namespace, Name: a.service}, svc))
	no := false
	object := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.namespace, Name: a.service + "-00001",
			Labels: map[string]string{"serving.knative.dev/service": a.service, "serving.knative.dev/serviceUID": string(svc.UID)},
		},
		Spec: corev1.PodSpec{NodeName: p.namespace, AutomountServiceAccountToken: &no, Containers: containers},
	}
	if annotation != "" {
		object.Annotations = map[string]string{defaultContainer: annotation}
	}
	check(p.Client.Create(p.t.Context(), object))
	for _, c := range ephemeral {
		object.Spec.EphemeralContainers = append(object.Spec.EphemeralContainers, corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name: c.Name, Image: c.Image, ImagePullPolicy: corev1.PullAlways, TerminationMessagePolicy: corev1.TerminationMessageReadFile,
		}})
	}
	if len(ephemeral) > 0 {
		check(p.Client.SubResource("ephemeralcontainers").Update(p.t.Context(), object))
	}
	running := func(of []corev1.Container) (statuses []corev1.ContainerStatus) {
		for _, c := range of {
			statuses = append(statuses, corev1.ContainerStatus{
				Name: c.Name, Image: c.Image, ContainerID: "containerd://" + c.Name,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
			})
		}
		return statuses
	}
	object.Status.Phase = corev1.PodRunning
	object.Status.ContainerStatuses = running(containers)
	object.Status.EphemeralContainerStatuses = running(ephemeral)
	check(p.Client.Status().Update(p.t.Context(), object))
	// The kubelet has no other kind of containers.
	object.Spec.Containers = slices.Concat(containers, ephemeral)
	pod, err := p.Attach(object)
	check(err)
	return pod
}
