package testenv

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What Knative labels a Pod with, besides what it labels a Revision with.
const (
	labelRevision   = "serving.knative.dev/revision"
	labelServiceUID = "serving.knative.dev/serviceUID"
)

// The exit code of a container that was killed.
const exitKilled = 137

// The container that Knative adds to every pod. The app's is another.
const queueProxy = "queue-proxy"

// PodOptions describe a pod. The zero value is a pod without labels in
// [DefaultNamespace], with the containers queue-proxy and app, which run.
type PodOptions struct {
	// Namespace of the pod, which has to be there. Empty: DefaultNamespace.
	Namespace string
	// Name of the pod. Empty: one that begins with the Revision's and "-deployment-".
	Name string
	// Service and Revision are labelled on the pod as Knative does, the Service with the uid that it
	// has then, if there is one. Empty: no label.
	Service, Revision string
	// Labels are merged over these; an empty value removes the key.
	Labels map[string]string
	// Containers by name. Nil: queue-proxy and app, in this order.
	Containers []string
	// NoContainerIDs leaves the ids of containers out of the status, as virtual kubelets do.
	NoContainerIDs bool
	// Log is the form of the log of each container. The zero value is Containerd.
	Log LogForm
	// Waiting leaves the pod pending, its containers still being created;
	// Recover starts them.
	Waiting bool
}

// Pod is a pod on a [Kubelet]: an object of the API server whose containers do
// what the test says. The app's container is the first that is not queue-proxy.
type Pod struct {
	kubelet *Kubelet
	key     types.NamespacedName
	app     *container
	noIDs   bool
	form    LogForm
	dir     string // of its logs

	mu         sync.Mutex
	containers []*container
	finished   corev1.PodPhase // empty: not finished
	evicted    bool
	last       int64         // the latest present time given to a line, in nanoseconds
	changed    chan struct{} // closed and replaced when a reader that waits has to look again
	open       map[*follower]struct{}
	latest     *follower
	admitted   int // requests ever
	requests   []string
	observe    func(RequestEvent) // nil: nobody does
	obstacle
}

// container is a container of a pod through its restarts. The pod guards it.
type container struct {
	name     string
	waiting  string    // the reason, between two instances and before the first; empty: it does not wait
	current  *instance // the latest that was started; nil: none was
	previous *instance
	restarts int32
}

// instance is one run of a container. The pod guards it, but for its id.
type instance struct {
	id                string
	started, finished time.Time
	running           bool
	exit              int32
	form              LogForm
	log               logStore
	pending           []byte // of a line that is not complete, and not in the log
	removed           bool   // the container runtime no longer has it
}

