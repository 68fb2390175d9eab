package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
	"github.com/appbridge/appbridge/testdata/testenv"
)

const (
	sampleInterval   = 250 * time.Millisecond
	progressInterval = 10 * time.Second
	startPatience    = time.Minute
)

// worldOptions say what there is in a world.
type worldOptions struct {
	servers int  // NATS servers
	bridges int  // more than one elect a leader, unless they are rivals
	rivals  bool // all bridges publish
	idle    bool // nobody writes by itself
	lean    bool // nothing is recorded: there is too much of it
	// direct has bridges reach NATS and the API server without proxies.
	direct bool
	memory int64    // limit of a bridge in bytes; 0: none
	args   []string // more arguments of the bridges
	pods   bool     // apps have pods, and events say what keeps these from serving
}

// world is all that runs: the cluster, NATS, the bridges, those who change
// apps, and those who watch.
type world struct {
	cfg   settings
	out   *screen
	dir   string // logs and kubeconfigs
	names subjects.Subjects

	cluster  *testenv.Cluster
	history  *testenv.History
	pods     bool             // the bridges run with --pod-conditions
	podLog   *testenv.History // of the pods; nil without
	nats     *testenv.NATS
	events   *recorder
	watchers []*watcher // once a bridge leads
	bridges  []*bridge
	load     *load
	gaps     *gapLog
	// comparisons are the times after a rollback or a removal until a bridge has compared. They
	// concern only apps that lost events.
	comparisons *gapLog
	plants      *plants
	view        *view
	calm        *quiet
	audits      bool // the bridges can compare while they run
	rivals      bool // they elect no leader

	cancel context.CancelFunc
	spawn  func(func(context.Context)) // in the background, until close
	ending sync.WaitGroup              // of what was spawned

	mu           sync.Mutex
	failures     []string
	faults       int
	planted      map[string]bool // keys put into the bucket
	streamPurged bool            // the stream does not remember what the bucket shows
	rollbacks    []rollback
	mute         []plantedOne // of the scenario mute
	kinds        int
	// Of the scenarios quiet and load.
	steadySeconds, steadyRounds float64
	last                        []string             // of a lean scenario
	losses                      finding              // of all rollbacks and removals
	removed                     []subjects.LostRange // projected events that a hand removed
}

// newWorld starts everything and returns when a bridge leads and the load is on.
func newWorld(ctx context.Context, cfg settings, opts worldOptions, out *screen) (w *world, err error) {
	out.heading("Starting a Kubernetes API server, %s and %s", many(opts.servers, "NATS server"), many(opts.bridges, "bridge"))
	w = &world{cfg: cfg, out: out, planted: map[string]bool{}, rivals: opts.rivals}
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w.cancel = cancel
	w.spawn = func(do func(context.Context)) { w.ending.Go(func() { do(background) }) }
	w.gaps, w.comparisons, w.plants = &gapLog{w: w}, &gapLog{w: w}, &plants{w: w}
	w.audits = hasAudit(ctx, cfg.bin)
	defer func() {
		if err != nil {
			err = errors.Join(w.explain(err), w.close(false))
			w = nil
		}
	}()
	if w.dir, err = os.MkdirTemp("", "appbridge-chaos-"); err != nil {
		return w, err
	}
	if w.names, err = subjects.New(subjects.DefaultPrefix); err != nil {
		return w, err
	}
	if w.cluster, err = testenv.Start(ctx, testenv.Options{}); err != nil {
		return w, err
	}
	w.calm = newQuiet(w.cluster)
	if !opts.lean {
		if w.history, err = w.cluster.History(background, testenv.DefaultNamespace); err != nil {
			return w, err
		}
		if w.pods = opts.pods; w.pods {
			if w.podLog, err = w.cluster.PodHistory(background, testenv.DefaultNamespace); err != nil {
				return w, err
			}
		}
		w.view = newView(w.history, w.podLog)
	}
	if w.nats, err = testenv.StartNATS(ctx, testenv.NATSOptions{Servers: opts.servers, Account: true}); err != nil {
		return w, err
	}
	if !opts.lean {
		if w.events, err = newRecorder(w.nats.URL(), w.names, w.fail); err != nil {
			return w, err
		}
	}
	for _, name := range []string{"A", "B", "C"}[:opts.bridges] {
		b, err := newBridge(w, name, opts)
		if err != nil {
			return w, err
		}
		w.bridges = append(w.bridges, b)
	}
	for _, b := range w.bridges {
		if err := b.start(); err != nil {
			return w, err
		}
	}
	w.spawn(w.sample)
	if err := poll(ctx, startPatience, w.led); err != nil {
		return w, fmt.Errorf("after %s no bridge leads: %w", startPatience, err)
	}
	if !opts.lean {
		w.spawn(w.progress)
	}
	if !opts.lean {
		if err := w.startWatchers(); err != nil {
			return w, err
		}
	}
	w.load = newLoad(w)
	if !opts.idle {
		w.load.start()
	}
	return w, nil
}

