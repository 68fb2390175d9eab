// Package e2e_test reads the logs of pods through the program as it is built: a
// real API server with etcd, a small kubelet, `appbridge serve` with its embedded
// server, the stock nats CLI and `appbridge logs`.
package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/micro"

	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// patience bounds every wait. Nothing is expected to come near it.
const patience = 90 * time.Second

// shared is what all tests use: started by the first that asks.
var shared struct { //nolint:gochecknoglobals // one cluster for all tests
	once sync.Once
	*world
	err error
}

// world is a cluster with a kubelet, and a bridge with its embedded server.
type world struct {
	*testenv.Cluster
	kubelet *testenv.Kubelet
	bridge  *testenv.Process
	bin     string   // folder of appbridge, nats and jq
	nats    string   // URL
	http    string   // host:port
	environ []string // of commands
}

func TestMain(m *testing.M) {
	suite.Main(m, func() error {
		if shared.world == nil {
			return nil
		}
		return shared.stop()
	})
}

func sharedWorld(tb testing.TB) *world {
	tb.Helper()
	shared.once.Do(func() { shared.world, shared.err = newWorld(context.Background()) })
	if shared.err != nil {
		tb.Fatal(shared.err)
	}
	return shared.world
}

// ownWorld is a world of a test's own.
func ownWorld(t *testing.T, args ...string) *world {
	t.Helper()
	w, err := newWorld(context.Background(), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.stop(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func newWorld(ctx context.Context, args ...string) (*world, error) {
	w := &world{}
	var err error
	if w.Cluster, err = testenv.Start(ctx, testenv.Options{}); err != nil {
		return nil, err
	}
	if err := w.run(ctx, args...); err != nil {
		return nil, errors.Join(err, w.stop())
	}
	return w, nil
}

func (w *world) run(ctx context.Context, args ...string) (err error) {
	if w.kubelet, err = w.StartKubelet(ctx, "node"); err != nil {
		return err
	}
	if w.bin, err = w.tools(); err != nil {
		return err
	}
	return w.serve(ctx, args...)
}

// tools builds appbridge and puts it beside the tools that the README uses.
func (w *world) tools() (string, error) {
	dir, err := w.Dir("tools")
	if err != nil {
		return "", err
	}
	built, err := testenv.BinDir()
	if err != nil {
		return "", err
	}
	for _, name := range []string{"nats", "jq", "kubectl"} {
		if err := os.Symlink(filepath.Join(built, name), filepath.Join(dir, name)); err != nil {
			return "", err
		}
	}
	build := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(dir, "appbridge"), "github.com/appbridge/appbridge/cmd/appbridge")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build appbridge: %w\n%s", err, out)
	}
	return dir, nil
}

// serve starts the bridge and waits until it is ready and its log service answers.
func (w *world) serve(ctx context.Context, args ...string) error {
	dir, err := w.Dir("serve")
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := w.Kubeconfig(kubeconfig); err != nil {
		return err
	}
	listen, err := testenv.FreeAddress("")
	if err != nil {
		return err
	}
	if w.http, err = testenv.FreeAddress(""); err != nil {
		return err
	}
	w.nats = "nats://" + listen
	w.environ = append(os.Environ(), "PATH="+w.bin+":"+os.Getenv("PATH"), "NATS_URL="+w.nats, "APPBRIDGE_NATS_URL="+w.nats, "HOME="+dir, "KUBECONFIG="+kubeconfig)
	w.bridge, err = w.Run("appbridge", filepath.Join(dir, "log"), filepath.Join(w.bin, "appbridge"), append([]string{
		"serve", "--kubeconfig", kubeconfig, "--cluster-name", "test",
		"--nats-embedded", "--nats-embedded-dir", filepath.Join(dir, "jetstream"), "--nats-embedded-listen", listen,
		"--http-listen", w.http,
	}, args...)...)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := w.ready(ctx)
		if err == nil {
			if _, err = w.stats(ctx); err == nil {
				return nil
			}
		}
		if ended := testenv.Pause(ctx, 50*time.Millisecond); ended != nil {
			text, _ := w.bridge.LogTail()
			return fmt.Errorf("appbridge is not ready: %w\n%s", err, text)
		}
	}
}

func (w *world) ready(ctx context.Context) error {
	body, status, err := w.get(ctx, "/readyz")
	if err == nil && status != http.StatusOK {
		err = errors.New(body)
	}
	return err
}

func (w *world) get(ctx context.Context, path string) (body string, status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.http+path, nil)
	if err != nil {
		return "", 0, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return "", 0, err
	}
	text, err := io.ReadAll(resp.Body)
	return string(text), resp.StatusCode, errors.Join(err, resp.Body.Close())
}