// RunPod creates a pod on the node and returns when the API server has its
// status: running and ready, unless the options say otherwise.
func (k *Kubelet) RunPod(ctx context.Context, opts PodOptions) (*Pod, error) {
	names := opts.Containers
	if names == nil {
		names = []string{queueProxy, "app"}
	}
	no := false
	object := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cmp.Or(opts.Namespace, DefaultNamespace),
			Name:      opts.Name,
			Labels:    map[string]string{},
		},
		Spec: corev1.PodSpec{NodeName: k.name, AutomountServiceAccountToken: &no, EnableServiceLinks: &no},
	}
	if opts.Name == "" {
		object.GenerateName = cmp.Or(opts.Revision, opts.Service, "pod") + "-deployment-"
	}
	if opts.Service != "" {
		object.Labels[labelService] = opts.Service
		object.Labels[labelConfiguration] = opts.Service
		svc := &servingv1.Service{}
		err := k.client.Get(ctx, types.NamespacedName{Namespace: object.Namespace, Name: opts.Service}, svc)
		switch {
		case err == nil:
			object.Labels[labelServiceUID] = string(svc.UID)
		case !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err):
			return nil, fmt.Errorf("read the Knative Service of a pod: %w", err)
		}
	}
	if opts.Revision != "" {
		object.Labels[labelRevision] = opts.Revision
	}
	merge(object.Labels, opts.Labels)
	p := &Pod{kubelet: k, noIDs: opts.NoContainerIDs, form: opts.Log, changed: make(chan struct{}), open: make(map[*follower]struct{})}
	for _, name := range names {
		object.Spec.Containers = append(object.Spec.Containers, corev1.Container{Name: name, Image: name})
		c := &container{name: name, waiting: "ContainerCreating"}
		if p.app == nil && name != queueProxy {
			p.app = c
		}
		p.containers = append(p.containers, c)
	}
	if p.app == nil {
		return nil, errors.New("run a pod: it has no container but " + queueProxy)
	}
	if err := k.client.Create(ctx, object); err != nil {
		return nil, fmt.Errorf("create a pod: %w", err)
	}
	p.key, p.dir = client.ObjectKeyFromObject(object), k.podDir(object)
	if !opts.Waiting {
		p.startWaiting()
	}
	k.mu.Lock()
	k.pods[p.key] = p
	k.mu.Unlock()
	if err := p.writeStatus(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

// Attach serves the logs of a pod on the node that another program runs, without container ids. Its
// containers are those of the spec, and they run. The status stays the other program's, until a
// method of the pod changes it. A second Attach of the same pod returns the first.
func (k *Kubelet) Attach(object *corev1.Pod) (*Pod, error) {
	p := &Pod{
		kubelet: k, key: client.ObjectKeyFromObject(object), dir: k.podDir(object), noIDs: true,
		changed: make(chan struct{}), open: make(map[*follower]struct{}),
	}
	for _, spec := range object.Spec.Containers {
		c := &container{name: spec.Name, waiting: "ContainerCreating"}
		if p.app == nil && spec.Name != queueProxy {
			p.app = c
		}
		p.containers = append(p.containers, c)
	}
	if p.app == nil {
		return nil, fmt.Errorf("attach pod %s: it has no container but %s", p.key, queueProxy)
	}
	k.mu.Lock()
	known := k.pods[p.key]
	if known == nil {
		k.pods[p.key] = p
	}
	k.mu.Unlock()
	if known != nil {
		return known, nil
	}
	p.startWaiting()
	return p, nil
}

// Name is the name of the pod.
func (p *Pod) Name() string { return p.key.Name }

// Namespace is the namespace of the pod.
func (p *Pod) Namespace() string { return p.key.Namespace }

// ContainerID is the id of the app's container as its status has it, that of
// the latest that was started; empty before the first.
func (p *Pod) ContainerID() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.app.id()
}

// Restart ends the app's container, whose follows end when all of it is sent,
// and starts the next one at once.
func (p *Pod) Restart(ctx context.Context) error {
	p.mu.Lock()
	p.end(p.app, 1)
	p.start(p.app)
	p.wake()
	p.mu.Unlock()
	return p.writeStatus(ctx)
}

// Crash ends the app's container and leaves it waiting in CrashLoopBackOff,
// until Recover.
func (p *Pod) Crash(ctx context.Context) error {
	p.mu.Lock()
	p.end(p.app, 1)
	p.app.waiting = "CrashLoopBackOff"
	p.wake()
	p.mu.Unlock()
	return p.writeStatus(ctx)
}

// Recover starts the containers that wait: after Crash, and those of a pod that
// was run with Waiting.
func (p *Pod) Recover(ctx context.Context) error {
	p.startWaiting()
	return p.writeStatus(ctx)
}

// Finish ends all containers for good. The pod stays, in the phase Succeeded or
// Failed, and so do its logs.
func (p *Pod) Finish(ctx context.Context, phase corev1.PodPhase) error {
	var exit int32
	if phase != corev1.PodSucceeded {
		exit = 1
	}
	p.mu.Lock()
	p.finished = phase
	p.endAll(exit)
	p.mu.Unlock()
	return p.writeStatus(ctx)
}

// Evict is what a kubelet does to a pod when its node runs short of something: all containers end, and
// the pod stays, Failed. So do the logs, until [Pod.RemoveContainers] or [Pod.RemoveLog].
func (p *Pod) Evict(ctx context.Context) error {
	p.mu.Lock()
	p.finished, p.evicted = corev1.PodFailed, true
	p.endAll(exitKilled)
	p.mu.Unlock()
	return p.writeStatus(ctx)
}

// RemoveLog removes the current file of the app's log. What the container writes after that is lost,
// until the kubelet rotates the log. Open follows wait for ever.
func (p *Pod) RemoveLog() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.app.current; i != nil {
		p.kubelet.note(i.log.(*diskLog).remove())
	}
}

// RemoveContainers has the container runtime remove the containers that have ended, and their logs, as
// a kubelet wants of a node that is short of disk.
func (p *Pod) RemoveContainers() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.containers {
		for _, i := range []*instance{c.previous, c.current} {
			if i != nil && !i.running {
				i.removed = true
				p.remove(i)
			}
		}
	}
	p.wake()
}