// hasAudit reports whether this appbridge can compare while it runs.
func hasAudit(ctx context.Context, bin string) bool {
	output, err := exec.CommandContext(ctx, bin, "serve", "--help").CombinedOutput()
	return err == nil && bytes.Contains(output, []byte("audit-interval"))
}

func many(n int, what string) string {
	if n == 1 {
		return "one " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// commonArgs are what every command of appbridge needs here.
func (w *world) commonArgs(kubeconfig, natsURL string) []string {
	return []string{
		"--kubeconfig", kubeconfig,
		"--cluster-name", clusterName,
		"--base-domain", baseDomain,
		"--nats-url", natsURL,
		"--pod-conditions=" + strconv.FormatBool(w.pods),
	}
}

// fail notes something that must not happen, and says so at once.
func (w *world) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.mu.Lock()
	w.failures = append(w.failures, text)
	w.mu.Unlock()
	w.out.now("FAILURE: %s", text)
}

// explain adds where to look.
func (w *world) explain(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || w.dir == "" {
		return err
	}
	return fmt.Errorf("%w\nlogs are in %s", err, w.dir)
}

// sample keeps an eye on the bridges.
func (w *world) sample(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for _, b := range w.bridges {
		if w.history != nil {
			all.Go(func() { w.follow(ctx, b) })
		}
		all.Go(func() {
			overflows := 0.0
			for testenv.Pause(ctx, sampleInterval) == nil {
				before := b.lastSeen()
				b.look(ctx)
				if now := b.total(metricOverflows); now > overflows {
					overflows = now
					w.out.now("bridge %s dropped its queue at the hard limit", b.name)
					w.gaps.openSince(before.oldest(), "bridge "+b.name+" dropped its queue").heal()
				}
			}
		})
	}
}

// progress says now and then how it goes.
func (w *world) progress(ctx context.Context) {
	for testenv.Pause(ctx, progressInterval) == nil {
		events, _ := w.events.count()
		leader, pending := "nobody", 0.0
		for _, b := range w.bridges {
			s := b.lastSeen()
			pending += s.metrics[metricPending]
			if s.leads() {
				leader = b.name
			}
		}
		w.out.now("%d versions in etcd, %d events, %.0f pending, %s leads", len(w.history.Changes()), events, pending, leader)
	}
}

// led says why no bridge leads and is ready, "" if one does.
func (w *world) led(ctx context.Context) string {
	_, why := w.leading(ctx)
	return why
}

// leading is the one bridge that leads and is ready, of rivals the first one; nil and why there is
// none.
func (w *world) leading(ctx context.Context) (*bridge, string) {
	var leader *bridge
	why := "nobody leads"
	for _, b := range w.bridges {
		s := b.look(ctx)
		switch {
		case !s.answered && b.running() != nil:
			return nil, fmt.Sprintf("bridge %s does not answer", b.name)
		case !s.leads():
		case leader != nil && w.rivals:
		case leader != nil:
			return nil, "two bridges lead"
		case !s.ready:
			leader, why = b, fmt.Sprintf("bridge %s leads and is not ready: %s", b.name, s.why)
		default:
			leader, why = b, ""
		}
	}
	if why != "" {
		return nil, why
	}
	return leader, ""
}

// changes are all versions so far.
func (w *world) changes() []audit.Change {
	seen := w.history.Changes()
	all := make([]audit.Change, len(seen))
	for i, c := range seen {
		all[i] = audit.Change(c)
	}
	return all
}

// podChanges are all versions of pods so far.
func (w *world) podChanges() (all []audit.Change) {
	if w.podLog == nil {
		return nil
	}
	for _, c := range w.podLog.Changes() {
		all = append(all, audit.Change(c))
	}
	return all
}

// close ends everything. Logs stay when the run was not clean.
func (w *world) close(clean bool) error {
	w.cancel()
	if w.load != nil {
		w.load.stop()
	}
	w.ending.Wait()
	var errs []error
	for _, b := range w.bridges {
		errs = append(errs, b.close())
	}
	for _, r := range w.watchers {
		r.close()
	}
	if w.events != nil {
		w.events.close()
	}
	if w.history != nil {
		errs = append(errs, w.history.Stop())
	}
	if w.podLog != nil {
		errs = append(errs, w.podLog.Stop())
	}
	if w.nats != nil {
		errs = append(errs, w.nats.Close())
	}
	if w.cluster != nil {
		errs = append(errs, w.cluster.Stop())
	}
	switch {
	case w.dir == "":
	case clean && !w.cfg.keep:
		errs = append(errs, os.RemoveAll(w.dir))
	default:
		w.out.line("Logs are kept in %s", filepath.Clean(w.dir))
	}
	return errors.Join(errs...)
}