func (w *world) stop() error {
	var errs []error
	if w.bridge != nil {
		errs = append(errs, w.bridge.Stop(patience))
	}
	if w.kubelet != nil {
		errs = append(errs, w.kubelet.Close())
	}
	return errors.Join(append(errs, w.Stop())...)
}

// stats is what `nats micro stats` says.
func (w *world) stats(ctx context.Context) (logsvc.Stats, error) {
	cmd := exec.CommandContext(ctx, "nats", "req", "--raw", "$SRV.STATS."+logsvc.ServiceName, "")
	out, err := w.prepare(cmd).Output()
	if err != nil {
		return logsvc.Stats{}, err
	}
	var all micro.Stats
	if err := json.Unmarshal(out, &all); err != nil || len(all.Endpoints) != 3 {
		return logsvc.Stats{}, fmt.Errorf("the statistics are %q: %w", out, err)
	}
	var stats logsvc.Stats
	return stats, json.Unmarshal(all.Endpoints[0].Data, &stats)
}

// prepare has a command use the world's tools and servers.
func (w *world) prepare(cmd *exec.Cmd) *exec.Cmd {
	cmd.Env = w.environ
	if filepath.Base(cmd.Path) == cmd.Path || cmd.Err != nil {
		cmd.Path, cmd.Err = filepath.Join(w.bin, cmd.Args[0]), nil
	}
	return cmd
}

var apps atomic.Int64 //nolint:gochecknoglobals // names are unique in the cluster

// app makes an app of its own for a test. The name is that of its Knative
// Service, too.
func (w *world) app(tb testing.TB) (id subjects.AppID, service string) {
	tb.Helper()
	return w.appNamed(tb, fmt.Sprintf("app%d", apps.Add(1)))
}

func (w *world) appNamed(tb testing.TB, name string) (id subjects.AppID, service string) {
	tb.Helper()
	app := testenv.App{Project: "shop", Domain: "production", Name: name}
	svc := app.Service()
	if err := w.Client.Create(tb.Context(), svc); err != nil {
		tb.Fatal(err)
	}
	return app.ID(), svc.Name
}

func (w *world) pod(tb testing.TB, service, name string) *testenv.Pod {
	tb.Helper()
	pod, err := w.kubelet.RunPod(tb.Context(), testenv.PodOptions{Namespace: testenv.DefaultNamespace, Name: name, Service: service})
	if err != nil {
		tb.Fatal(err)
	}
	return pod
}

// command is a running shell command line.
type command struct {
	tb   testing.TB
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	exit error         // read after done

	mu       sync.Mutex
	out, err bytes.Buffer
}

type locked struct {
	mu  *sync.Mutex
	buf *bytes.Buffer
}

func (l locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// start runs a command line as an operator's shell would.
func (w *world) start(tb testing.TB, line string) *command {
	tb.Helper()
	c := &command{tb: tb, cmd: exec.Command("bash", "-c", line), done: make(chan struct{})}
	c.cmd.Env = w.environ
	c.cmd.Stdout, c.cmd.Stderr = locked{&c.mu, &c.out}, locked{&c.mu, &c.err}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := c.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	go func() {
		defer close(c.done)
		c.exit = c.cmd.Wait()
	}()
	tb.Cleanup(func() {
		c.signal(syscall.SIGKILL)
		<-c.done
	})
	return c
}

// signal goes to the whole pipeline, as from a terminal.
func (c *command) signal(sig syscall.Signal) {
	_ = syscall.Kill(-c.cmd.Process.Pid, sig) // it may have ended
}

func (c *command) stdout() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.String()
}

func (c *command) stderr() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err.String()
}

// wait waits for the end and is what was printed.
func (c *command) wait() string {
	c.tb.Helper()
	select {
	case <-c.done:
		if c.exit != nil {
			c.tb.Errorf("%s: %v\n%s", c.cmd.Args[2], c.exit, c.stderr())
		}
	case <-time.After(2 * patience):
		c.tb.Fatalf("%s does not end:\n%s", c.cmd.Args[2], c.stderr())
	}
	return c.stdout()
}

// interrupt is Ctrl-C; what a command thinks of that is its own matter.
func (c *command) interrupt() string {
	c.tb.Helper()
	c.signal(syscall.SIGINT)
	select {
	case <-c.done:
	case <-time.After(patience):
		c.tb.Fatalf("%s does not end", c.cmd.Args[2])
	}
	return c.stdout()
}

// waitFor waits until something was printed.
func (c *command) waitFor(text string) {
	c.tb.Helper()
	eventually(c.tb, fmt.Sprintf("%s prints %q", c.cmd.Args[2], text), func() error {
		if got := c.stdout(); !strings.Contains(got, text) {
			return fmt.Errorf("it prints %.2000s\n%s", got, c.stderr())
		}
		return nil
	})
}

func eventually(tb testing.TB, what string, check func() error) {
	tb.Helper()
	suite.Eventually(tb, patience, what, check)
}