// Terminate marks the pod as being deleted. Its containers run on, until Delete.
func (p *Pod) Terminate(ctx context.Context) error {
	if err := p.kubelet.client.Delete(ctx, p.object()); err != nil {
		return fmt.Errorf("delete pod %s: %w", p.key, err)
	}
	return nil
}

// Delete ends all containers, whose follows end, and deletes the pod at once.
func (p *Pod) Delete(ctx context.Context) error {
	p.mu.Lock()
	p.endAll(0)
	p.mu.Unlock()
	err := p.kubelet.client.Delete(ctx, p.object(), client.GracePeriodSeconds(0))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete pod %s: %w", p.key, err)
	}
	p.kubelet.mu.Lock()
	defer p.kubelet.mu.Unlock()
	if p.kubelet.pods[p.key] == p {
		delete(p.kubelet.pods, p.key)
	}
	return nil
}

// EOF ends the pod's open follows cleanly, with what is sent so far.
func (p *Pod) EOF() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for f := range p.open {
		f.end()
	}
}

// Followers is the number of open requests for the pod's logs, of any kind,
// those that hang included.
func (p *Pod) Followers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.open)
}

// AtEnd is how many follows of the pod's logs on disk have come to the end of the file. Before that
// they do not notice a rotation.
func (p *Pod) AtEnd() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for f := range p.open {
		if f.atEnd.Load() {
			n++
		}
	}
	return n
}

// Sent is how many bytes the latest request for the pod's logs has been sent.
// It stands still while the reader holds the kubelet back. 0: there was none.
func (p *Pod) Sent() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.latest == nil {
		return 0
	}
	return p.latest.sent.Load()
}

// Requests are the requests for the pod's logs so far, the latest last, such as
// "app?follow=true&tailLines=5". Beyond 4096 the oldest are forgotten.
func (p *Pod) Requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.requests...)
}

func (p *Pod) object() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.key.Namespace, Name: p.key.Name}}
}

func (p *Pod) startWaiting() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.containers {
		if c.waiting != "" {
			p.start(c)
		}
	}
	p.wake()
}

func (p *Pod) endAll(exit int32) {
	for _, c := range p.containers {
		p.end(c, exit)
		if c.current != nil {
			c.waiting = ""
		}
	}
	p.wake()
}

// wake has the readers that wait look again. The pod is locked.
func (p *Pod) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// start starts the next instance of a container. The logs of the two latest stay. The pod is locked.
func (p *Pod) start(c *container) {
	if c.current != nil {
		if c.previous != nil {
			p.remove(c.previous)
		}
		c.previous = c.current
		c.restarts++
	}
	id := make([]byte, 32)
	_, _ = rand.Read(id) // never fails
	c.waiting = ""
	c.current = &instance{
		id: p.form.scheme() + hex.EncodeToString(id), started: p.kubelet.now(), running: true, form: p.form,
	}
	if p.form == InMemory {
		c.current.log = newMemoryLog()
		return
	}
	log, err := newDiskLog(p.form, filepath.Join(p.dir, c.name, fmt.Sprintf("%d.log", c.restarts)))
	p.kubelet.note(err)
	c.current.log = log
}

// end ends the instance that runs, if one does. What it wrote of a line becomes the log's end, without
// a line's end. The pod is locked.
func (p *Pod) end(c *container, exit int32) {
	if c.current == nil || !c.current.running {
		return
	}
	i := c.current
	i.running, i.exit, i.finished = false, exit, p.kubelet.now()
	if len(i.pending) > 0 {
		i.log.add(p.present(), true, stdout, i.pending)
		i.pending = nil
	}
	p.kubelet.note(errors.Join(i.log.commit(), i.log.close()))
}

// remove removes the files of an instance. The pod is locked.
func (p *Pod) remove(i *instance) {
	if log, ok := i.log.(*diskLog); ok {
		p.kubelet.note(log.removeAll())
	}
}

func (c *container) id() string {
	if c.current == nil {
		return ""
	}
	return c.current.id
}

// writeStatus writes what the containers do at that time.
func (p *Pod) writeStatus(ctx context.Context) error {
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		object := &corev1.Pod{}
		if err := p.kubelet.client.Get(ctx, p.key, object); err != nil {
			return err
		}
		p.status(&object.Status)
		return p.kubelet.client.Status().Update(ctx, object)
	})
	if err != nil {
		return fmt.Errorf("write the status of pod %s: %w", p.key, err)
	}
	return nil
}

// closeLogs ends all containers, with the kubelet.
func (p *Pod) closeLogs() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endAll(exitKilled)
}
