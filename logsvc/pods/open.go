package pods

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/kube"
	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/subjects"
)

const (
	// queueProxy is the container that Knative adds to every pod.
	queueProxy = "queue-proxy"
	// userPort is the name that Knative gives the port of a Revision's serving container in each of
	// its pods.
	userPort = "user-port"
	// defaultContainer is the annotation of a pod that names its default container for `kubectl`.
	// Knative sets it, too: to the serving container.
	defaultContainer = "kubectl.kubernetes.io/default-container"
)

// appLog is the log of an app: a logsvc.LogStream.
type appLog struct {
	src       *Source
	q         logsvc.Query
	org       string
	namespace string
	service   string // the name of the Knative Service
	// uids of the Knative Service: more than one when the app is deployed again during a follow.
	uids    map[types.UID]bool
	targets []podContainer
	later   []podContainer // that have no slot
	// noted are the names of the pods that are not targets, by the text of their note.
	noted  map[string][]string
	places map[string]logPlace // those of the query's positions, by replica
	opened time.Time
	lease  *lease
}

// podContainer is a container whose log is read.
type podContainer struct {
	pod       *corev1.Pod
	container string
}

// Open finds the app, its pods and their containers. It includes all pods of the app, of any
// Revision and in any state, so that a pod that never gets ready can be read too. It takes one
// slot for each pod that has a log, as far as there are any. If there is none, it fails with
// CodeResourceExhausted.
func (src *Source) Open(ctx context.Context, q logsvc.Query) (logsvc.LogStream, error) {
	opened := time.Now()
	places, err := placesOf(q.Resume)
	if err != nil {
		return nil, err
	}
	svc, err := src.findApp(ctx, q.App)
	if err != nil {
		return nil, err
	}
	s := &appLog{
		src: src, q: q, org: kservice.Org(svc), namespace: svc.Namespace, service: svc.Name, uids: map[types.UID]bool{svc.UID: true}, noted: map[string][]string{}, places: places,
		opened: opened, lease: &lease{slots: src.slots, project: q.App.Project},
	}
	pods, err := s.list(ctx)
	if err != nil {
		return nil, apiError(ctx, err, kube.Right{Verb: "list", Resource: "pods", Namespace: s.namespace})
	}
	pods = slices.DeleteFunc(pods, func(pod *corev1.Pod) bool { return !s.owns(pod) })
	if s.targets, err = s.choose(pods); err != nil {
		return nil, err
	}
	s.noteMissing(pods)
	if q.Previous {
		if err := s.restarted(); err != nil {
			return nil, err
		}
	}
	s.withoutLog()
	if err := s.takeSlots(ctx); err != nil {
		s.lease.close()
		return nil, err
	}
	return s, nil
}

// follows reports whether the query reads lines that are written later.
func (s *appLog) follows() bool { return s.q.Follow != logsvc.FollowNever && !s.q.Previous }

// withoutLog removes the targets that have no log and, as far as the query waits, will have none.
func (s *appLog) withoutLog() {
	s.targets = slices.DeleteFunc(s.targets, func(target podContainer) bool {
		state := stateOf(target.pod, target.pod.UID, target.container)
		if state.instance(s.q.Previous) != "" || s.follows() && !state.over {
			return false
		}
		text := "container " + target.container + " has not started"
		if reason := cmp.Or(state.waiting, target.pod.Status.Reason); reason != "" {
			text += " (" + reason + ")"
		}
		s.noted[text] = append(s.noted[text], target.pod.Name)
		return true
	})
}

// takeSlots takes a slot for each target. Where they are not enough, the newest Revision is read first, and
// of each the ready replicas; those that have ended are last. A query to resume needs one for each replica
// that it has: else the reader would not get its next position.
func (s *appLog) takeSlots(ctx context.Context) error {
	resumed := func(target podContainer) bool {
		_, known := s.q.Resume[target.pod.Name]
		return known
	}
	slices.SortStableFunc(s.targets, func(a, b podContainer) int {
		if resumed(a) != resumed(b) {
			if resumed(a) {
				return -1
			}
			return 1
		}
		return slices.Compare(a.rank(), b.rank())
	})
	for i, target := range s.targets {
		err := s.lease.take(ctx, 1)
		switch {
		case err != nil && (i == 0 || resumed(target)):
			return err
		case err != nil:
			const text = "not read: no Kubernetes log stream is free for it (max-pod-streams)"
			for _, target := range s.targets[i:] {
				s.noted[text] = append(s.noted[text], target.pod.Name)
			}
			s.targets, s.later = s.targets[:i], s.targets[i:]
			return nil
		}
	}
	return nil
}

