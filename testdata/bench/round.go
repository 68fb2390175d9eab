package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/appbridge/appbridge/testdata/testenv/network"
)

// variant is a program that is measured, with what it needs.
type variant string

const (
	variantPlain    variant = "plain"    // an informer of controller-runtime
	variantExternal variant = "external" // appbridge and nats-server
	variantEmbedded variant = "embedded" // appbridge with its own server
	variantBare     variant = "bare"     // as external, and no app has a Revision
	variantBase     variant = "base"     // as external, with the binary of --base
	variantLimit    variant = "limit"    // a client that publishes what external published
)

var allVariants = []variant{variantPlain, variantExternal, variantEmbedded, variantBare, variantBase, variantLimit}

// The figures, with their units for benchstat.
const (
	figureRate      = "updates/s"
	figureCPU       = "cpu-ns/update"
	figureNATS      = "nats-ns/update"
	figureFirst     = "first-start-s"
	figureStart     = "start-s"
	figurePeak      = "peak-bytes"
	figureResident  = "resident-bytes/app"
	figureHeap      = "heap-bytes/app"
	figureMedian    = "p50-ns"
	figureTail      = "p99-ns"
	figureEvents    = "limit-events/s"
	figureEntries   = "limit-entries/s"
	figureFenced    = "limit-fenced/s"
	figureLimitNATS = "limit-nats-ns/update"
)

// figures are what was measured of a variant in one round.
type figures map[string]float64

// round is one variant of a round: processes with a folder of their own.
type round struct {
	cfg       settings
	apps      int
	dir       string
	self      string // this program
	messages  string // file with messages of a bridge
	running   []*process
	stub, web string // addresses
	nats      string
}

// measure measures one variant and ends all its processes.
func measure(ctx context.Context, cfg settings, v variant, apps int, messages string) (found figures, err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Minute)
	defer cancel()
	r := &round{cfg: cfg, apps: apps, messages: messages}
	if r.dir, err = os.MkdirTemp("", "bench-"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.dir)) }()
	defer func() {
		for _, p := range slices.Backward(r.running) {
			p.stop()
		}
	}()
	for _, address := range []*string{&r.stub, &r.web, &r.nats} {
		if *address, err = network.FreeAddress(""); err != nil {
			return nil, err
		}
	}
	if r.self, err = os.Executable(); err != nil {
		return nil, err
	}
	if v == variantLimit {
		return r.limits(ctx)
	}
	stub, err := r.start("stub", r.self, roleStub, "--listen", r.stub, "--apps", strconv.Itoa(apps), "--revisions="+strconv.FormatBool(v != variantBare))
	if err != nil {
		return nil, err
	}
	if err := stub.until(ctx, 5*time.Millisecond, func() bool { return answers(ctx, "http://"+r.stub+"/api/v1/namespaces/kube-system") }); err != nil {
		return nil, err
	}
	if v == variantPlain {
		return r.plain(ctx)
	}
	return r.bridge(ctx, v)
}

func answers(ctx context.Context, url string) bool {
	_, err := get(ctx, url)
	return err == nil
}

func (r *round) start(name, path string, args ...string) (*process, error) {
	p, err := start(name, filepath.Join(r.dir, name+".log"), path, args...)
	if err == nil {
		r.running = append(r.running, p)
	}
	return p, err
}

// startNATS starts a nats-server with an empty store.
func (r *round) startNATS(ctx context.Context) (*process, error) {
	host, port, _ := strings.Cut(r.nats, ":")
	server, err := r.start("nats-server", r.cfg.nats, "--addr", host, "--port", port, "--jetstream", "--store_dir", filepath.Join(r.dir, "nats"))
	if err != nil {
		return nil, err
	}
	return server, server.until(ctx, 5*time.Millisecond, func() bool {
		js, err := connect(r.nats)
		if err == nil {
			_, err = js.AccountInfo(ctx)
			js.Conn().Close()
		}
		return err == nil
	})
}

// plain measures the informer. Its first start is like any other.
func (r *round) plain(ctx context.Context) (figures, error) {
	p, err := r.start("plain", r.self, rolePlain, "--listen", r.web, "--target", "http://"+r.stub)
	if err != nil {
		return nil, err
	}
	ready, err := p.untilReady(ctx, r.web)
	if err != nil {
		return nil, err
	}
	found := figures{figureFirst: ready.Seconds(), figureStart: ready.Seconds()}
	if err := r.rested(ctx, p, found, true); err != nil {
		return nil, err
	}
	counted := func() bool {
		text, err := get(ctx, "http://"+r.web+"/count")
		return err == nil && string(text) == strconv.Itoa(r.cfg.updates)
	}
	return found, r.update(ctx, found, map[string]*process{figureCPU: p}, func() error { return p.until(ctx, 10*time.Millisecond, counted) }, nil)
}

