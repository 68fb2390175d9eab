package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/network"
)

const (
	clusterName = "chaos"
	baseDomain  = "apps.example.com"

	// A bridge that is asked to stop flushes for ten seconds at most.
	stopTimeout = 30 * time.Second
)

// bridge is one `appbridge serve`, started again whenever it ended, with links
// of its own to each NATS server and to the API server.
type bridge struct {
	name string
	w    *world
	nats []*network.Proxy  // by server
	api  *network.Proxy    // cuts and hangs the way to mute
	mute *testenv.APIProxy // before the API server
	// plugin has the credentials for the API server; nil: the kubeconfig has them.
	plugin *plugin
	http   string
	log    string
	args   []string
	// memory limits the process in bytes; 0: no limit.
	memory int64

	watching sync.WaitGroup // for the end of processes

	mu       sync.Mutex
	process  *process // nil while it is down
	expected *process // its end is the harness' doing
	closed   bool     // it is not started again
	last     status
	totals   map[string]float64 // counters of the processes before
}

// process is one run of a bridge.
type process struct {
	*testenv.Process
	noted chan struct{} // closed when its bridge knows that it has ended
	log   int64         // where in the bridge's log its own begins
}

func newBridge(w *world, name string, opts worldOptions) (*bridge, error) {
	b := &bridge{name: name, w: w, memory: opts.memory, log: filepath.Join(w.dir, "appbridge-"+name+".log"), totals: map[string]float64{}}
	kubeconfig := filepath.Join(w.dir, "kubeconfig-"+name)
	urls, err := b.connect(kubeconfig, opts.direct)
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	if b.http, err = network.FreeAddress(""); err != nil {
		return nil, errors.Join(err, b.close())
	}
	b.args = append(
		[]string{
			"serve",
			"--http-listen", b.http,
			"--stream-replicas", strconv.Itoa(w.nats.Size()),
			"--pending-bytes", fmt.Sprintf("%dMi", w.cfg.pending),
			"--log-format", "json",
		}, w.commonArgs(kubeconfig, urls)...,
	)
	b.args = append(b.args, opts.args...)
	if w.audits {
		b.args = append(b.args, "--audit-interval", w.cfg.audit.String())
	}
	if opts.bridges > 1 && !opts.rivals {
		b.args = append(b.args, "--leader-elect", "--lease-namespace", testenv.DefaultNamespace, "--lease-name", leaseName)
	}
	return b, nil
}

// connect writes the kubeconfig and returns the URLs of NATS that the bridge uses: those of proxies
// of its own, unless it connects directly.
func (b *bridge) connect(kubeconfig string, direct bool) (urls string, err error) {
	if direct {
		return b.w.nats.URL(), b.w.cluster.Kubeconfig(kubeconfig)
	}
	var all []string
	for i := range b.w.nats.Size() {
		proxy, err := proxyTo(b.w.nats.ServerURL(i))
		if err != nil {
			return "", err
		}
		b.nats = append(b.nats, proxy)
		all = append(all, "nats://"+testenv.LimitedUser+"@"+proxy.Addr())
	}
	if b.mute, err = b.w.cluster.APIProxy(testenv.APIProxyOptions{Token: pluginToken}); err != nil {
		return "", err
	}
	if b.api, err = proxyTo(b.mute.Config().Host); err != nil {
		return "", err
	}
	b.plugin, err = writeKubeconfig(b.mute, kubeconfig, b.api.Addr(), b.w.dir, b.name)
	return strings.Join(all, ","), err
}

func proxyTo(target string) (*network.Proxy, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	return network.NewProxy(u.Host)
}

// writeKubeconfig writes a kubeconfig that leads to the proxy by
// another address, and takes the credentials from a plugin.
func writeKubeconfig(proxy *testenv.APIProxy, path, address, dir, name string) (*plugin, error) {
	if err := proxy.Kubeconfig(path); err != nil {
		return nil, err
	}
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	for _, c := range config.Clusters {
		c.Server = "https://" + address
	}
	p, err := newPlugin(dir, name)
	if err != nil {
		return nil, err
	}
	config.AuthInfos[config.Contexts[config.CurrentContext].AuthInfo] = p.user()
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return nil, fmt.Errorf("write the kubeconfig: %w", err)
	}
	return p, nil
}