// ended reports whether no container of the pod will run again.
func (c podContainer) ended() bool {
	return c.pod.Status.Phase == corev1.PodFailed || c.pod.Status.Phase == corev1.PodSucceeded
}

// rank orders the pods for which there may be no slot: the lowest is read first.
func (c podContainer) rank() []int {
	generation, _ := strconv.Atoi(c.pod.Labels[kservice.LabelGeneration]) // 0 without
	ended, unready := 0, 1
	if c.ended() {
		ended = 1
	}
	for _, condition := range c.pod.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
			unready = 0
		}
	}
	return []int{ended, -generation, unready}
}

// selector matches the pods of the app, and those of a former app with the same name.
func (s *appLog) selector() string {
	return labels.Set{kservice.LabelService: s.service}.String()
}

func (s *appLog) owns(pod *corev1.Pod) bool {
	for uid := range s.uids {
		if kservice.OwnsPod(s.service, uid, pod.Labels) {
			return true
		}
	}
	return false
}

func (s *appLog) list(ctx context.Context) ([]*corev1.Pod, error) {
	var pods []*corev1.Pod
	err := s.src.call(ctx, s.q.App.Project, func(ctx context.Context) error {
		list, err := s.src.core.Pods(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: s.selector()})
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

// choose returns the containers that the query names, sorted by pod.
func (s *appLog) choose(pods []*corev1.Pod) ([]podContainer, error) {
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	var targets []podContainer
	var skipped *corev1.Pod // the first without the container
	for _, pod := range pods {
		if s.q.Replica != "" && pod.Name != s.q.Replica {
			continue
		}
		container, ok := chooseContainer(pod, s.q.Container)
		if ok {
			targets = append(targets, podContainer{pod, container})
		} else if skipped == nil {
			skipped = pod
		}
	}
	switch {
	case len(targets) > 0:
		return targets, nil
	case skipped != nil:
		return nil, request.Errorf(subjects.CodeNotFound, "container %q: replica %s has containers %s",
			s.q.Container, skipped.Name, strings.Join(containerNames(skipped), ", "))
	case s.q.Replica != "":
		// The text does not depend on whether another app has such a pod.
		return nil, request.Errorf(subjects.CodeNotFound, "replica %q: not a replica of app %s", s.q.Replica, s.q.App)
	}
	return nil, nil
}

// chooseContainer returns the container with that name. Without a name it is the one that the pod
// names, else the serving container of the Revision, else the first that is not Knative's.
func chooseContainer(pod *corev1.Pod, name string) (string, bool) {
	names := containerNames(pod)
	if name != "" {
		return name, slices.Contains(names, name)
	}
	if name = pod.Annotations[defaultContainer]; slices.Contains(names, name) {
		return name, true
	}
	containers := pod.Spec.Containers
	if i := slices.IndexFunc(containers, serves); i >= 0 {
		return containers[i].Name, true
	}
	if i := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name != queueProxy }); i >= 0 {
		return containers[i].Name, true
	}
	return queueProxy, len(containers) > 0
}

// serves reports whether a container is the serving container of its Revision: the only one, or the
// one of several that has a port.
func serves(c corev1.Container) bool {
	return slices.ContainsFunc(c.Ports, func(port corev1.ContainerPort) bool { return port.Name == userPort })
}

// containerNames returns the names of all containers, those of init and ephemeral ones last.
func containerNames(pod *corev1.Pod) []string {
	var names []string
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		names = append(names, c.Name)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		names = append(names, c.Name)
	}
	return names
}

// restarted removes the replicas whose container has not restarted.
func (s *appLog) restarted() error {
	kept := slices.DeleteFunc(slices.Clone(s.targets), func(target podContainer) bool {
		return stateOf(target.pod, target.pod.UID, target.container).last == ""
	})
	if len(kept) == 0 && len(s.targets) > 0 {
		first := s.targets[0]
		return request.Errorf(subjects.CodeFailedPrecondition, "previous: container %s of replica %s has not restarted", first.container, first.pod.Name)
	}
	s.targets = kept
	return nil
}

// Org returns the organization of the app.
func (s *appLog) Org() string { return s.org }

// Replicas returns the names of the pods that are read.
func (s *appLog) Replicas() []string {
	names := make([]string, len(s.targets))
	for i, target := range s.targets {
		names[i] = target.pod.Name
	}
	slices.Sort(names)
	return names
}

// Close releases the slots that are still held.
func (s *appLog) Close() { s.lease.close() }
