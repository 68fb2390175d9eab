package pods

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/appbridge/appbridge/bridge/kube"
	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/subjects"
)

// Run reads all replicas concurrently. A stream that follows also reads the replicas that
// start later.
func (s *appLog) Run(ctx context.Context, out logsvc.Sink) error {
	running, end := s.lease.run(ctx)
	defer end(nil)
	g, ctx := errgroup.WithContext(running)
	run := &streamRun{
		appLog: s, out: out, group: g,
		follow: s.follows(),
		known:  map[types.UID]bool{},
		early:  map[types.UID]bool{},
		active: map[types.UID]*tailer{},
		over:   map[types.UID]string{},
		done:   make(chan *tailer),
		ended:  newEndedReplicas(out),
	}
	for text, names := range s.noted {
		if err := out.Note(ctx, subjects.LogNoteReplica, names, text); err != nil {
			return err
		}
	}
	readers := make([]*tailer, len(s.targets))
	for i, target := range s.targets {
		to := out
		if target.ended() {
			to = run.ended
			run.ended.add(target.pod.Name)
		}
		readers[i] = s.newTailer(target, to, s.isLate(target))
	}
	for _, target := range s.later {
		run.early[target.pod.UID] = !s.isLate(target)
	}
	if len(run.ended.reading) > 0 {
		g.Go(func() error { return run.ended.run(ctx) })
	}
	for _, r := range readers {
		run.start(ctx, r)
	}
	if run.follow {
		g.Go(func() error { return run.manage(ctx) })
	}
	err := g.Wait()
	if err := cmp.Or(context.Cause(running), err); err != nil {
		return err
	}
	// A stream fails if it could read no replica.
	if len(readers) == 0 || slices.ContainsFunc(readers, func(r *tailer) bool { return r.failure == nil }) {
		return nil
	}
	first := readers[0]
	return request.Errorf(subjects.CodeUnavailable, "replica %s cannot be read: %s", first.target.pod.Name, unreadable(first.failure))
}

// isLate reports whether the container had not started yet: all of its log is new.
func (s *appLog) isLate(target podContainer) bool {
	return s.follows() && stateOf(target.pod, target.pod.UID, target.container).current == ""
}

// streamRun is a stream that runs. Once the first tailers are started, only the goroutine of
// manage uses it.
type streamRun struct {
	*appLog
	out    logsvc.Sink
	group  *errgroup.Group
	follow bool

	known   map[types.UID]bool // pods that are or were read, or belong to another app
	early   map[types.UID]bool // pods that had a log when the stream began, and no slot
	active  map[types.UID]*tailer
	over    map[types.UID]string // the names of those that have ended and exist
	done    chan *tailer         // tailers that have ended
	deleted bool                 // the Knative Service does not belong to this app any more
	ended   *endedReplicas
	unseen  outage // in which the pods cannot be listed
	// full and waiting are set when the reader has the note that there are no slots, or no
	// replicas.
	full, waiting bool
}