// start starts the process, if it does not run.
func (b *bridge) start() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.process != nil || b.closed {
		return nil
	}
	command := append([]string{b.w.cfg.bin}, b.args...)
	if b.memory > 0 {
		// RLIMIT_DATA counts what is mapped to be written; the address space that Go reserves
		// is not. It needs no rights, as a cgroup would.
		limit, goLimit := strconv.FormatInt(b.memory>>10, 10), strconv.FormatInt(b.memory/10*9, 10)
		command = append([]string{"sh", "-c", `ulimit -d "$1" && export GOMEMLIMIT="$2" && shift 2 && exec "$@"`, "sh", limit, goLimit}, command...)
	}
	var logged int64
	if info, err := os.Stat(b.log); err == nil {
		logged = info.Size()
	}
	started, err := b.w.cluster.Run("appbridge-"+b.name, b.log, command[0], command[1:]...)
	if err != nil {
		return err
	}
	p := &process{started, make(chan struct{}), logged}
	b.process = p
	b.watching.Go(func() { b.watch(p) })
	return nil
}

// watch waits for the end of a process. One that no fault caused fails the
// run; the process is started again all the same, as Kubernetes would.
func (b *bridge) watch(p *process) {
	<-p.Done()
	b.mu.Lock()
	b.process = nil
	for name, value := range b.last.metrics {
		if strings.Contains(name, "_total") {
			b.totals[name] += value
		}
	}
	b.last = status{at: time.Now(), why: "it is down"}
	expected := b.expected == p
	close(p.noted)
	b.mu.Unlock()
	if expected {
		return
	}
	tail, err := p.LogTail()
	if err != nil {
		tail = err.Error()
	}
	b.w.fail("bridge %s ended by itself: %v\n--- end of its log\n%s", b.name, p.Exit(), lastLines(tail, 5))
	if err := b.start(); err != nil {
		b.w.fail("start bridge %s again: %v", b.name, err)
	}
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// running is the process, nil while it is down.
func (b *bridge) running() *process {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.process
}

// end takes the process whose end is now the harness' doing.
func (b *bridge) end() *process {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expected = b.process
	return b.process
}

// kill ends the process as a crash would.
func (b *bridge) kill() error {
	p := b.end()
	if p == nil {
		return nil
	}
	err := p.Kill()
	<-p.noted
	return err
}

// stop ends the process as Kubernetes does. It may leave changes unpublished,
// which its exit code then says; any other end is a failure of the run.
func (b *bridge) stop() {
	p := b.end()
	if p == nil {
		return
	}
	if err := p.Stop(stopTimeout); err != nil {
		var exit *exec.ExitError
		if !errors.As(p.Exit(), &exit) || exit.ExitCode() != 1 && !b.tooEarly(p, exit) {
			b.w.fail("bridge %s: %v", b.name, err)
		}
	}
	<-p.noted
}

// tooEarly reports whether the signal to stop came before the program did anything, and ended it.
func (b *bridge) tooEarly(p *process, exit *exec.ExitError) bool {
	status, ok := exit.Sys().(syscall.WaitStatus)
	info, err := os.Stat(b.log)
	return ok && status.Signal() == syscall.SIGTERM && err == nil && info.Size() == p.log
}

// pause has the process stand still, resume go on.
func (b *bridge) pause() error  { return b.signal(syscall.SIGSTOP) }
func (b *bridge) resume() error { return b.signal(syscall.SIGCONT) }

func (b *bridge) signal(sig syscall.Signal) error {
	if p := b.running(); p != nil {
		return p.Signal(sig)
	}
	return nil
}

// look asks the bridge how it is.
func (b *bridge) look(ctx context.Context) status {
	p := b.running()
	s := status{at: time.Now(), why: "it is down"}
	if p != nil {
		s = probe(ctx, b.http)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.answered && b.process == p {
		b.last = s
	}
	return s
}

// lastSeen is what the bridge said last.
func (b *bridge) lastSeen() status {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last
}

// total is a counter over all processes of this bridge, as far as it was seen.
func (b *bridge) total(name string) float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.totals[name] + b.last.metrics[name]
}

// links to NATS, all at once.
func (b *bridge) cutNATS() error  { return each(b.nats, (*network.Proxy).Cut) }
func (b *bridge) hangNATS() error { return each(b.nats, (*network.Proxy).Hang) }
func (b *bridge) healNATS() error { return each(b.nats, (*network.Proxy).Heal) }

func each(proxies []*network.Proxy, do func(*network.Proxy) error) error {
	var errs []error
	for _, p := range proxies {
		errs = append(errs, do(p))
	}
	return errors.Join(errs...)
}

// close ends everything of the bridge.
func (b *bridge) close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	errs := []error{b.kill()}
	b.watching.Wait()
	errs = append(errs, each(b.nats, (*network.Proxy).Close))
	if b.api != nil {
		errs = append(errs, b.api.Close())
	}
	if b.mute != nil {
		errs = append(errs, b.mute.Close())
	}
	return errors.Join(errs...)
}
