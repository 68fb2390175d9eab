package logsvc

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
)

// Run reads all replicas at once, and in a stream that follows looks after those
// that come and go.
func (s *podLogs) Run(ctx context.Context, out Sink) error {
	running, end := s.lease.run(ctx)
	defer end(nil)
	g, ctx := errgroup.WithContext(running)
	run := &podRun{
		podLogs: s, out: out, group: g,
		follow: s.q.Follow != FollowNever && !s.q.Previous,
		known:  map[types.UID]bool{},
		active: map[types.UID]*podReader{},
		done:   make(chan *podReader),
	}
	readers := make([]*podReader, len(s.targets))
	for i, target := range s.targets {
		// All that a container writes that had not started when the stream was opened is new.
		late := run.follow && stateOf(target.pod, target.pod.UID, target.container).current == ""
		readers[i] = s.newPodReader(target, out, late)
		run.start(ctx, readers[i])
	}
	if run.follow {
		g.Go(func() error { return run.attend(ctx) })
	}
	err := g.Wait()
	if cause := context.Cause(running); cause != nil {
		return cause
	}
	if err != nil {
		return err
	}
	return s.unread(readers)
}

// unread is the error of a stream that could read nothing of any replica.
func (s *podLogs) unread(readers []*podReader) error {
	if len(readers) == 0 || slices.ContainsFunc(readers, func(r *podReader) bool { return r.unread == nil }) {
		return nil
	}
	first := readers[0]
	return Errorf(subjects.CodeUnavailable, "replica %s cannot be read: %s", first.target.pod.Name, request.PlainText(first.unread))
}

// podRun is a stream at work. Its own goroutine, that of attend, has it for itself
// once the first readers are started.
type podRun struct {
	*podLogs
	out    Sink
	group  *errgroup.Group
	follow bool

	known  map[types.UID]bool // pods that are or were read, or never will be, such as another app's
	active map[types.UID]*podReader
	done   chan *podReader // readers that have ended
	// lost: the Knative Service is not this app's any more.
	lost bool
	// What was told already.
	full, waiting bool
}

// start starts a reader, which holds a slot until it ends.
func (run *podRun) start(ctx context.Context, r *podReader) {
	run.known[r.target.pod.UID] = true
	run.active[r.target.pod.UID] = r
	run.group.Go(func() error {
		err := r.run(ctx, run.follow)
		run.lease.give()
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

// attend looks after the replicas until there is nothing to wait for any more.
func (run *podRun) attend(ctx context.Context) error {
	watch := run.watchPods()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	run.group.Go(func() error {
		watch.run(watching)
		return nil
	})
	survey := time.NewTicker(run.k.pace.survey)
	defer survey.Stop()
	for {
		over, err := run.over(ctx)
		if over || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case r := <-run.done:
			delete(run.active, r.target.pod.UID)
			err = run.tellReplicas(ctx)
		case <-watch.changed:
			pods := watch.pods()
			for _, pod := range pods {
				if r := run.active[pod.UID]; r != nil {
					r.followed.hear(stateOf(pod, pod.UID, r.target.container))
				}
			}
			err = run.attach(ctx, pods)
		case <-survey.C:
			err = run.survey(ctx)
		}
		if err != nil {
			return err
		}
		run.wake()
	}
}

// over tells whether the stream has nothing to wait for.
func (run *podRun) over(ctx context.Context) (bool, error) {
	if len(run.active) > 0 {
		run.waiting = false
		return false, nil
	}
	if run.lost || run.q.Replica != "" {
		return true, nil
	}
	if run.q.Follow == FollowRunning {
		// A replica may have come that was not noticed yet. If Kubernetes does
		// not answer, what is known has to do.
		if len(run.targets) > 0 {
			if pods, err := run.list(ctx, ""); err == nil {
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
	return false, run.tell(ctx, subjects.LogNoteWaiting, fmt.Sprintf("app %s has no replicas (scaled to zero), waiting for one", run.q.App))
}

// survey looks at what the watch may have missed.
func (run *podRun) survey(ctx context.Context) error {
	pods, err := run.list(ctx, "")
	if err != nil {
		run.k.metrics.failures.Inc()
		return ctx.Err()
	}
	byUID := map[types.UID]*corev1.Pod{}
	for _, pod := range pods {
		byUID[pod.UID] = pod
	}
	for uid, r := range run.active {
		r.followed.judge(stateOf(byUID[uid], uid, r.target.container))
	}
	for uid := range run.known {
		if byUID[uid] == nil && run.active[uid] == nil {
			delete(run.known, uid)
		}
	}
	if err := run.attach(ctx, pods); err != nil || len(run.active) > 0 {
		return err
	}
	// Errors are for the next time.
	if svc, err := run.k.currentApp(ctx, run.namespace, run.service, run.q.App); err == nil && svc == nil {
		return run.lose(ctx)
	}
	return ctx.Err()
}

func (run *podRun) lose(ctx context.Context) error {
	run.lost = true
	return run.tell(ctx, subjects.LogNoteWaiting, fmt.Sprintf("app %s was deleted", run.q.App))
}

// attach starts to read pods that were not there before.
func (run *podRun) attach(ctx context.Context, pods []*corev1.Pod) error {
	if run.q.Replica != "" || run.lost {
		return nil
	}
	pods = slices.DeleteFunc(pods, func(pod *corev1.Pod) bool { return run.known[pod.UID] })
	if len(pods) == 0 {
		run.full = false
		return nil
	}
	// By now the name may be another app's, or the app may have been deleted and deployed again.
	svc, err := run.k.currentApp(ctx, run.namespace, run.service, run.q.App)
	if err != nil {
		run.k.metrics.failures.Inc()
		return ctx.Err() // the next survey comes back to it
	}
	if svc == nil {
		return run.lose(ctx)
	}
	run.uids[svc.UID] = true
	var targets []podTarget
	for _, pod := range pods {
		container, ok := chooseContainer(pod, run.q.Container)
		if !ok || !run.owns(pod) {
			run.known[pod.UID] = true
			continue
		}
		targets = append(targets, podTarget{pod, container})
	}
	run.full = run.full && len(targets) > 0
	slices.SortFunc(targets, func(a, b podTarget) int { return cmp.Compare(a.pod.Name, b.pod.Name) })
	var started []*podReader
	for _, target := range targets {
		if err := run.lease.take(ctx, 1); err != nil {
			if !run.full {
				run.full = true
				if err := run.tell(ctx, subjects.LogNoteReplica, fmt.Sprintf("replica %s is not read yet: %s", target.pod.Name, err)); err != nil {
					return err
				}
			}
			break
		}
		run.full = run.full && len(started)+1 < len(targets)
		r := run.newPodReader(target, run.out, true)
		run.active[target.pod.UID] = r
		started = append(started, r)
	}
	if len(started) == 0 {
		return nil
	}
	err = run.tellReplicas(ctx)
	for _, r := range started {
		run.start(ctx, r) // also after an error, so that its slot comes back
	}
	return err
}

func (run *podRun) tellReplicas(ctx context.Context) error {
	names := make([]string, 0, len(run.active))
	for _, r := range run.active {
		names = append(names, r.target.pod.Name)
	}
	slices.Sort(names)
	return run.out.Replicas(ctx, names)
}

func (run *podRun) tell(ctx context.Context, note subjects.LogNote, text string) error {
	return run.out.Note(ctx, note, "", text)
}

// wake has the readers that wait look at their pods.
func (run *podRun) wake() {
	for _, r := range run.active {
		select {
		case r.kick <- struct{}{}:
		default:
		}
	}
}