// bridge measures appbridge: two starts, at rest, with updates, and the latency.
func (r *round) bridge(ctx context.Context, v variant) (figures, error) {
	bin := r.cfg.bin
	if v == variantBase {
		bin = r.cfg.base
	}
	costs := map[string]*process{}
	args, err := r.bridgeArgs(ctx, bin)
	if err != nil {
		return nil, err
	}
	if v == variantEmbedded {
		args = append(args, "--nats-embedded", "--nats-embedded-listen", r.nats, "--nats-embedded-dir", filepath.Join(r.dir, "nats"))
	} else {
		args = append(args, "--nats-url", "nats://"+r.nats)
		if costs[figureNATS], err = r.startNATS(ctx); err != nil {
			return nil, err
		}
	}
	found := figures{}
	var p *process
	for _, figure := range []string{figureFirst, figureStart} {
		if p != nil {
			p.stop()
		}
		if p, err = r.start("appbridge", bin, args...); err != nil {
			return nil, err
		}
		ready, err := p.untilReady(ctx, r.web)
		if err != nil {
			return nil, err
		}
		found[figure] = ready.Seconds()
		_, peak, err := p.memory()
		if err != nil {
			return nil, err
		}
		found[figurePeak] = max(found[figurePeak], peak)
	}
	costs[figureCPU] = p
	if err := r.rested(ctx, p, found, slices.Contains(args, "--pprof")); err != nil || v == variantBare {
		return found, err
	}
	s, err := openStreams(ctx, r.nats)
	if err != nil {
		return nil, err
	}
	defer s.close()
	target := s.last + uint64(r.cfg.updates)
	err = r.update(ctx, found, costs,
		func() error { return p.until(ctx, 20*time.Millisecond, func() bool { return s.reached(ctx, target) }) },
		func() error {
			return p.until(ctx, 20*time.Millisecond, func() bool { return s.projected(ctx, target) })
		})
	if err != nil {
		return nil, fmt.Errorf("%d events of %d: %w", r.cfg.updates-int(target-s.last), r.cfg.updates, err)
	}
	if v == variantExternal {
		if err := s.save(ctx, r.messages); err != nil {
			return nil, err
		}
	}
	return found, r.latency(ctx, s, found)
}

// bridgeArgs are the arguments of every appbridge. An older one has no profiles.
func (r *round) bridgeArgs(ctx context.Context, bin string) ([]string, error) {
	kubeconfig := filepath.Join(r.dir, "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: stub
clusters: [{name: stub, cluster: {server: "http://%s"}}]
users: [{name: stub}]
contexts: [{name: stub, context: {cluster: stub, user: stub}}]
`, r.stub)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		return nil, err
	}
	help, err := exec.CommandContext(ctx, bin, "serve", "--help").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s serve --help: %w; build it with `make build`", bin, err)
	}
	args := []string{"serve", "--kubeconfig", kubeconfig, "--cluster-name", "bench", "--base-domain", "apps.example.com", "--http-listen", r.web, "--log-format", "json"}
	if strings.Contains(string(help), "--pprof") {
		args = append(args, "--pprof")
	}
	return args, nil
}

// rested reads memory after a collection and a while without work.
func (r *round) rested(ctx context.Context, p *process, found figures, profiles bool) error {
	peak := 0.0
	var err error
	if profiles {
		// The peak is read first: a profile takes memory as well.
		if _, peak, err = p.memory(); err != nil {
			return err
		}
		heap, err := liveHeap(ctx, r.web)
		if err != nil {
			return err
		}
		found[figureHeap] = heap / float64(r.apps)
	}
	found[figurePeak] = max(found[figurePeak], peak)
	select {
	case <-time.After(r.cfg.rest):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	resident, _, err := p.memory()
	found[figureResident] = resident / float64(r.apps)
	return err
}

// update has the stub change Services, and measures the time until they have arrived, and what all
// of it costs until the rest is done too.
func (r *round) update(ctx context.Context, found figures, costs map[string]*process, arrived, rest func() error) error {
	before := map[string]time.Duration{}
	var err error
	for figure, p := range costs {
		if before[figure], err = p.processorTime(); err != nil {
			return err
		}
	}
	began := time.Now()
	if err := r.change(ctx, r.cfg.updates, 0); err != nil {
		return err
	}
	if err := arrived(); err != nil {
		return err
	}
	found[figureRate] = float64(r.cfg.updates) / time.Since(began).Seconds()
	if rest != nil {
		if err := rest(); err != nil {
			return err
		}
	}
	for figure, p := range costs {
		used, err := p.processorTime()
		if err != nil {
			return err
		}
		found[figure] = float64(used-before[figure]) / float64(r.cfg.updates)
	}
	return nil
}

// change has the stub change Services, and returns when it has.
func (r *round) change(ctx context.Context, count, rate int) error {
	_, err := request(ctx, "POST", fmt.Sprintf("http://%s/bench/changes?count=%d&rate=%d", r.stub, count, rate))
	return err
}

// limits measures the three limits, each with a server of its own.
func (r *round) limits(ctx context.Context) (figures, error) {
	found := figures{}
	for kind, figure := range map[string]string{limitEvents: figureEvents, limitEntries: figureEntries, limitFenced: figureFenced} {
		server, err := r.startNATS(ctx)
		if err != nil {
			return nil, err
		}
		before, err := server.processorTime()
		if err != nil {
			return nil, err
		}
		cmd := exec.CommandContext(ctx, r.self, roleLimit, "--target", "nats://"+r.nats, "--kind", kind, "--messages", r.messages,
			"--apps", strconv.Itoa(r.apps), "--count", strconv.Itoa(r.cfg.updates))
		cmd.Stderr, cmd.SysProcAttr = os.Stderr, child()
		seconds, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("limit %s: %w", kind, err)
		}
		after, err := server.processorTime()
		if err != nil {
			return nil, err
		}
		found[figure] = float64(r.cfg.updates) / numberAfter(seconds, "")
		if kind == limitFenced {
			found[figureLimitNATS] = float64(after-before) / float64(r.cfg.updates)
		}
		server.stop()
		if err := os.RemoveAll(filepath.Join(r.dir, "nats")); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// note prints what a variant has shown.
func (f figures) note(w io.Writer, v variant, apps, round int) {
	fmt.Fprintf(w, "# %d apps, round %d, %s:", apps, round, v)
	for _, unit := range f.units() {
		fmt.Fprintf(w, "  %.4g %s", f[unit], unit)
	}
	fmt.Fprintln(w)
}