// start starts a tailer, which holds a slot until it ends.
func (run *streamRun) start(ctx context.Context, r *tailer) {
	run.known[r.target.pod.UID] = true
	run.active[r.target.pod.UID] = r
	run.group.Go(func() error {
		err := r.run(ctx, run.follow)
		run.lease.giveBack()
		run.ended.done(r.target.pod.Name)
		if err != nil || !run.follow {
			return err
		}
		select {
		case run.done <- r:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

// manage starts tailers for new replicas until the stream is finished.
func (run *streamRun) manage(ctx context.Context) error {
	informer, changed := run.newPodInformer()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	run.group.Go(func() error {
		// client-go's own log would have a line for each stream; the error handler logs the same.
		informer.RunWithContext(klog.NewContext(watching, logr.Discard()))
		return nil
	})
	survey := time.Tick(run.src.timing.resync)
	for {
		over, err := run.finished(ctx)
		if over || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case r := <-run.done:
			delete(run.active, r.target.pod.UID)
			if r.gone {
				err = run.sendReplicas(ctx)
			} else {
				run.over[r.target.pod.UID] = r.target.pod.Name
			}
		case <-changed:
			pods := podsOf(informer)
			for _, pod := range pods {
				if r := run.active[pod.UID]; r != nil {
					r.followed.observe(stateOf(pod, pod.UID, r.target.container))
				}
			}
			err = run.attach(ctx, pods)
		case <-survey:
			err = run.resync(ctx)
		}
		if err != nil {
			return err
		}
		for _, r := range run.active {
			select {
			case r.wake <- struct{}{}:
			default:
			}
		}
	}
}

// finished reports whether there is nothing to read or to wait for.
func (run *streamRun) finished(ctx context.Context) (bool, error) {
	if len(run.active) > 0 {
		run.waiting = false
		return false, nil
	}
	if run.deleted || run.q.Replica != "" {
		return true, nil
	}
	if run.q.Follow == logsvc.FollowRunning {
		// A new replica may not have been observed yet. If the list fails, the stream ends
		// without it.
		if len(run.targets) > 0 {
			if pods, err := run.list(ctx); err == nil {
				if err := run.attach(ctx, pods); err != nil {
					return false, err
				}
			}
		}
		return len(run.active) == 0 && !run.full, nil
	}
	if run.waiting || run.full {
		return false, nil
	}
	run.waiting = true
	return false, run.out.Note(ctx, subjects.LogNoteWaiting, nil, fmt.Sprintf("app %s has no replicas (scaled to zero), waiting for one", run.q.App))
}

// resync lists the pods, for changes that the informer has missed.
func (run *streamRun) resync(ctx context.Context) error {
	pods, err := run.list(ctx)
	if err != nil {
		run.src.metrics.failures.Inc()
		return run.noteUnseen(ctx, err)
	}
	run.unseen.end()
	byUID := map[types.UID]*corev1.Pod{}
	for _, pod := range pods {
		byUID[pod.UID] = pod
	}
	for uid, r := range run.active {
		r.followed.recheck(stateOf(byUID[uid], uid, r.target.container))
	}
	for uid := range run.known {
		if byUID[uid] == nil && run.active[uid] == nil {
			delete(run.known, uid)
		}
	}
	before := len(run.over)
	maps.DeleteFunc(run.over, func(uid types.UID, _ string) bool { return byUID[uid] == nil })
	if len(run.over) < before {
		if err := run.sendReplicas(ctx); err != nil {
			return err
		}
	}
	if err := run.attach(ctx, pods); err != nil || len(run.active) > 0 {
		return err
	}
	// The next resync retries after an error.
	if svc, err := run.src.currentApp(ctx, run.namespace, run.service, run.q.App); err == nil && svc == nil {
		return run.endDeleted(ctx)
	}
	return ctx.Err()
}

// noteUnseen sends one note for each time in which new replicas are not found.
func (run *streamRun) noteUnseen(ctx context.Context, err error) error {
	if ctx.Err() != nil || run.q.Replica != "" || run.unseen.failed() <= run.src.timing.unseen || run.unseen.reported {
		return ctx.Err()
	}
	run.unseen.reported = true
	cause := apiError(ctx, err, kube.Right{Verb: "list", Resource: "pods", Namespace: run.namespace})
	return run.out.Note(ctx, subjects.LogNoteWaiting, nil, fmt.Sprintf("new replicas may be missing: %s; trying again", cause))
}

func (run *streamRun) endDeleted(ctx context.Context) error {
	run.deleted = true
	return run.out.Note(ctx, subjects.LogNoteWaiting, nil, fmt.Sprintf("app %s was deleted", run.q.App))
}

func (run *streamRun) attach(ctx context.Context, pods []*corev1.Pod) error {
	if run.q.Replica != "" || run.deleted {
		return nil
	}
	pods = slices.DeleteFunc(pods, func(pod *corev1.Pod) bool { return run.known[pod.UID] })
	if len(pods) == 0 {
		run.full = false
		return nil
	}
	// The name may belong to another app by now, or the app was deleted and deployed again.
	svc, err := run.src.currentApp(ctx, run.namespace, run.service, run.q.App)
	if err != nil {
		run.src.metrics.failures.Inc()
		return ctx.Err() // the next resync retries
	}
	if svc == nil {
		return run.endDeleted(ctx)
	}
	run.uids[svc.UID] = true
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	noted := run.full
	run.full = false
	var started []*tailer
	for _, pod := range pods {
		container, ok := chooseContainer(pod, run.q.Container)
		if !ok || !run.owns(pod) {
			run.known[pod.UID] = true
			continue
		}
		if err := run.lease.take(ctx, 1); err != nil {
			run.full = true
			if !noted {
				err = run.out.Note(ctx, subjects.LogNoteReplica, nil, fmt.Sprintf("replica %s is not read yet: %s", pod.Name, err))
				if err != nil {
					return err
				}
			}
			break
		}
		r := run.newTailer(podContainer{pod, container}, run.out, !run.early[pod.UID])
		run.active[pod.UID] = r
		started = append(started, r)
	}
	if len(started) == 0 {
		return nil
	}
	err = run.sendReplicas(ctx)
	for _, r := range started {
		run.start(ctx, r) // also after an error, so that its slot is released
	}
	return err
}

// sendReplicas sends the names of the replicas that are read, and of those that have ended: their positions
// count until the pods are gone.
func (run *streamRun) sendReplicas(ctx context.Context) error {
	names := slices.Collect(maps.Values(run.over))
	for _, r := range run.active {
		names = append(names, r.target.pod.Name)
	}
	slices.Sort(names)
	return run.out.Replicas(ctx, names)
}

// newPodInformer returns an informer on the pods of one stream. It only makes changes known early:
// decisions are made on consistent reads. changed holds one token after a change.
func (s *appLog) newPodInformer() (informer cache.SharedIndexInformer, changed <-chan struct{}) {
	narrow := func(o *metav1.ListOptions) { o.LabelSelector = s.selector() }
	if s.q.Replica != "" {
		narrow = func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", s.q.Replica).String()
		}
	}
	informer = cache.NewSharedIndexInformer(
		cache.NewFilteredListWatchFromClient(s.src.core.RESTClient(), "pods", s.namespace, narrow), &corev1.Pod{}, 0, nil)
	// None of these fails before the informer runs.
	_ = informer.SetTransform(crcache.TransformStripManagedFields())
	_ = informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		s.src.metrics.failures.Inc()
		s.src.log.Debug("the watch of pods failed", zap.String("namespace", s.namespace), zap.String("service", s.service), zap.Error(err))
	})
	token := make(chan struct{}, 1)
	signal := func() {
		select {
		case token <- struct{}{}:
		default:
		}
	}
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { signal() },
		UpdateFunc: func(any, any) { signal() },
		DeleteFunc: func(any) { signal() },
	})
	return informer, token
}

// podsOf returns the pods in the cache of an informer.
func podsOf(informer cache.SharedIndexInformer) []*corev1.Pod {
	pods, _ := listers.NewPodLister(informer.GetIndexer()).List(labels.Everything()) // never fails
	return pods
}
