package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/appbridge/appbridge/bridge/kservice"
	kubeapi "github.com/appbridge/appbridge/bridge/kube"
)

// Pods are the pods of Knative Services in the watched namespaces.
//
// They have informers and a client of their own. controller-runtime waits for the cache of the
// events until it is in sync, even after the cache has ended, and a failed request of its client
// makes the bridge not ready: events depend on that cache. On pods only replicas depend, unless the
// source has pod conditions: then what is wrong with their watches is reported as well.
//
// A pod takes about 3 KB of memory, with two containers and its place in the index. Pods without
// the label are not listed.
type Pods struct {
	informers map[string]*podInformer // by namespace, or one of all namespaces
}

// NewPods makes the informers of the pods in namespaces.
func NewPods(cfg *rest.Config, namespaces []string, src *Source, conn *Connection, log *zap.Logger) (*Pods, error) {
	cfg, err := kubeapi.Bounded(cfg)
	if err != nil {
		return nil, fmt.Errorf("create the Kubernetes client for pods: %w", err)
	}
	cfg = kubeapi.Protobuf(cfg)
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		if src.keeper.PodConditions {
			return transport{Transport{RoundTripper: rt}, conn}
		}
		return Transport{RoundTripper: rt}
	})
	client, err := corev1client.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("create the Kubernetes client for pods: %w", err)
	}
	p := &Pods{informers: map[string]*podInformer{}}
	for _, ns := range namespaces {
		informer, err := newPodInformer(client, ns, src, conn, log)
		if err != nil {
			return nil, err
		}
		p.informers[ns] = informer
	}
	return p, nil
}

// Run returns when ctx is done and the informers have ended.
func (p *Pods) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, i := range p.informers {
		running.Go(func() { i.informer.RunWithContext(ctx) })
	}
	running.Wait()
}

// Of are the pods of one Knative Service.
func (p *Pods) Of(namespace, service string) ([]corev1.Pod, error) {
	i := cmp.Or(p.informers[namespace], p.informers[metav1.NamespaceAll])
	if i == nil {
		return nil, fmt.Errorf("the pods in %s are not known: it is not watched", kubeapi.NamespaceText(namespace))
	}
	if err := i.unknown(); err != nil {
		return nil, err
	}
	objects, err := i.informer.GetIndexer().ByIndex(podsByService, namespace+"/"+service)
	if err != nil {
		return nil, fmt.Errorf("look up the pods of Knative Service %s/%s: %w", namespace, service, err)
	}
	found := make([]corev1.Pod, 0, len(objects))
	for _, object := range objects {
		if pod, ok := object.(*cachedPod); ok {
			found = append(found, corev1.Pod{ObjectMeta: pod.ObjectMeta, Status: pod.status})
		}
	}
	return found, nil
}

const podsByService = "service"

func podService(object any) ([]string, error) {
	pod, ok := object.(*cachedPod)
	if !ok {
		return nil, nil
	}
	return []string{pod.Namespace + "/" + pod.Labels[kservice.LabelService]}, nil
}

// podInformer holds the pods of one namespace, or of all.
type podInformer struct {
	namespace string
	informer  toolscache.SharedIndexInformer
	log       *zap.Logger

	mu          sync.Mutex
	list, watch error // of the last request of its kind; nil when it was answered
}

func newPodInformer(client corev1client.PodsGetter, namespace string, src *Source, conn *Connection, log *zap.Logger) (*podInformer, error) {
	i := &podInformer{namespace: namespace, log: log}
	source := client.Pods(namespace)
	opts := Options{Kind: KindPod, Namespace: namespace, Optional: true}
	restarts := func(_ context.Context, _ *toolscache.Reflector, err error) {
		// Not an error of the bridge. The requests that need pods return it.
		log.Debug("the informer of pods starts again", zap.String("namespace", namespace), zap.Error(err))
	}
	if src.keeper.PodConditions { // it counts as the others do
		opts = src.joining(KindPod, namespace)
		opts.Retried, restarts = conn.retried, conn.restarted
	}
	lw := conn.Watches.Add(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			opts.LabelSelector = kservice.LabelService
			return noted(ctx, i.listed, func() (*corev1.PodList, error) { return source.List(ctx, opts) })
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (apiwatch.Interface, error) {
			opts.LabelSelector = kservice.LabelService
			return noted(ctx, i.watched, func() (apiwatch.Interface, error) { return source.Watch(ctx, opts) })
		},
	}, opts)
	i.informer = toolscache.NewSharedIndexInformer(lw, &corev1.Pod{}, 0, toolscache.Indexers{podsByService: podService})
	var refused error
	if src.keeper.PodConditions {
		_, refused = i.informer.AddEventHandler(src.Pods())
	}
	return i, errors.Join(refused,
		i.informer.SetTransform(func(object any) (any, error) { return trimPod(object, src.keeper.PodConditions), nil }),
		i.informer.SetWatchErrorHandlerWithContext(restarts),
	)
}

