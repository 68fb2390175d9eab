package logsvc

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// queueProxy is the container that Knative adds to every pod.
const queueProxy = "queue-proxy"

// podLogs is the log of an app that runs in pods: a LogStream.
type podLogs struct {
	k         *Kubernetes
	q         Query
	org       string
	namespace string
	service   string             // the name of the Knative Service
	uids      map[types.UID]bool // of the Knative Service; more than one when the app is deployed again during a follow
	targets   []podTarget
	opened    time.Time
	lease     *podLease
}

// podTarget is a pod and the container of it that is read.
type podTarget struct {
	pod       *corev1.Pod
	container string
}

var _ LogStream = (*podLogs)(nil)

// Open finds the app, its pods and in them the container. All pods of the app
// count, of whatever Revision and in whatever state, so that one that never gets
// ready can be read too. It takes one slot for each pod, or none and fails
// with CodeResourceExhausted.
func (k *Kubernetes) Open(ctx context.Context, q Query) (LogStream, error) {
	opened := time.Now()
	svc, err := k.findApp(ctx, q.App)
	if err != nil {
		return nil, err
	}
	s := &podLogs{
		k: k, q: q, org: kservice.Org(svc), namespace: svc.Namespace, service: svc.Name, uids: map[types.UID]bool{svc.UID: true},
		opened: opened, lease: k.newLease(q.App.Project),
	}
	pods, err := s.list(ctx, "")
	if err != nil {
		return nil, kubernetesError(ctx, err, right{"list", "pods", s.namespace})
	}
	pods = slices.DeleteFunc(pods, func(pod *corev1.Pod) bool { return !s.owns(pod) })
	if s.targets, err = s.choose(pods); err != nil {
		return nil, err
	}
	if q.Previous {
		if err := s.restarted(); err != nil {
			return nil, err
		}
	}
	if err := s.lease.take(ctx, len(s.targets)); err != nil {
		return nil, err
	}
	return s, nil
}

// selector matches the pods of the app, and those of another one that had the same name.
func (s *podLogs) selector() string {
	return labels.Set{kservice.LabelService: s.service}.String()
}

// owns reports whether a pod that the selector matches is one of the app.
func (s *podLogs) owns(pod *corev1.Pod) bool {
	for uid := range s.uids {
		if kservice.OwnsPod(s.service, uid, pod.Labels) {
			return true
		}
	}
	return false
}

// list lists what the selector matches.
func (s *podLogs) list(ctx context.Context, version string) ([]*corev1.Pod, error) {
	var pods []*corev1.Pod
	err := s.k.call(ctx, s.q.App.Project, func(ctx context.Context) error {
		list, err := s.k.core.Pods(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: s.selector(), ResourceVersion: version})
		if err != nil {
			return err
		}
		for i := range list.Items {
			pods = append(pods, &list.Items[i])
		}
		return nil
	})
	return pods, err
}

// choose picks the pods and their containers that the query names, by name.
func (s *podLogs) choose(pods []*corev1.Pod) ([]podTarget, error) {
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	var targets []podTarget
	var passed *corev1.Pod // the first without the container
	for _, pod := range pods {
		if s.q.Replica != "" && pod.Name != s.q.Replica {
			continue
		}
		container, ok := chooseContainer(pod, s.q.Container)
		if ok {
			targets = append(targets, podTarget{pod, container})
		} else if passed == nil {
			passed = pod
		}
	}
	switch {
	case len(targets) > 0:
		return targets, nil
	case passed != nil:
		return nil, Errorf(subjects.CodeNotFound, "container %q: replica %s has containers %s",
			s.q.Container, passed.Name, strings.Join(containerNames(passed), ", "))
	case s.q.Replica != "":
		// The same text whether there is such a pod or not: it is not the asker's.
		return nil, Errorf(subjects.CodeNotFound, "replica %q: not a replica of app %s", s.q.Replica, s.q.App)
	}
	return nil, nil
}

// chooseContainer is the container of that name, or for no name the first that
// is not Knative's.
func chooseContainer(pod *corev1.Pod, name string) (string, bool) {
	if name != "" {
		return name, slices.Contains(containerNames(pod), name)
	}
	for i := range pod.Spec.Containers {
		if c := pod.Spec.Containers[i].Name; c != queueProxy {
			return c, true
		}
	}
	return queueProxy, len(pod.Spec.Containers) > 0
}

// containerNames are the containers that have a log.
func containerNames(pod *corev1.Pod) []string {
	var names []string
	for i := range pod.Spec.Containers {
		names = append(names, pod.Spec.Containers[i].Name)
	}
	for i := range pod.Spec.InitContainers {
		names = append(names, pod.Spec.InitContainers[i].Name)
	}
	return names
}

// restarted leaves only replicas whose container was started again.
func (s *podLogs) restarted() error {
	var kept []podTarget
	for _, target := range s.targets {
		if stateOf(target.pod, target.pod.UID, target.container).last != "" {
			kept = append(kept, target)
		}
	}
	if len(kept) == 0 && len(s.targets) > 0 {
		first := s.targets[0]
		return Errorf(subjects.CodeFailedPrecondition, "previous: container %s of replica %s has not restarted", first.container, first.pod.Name)
	}
	s.targets = kept
	return nil
}

// Org is the organization of the app.
func (s *podLogs) Org() string { return s.org }

// Replicas are the pods that are read.
func (s *podLogs) Replicas() []string {
	names := make([]string, len(s.targets))
	for i, target := range s.targets {
		names[i] = target.pod.Name
	}
	return names
}

// Close gives back the slots that are still held.
func (s *podLogs) Close() { s.lease.close() }