// noted makes a request and notes its outcome, unless it was cancelled while it made progress.
func noted[T any](ctx context.Context, note func(error), request func() (T, error)) (T, error) {
	answer, err := request()
	if ctx.Err() == nil || errors.Is(context.Cause(ctx), ErrNoProgress) {
		note(err)
	}
	return answer, err
}

func (i *podInformer) listed(err error) {
	i.note(func() { i.list = err })
}

func (i *podInformer) watched(err error) {
	i.note(func() {
		if i.watch = err; err == nil {
			i.list = nil // a watch begins with a list, or where one ended
		}
	})
}

// note logs once that a right is missing, and once that it is granted again.
func (i *podInformer) note(change func()) {
	i.mu.Lock()
	before := i.denied()
	change()
	now := i.denied()
	i.mu.Unlock()
	switch {
	case now != nil && (before == nil || before.Error() != now.Error()):
		i.log.Warn("the pods of apps are unknown", zap.Error(now))
	case now == nil && before != nil:
		i.log.Info("the pods of apps are known again", zap.String("namespace", i.namespace))
	}
}

// denied is the error for what the API server does not allow this program to do. mu must be locked.
func (i *podInformer) denied() error {
	if kubeapi.ReasonOf(i.list) == kubeapi.Unauthorized || kubeapi.ReasonOf(i.watch) == kubeapi.Unauthorized {
		return &kubeapi.DeniedError{Text: "the credentials of --kubeconfig are not accepted"}
	}
	var verbs []string
	if kubeapi.ReasonOf(i.list) == kubeapi.Forbidden {
		verbs = append(verbs, "list")
	}
	if kubeapi.ReasonOf(i.watch) == kubeapi.Forbidden {
		verbs = append(verbs, "watch")
	}
	where := kubeapi.NamespaceText(i.namespace)
	switch len(verbs) {
	case 0:
		return nil
	case 1:
		return &kubeapi.DeniedError{Text: fmt.Sprintf("the right %s on pods in %s is missing: grant it by RBAC", verbs[0], where)}
	default:
		return &kubeapi.DeniedError{Text: fmt.Sprintf("the rights list and watch on pods in %s are missing: grant them by RBAC", where)}
	}
}

// unknown is the reason why the pods are not known. They stay known, as the apps do, while the API
// server is unavailable, but not after a right was revoked.
func (i *podInformer) unknown() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.denied(); err != nil {
		return err
	}
	if i.informer.HasSynced() {
		return nil
	}
	text := "the pods in " + kubeapi.NamespaceText(i.namespace) + " are not known yet"
	if err := cmp.Or(i.list, i.watch); err != nil {
		return fmt.Errorf("%s: %w", text, err)
	}
	return errors.New(text)
}

// cachedPod is what is kept of a pod: what kservice.Replicas reads, its uid and version, and with pod
// conditions what it says.
type cachedPod struct {
	metav1.ObjectMeta
	status corev1.PodStatus
	state  kservice.PodState
}

// podMeta is the part of a pod's metadata that is kept.
func podMeta(pod *corev1.Pod) metav1.ObjectMeta {
	kept := metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, Labels: map[string]string{},
	}
	for _, key := range []string{kservice.LabelService, kservice.LabelServiceUID, kservice.LabelRevision} {
		if value, ok := pod.Labels[key]; ok {
			kept.Labels[key] = value
		}
	}
	return kept
}

// trimPod is an informer's transform of a pod. It returns any other object, such as a tombstone, as
// it is.
func trimPod(object any, conditions bool) any {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object
	}
	trimmed := &cachedPod{ObjectMeta: podMeta(pod), status: corev1.PodStatus{Phase: pod.Status.Phase, Reason: pod.Status.Reason}}
	if conditions {
		trimmed.state = kservice.PodStateOf(pod)
	}
	for i := range pod.Status.ContainerStatuses {
		from := &pod.Status.ContainerStatuses[i]
		to := corev1.ContainerStatus{Ready: from.Ready}
		if waiting := from.State.Waiting; waiting != nil {
			to.State.Waiting = &corev1.ContainerStateWaiting{Reason: waiting.Reason}
		}
		if terminated := from.State.Terminated; terminated != nil {
			to.State.Terminated = &corev1.ContainerStateTerminated{Reason: terminated.Reason}
		}
		trimmed.status.ContainerStatuses = append(trimmed.status.ContainerStatuses, to)
	}
	return trimmed
}
