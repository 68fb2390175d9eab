// Package testenv runs a real Kubernetes API server with Knative's resource
// definitions for tests and for the demo: etcd and kube-apiserver as processes,
// started by controller-runtime's envtest, on free ports of the loopback
// interface. There is no Knative controller; what it would write, the methods
// of [Cluster] write in its place, through the same subresources.
package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// DefaultNamespace is where Flyte keeps its apps.
const DefaultNamespace = "flyte"

// Servers get this long to come up or to go down: seconds on an idle machine,
// more on a busy one.
const serverTimeout = 5 * time.Minute

const (
	etcdName      = "etcd"
	apiServerName = "kube-apiserver"
)

// Options of a cluster. The zero value is a cluster with Knative's definitions
// and the namespace [DefaultNamespace].
type Options struct {
	// Namespaces to create. Nil: DefaultNamespace.
	Namespaces []string
	// NoCRDs leaves Knative's definitions out; InstallCRDs adds them later.
	NoCRDs bool
	// Audit has the API server note every request; see Cluster.Audit.
	Audit bool
	// Assets is a folder with kube-apiserver and etcd. Empty: [BinDir].
	Assets string
	// Logf, when set, logs what takes time. It may be testing.T's.
	Logf func(format string, args ...any)

	address func() (string, error) // chooses addresses; nil: the guard
}

// Cluster is a running etcd and API server. Its methods may be called from
// several goroutines, except those that start and stop servers.
type Cluster struct {
	// Config reaches the API server as an administrator. Copy it before changing it.
	Config *rest.Config
	// Client is an uncached client for core and Knative types.
	Client client.Client

	env   *envtest.Environment
	guard *guard
	crds  []string
	audit string
	logf  func(format string, args ...any)
	up    bool // the API server runs
}

// silence is once per process because the logger is, and setting it is not safe
// for clusters that start at the same time.
var silence = sync.OnceFunc(func() { ctrllog.SetLogger(logr.Discard()) })

// Start starts a cluster and returns when it serves. Whoever starts it has to
// Stop it; should this process be killed first, the servers and their files go
// with it. A context that ends during the start stops what was started.
//
// The first start silences controller-runtime's process-wide logger, to which
// envtest writes; whoever wants that logger sets it afterwards.
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	began := time.Now()
	c := &Cluster{logf: opts.Logf}
	if c.logf == nil {
		c.logf = func(string, ...any) {}
	}
	silence()
	bin := opts.Assets
	if bin == "" {
		var err error
		if bin, err = BinDir(); err != nil {
			return nil, err
		}
	}
	serving, err := moduleDir(servingModule)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"service", "revision", "configuration", "route"} {
		c.crds = append(c.crds, filepath.Join(serving, "config", "core", "300-resources", name+".yaml"))
	}
	err = startAgain(func() (err error) {
		if c.guard, err = newGuard(); err != nil {
			return err
		}
		if err := c.start(ctx, bin, opts); err != nil {
			return errors.Join(err, c.Stop())
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("start the cluster: %w", err)
	}
	c.logf("cluster: serves at %s after %s", c.Config.Host, since(began))
	return c, nil
}

func (c *Cluster) start(ctx context.Context, bin string, opts Options) error {
	if err := c.configure(bin, opts); err != nil {
		return err
	}
	began := time.Now()
	cfg, err := c.startControlPlane(ctx)
	if err != nil {
		return errors.Join(fmt.Errorf("%w\n%s", err, c.serverLogs()), inUse(c.logFile(etcdName)), inUse(c.logFile(apiServerName)))
	}
	c.up = true
	c.Config = cfg
	c.logf("cluster: etcd and kube-apiserver up after %s", since(began))
	if err := ctx.Err(); err != nil {
		return err
	}
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	if c.Client, err = client.New(cfg, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	if !opts.NoCRDs {
		if err := c.InstallCRDs(); err != nil {
			return err
		}
	}
	return c.createNamespaces(ctx, opts.Namespaces)
}

// startControlPlane starts etcd and kube-apiserver. envtest waits no longer than 5 s for the
// namespace default, which a busy machine may exceed, and has nothing to install after that.
func (c *Cluster) startControlPlane(ctx context.Context) (*rest.Config, error) {
	cfg, err := c.env.Start()
	if err == nil || c.env.Config == nil || !strings.Contains(err.Error(), "default namespace didn't register") {
		return cfg, err
	}
	cfg = c.env.Config
	kube, err := client.New(cfg, client.Options{})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	for {
		err := kube.Get(ctx, client.ObjectKey{Name: metav1.NamespaceDefault}, &corev1.Namespace{})
		if err == nil {
			return cfg, nil
		}
		if pause(ctx) != nil {
			return nil, fmt.Errorf("get namespace %s: %w", metav1.NamespaceDefault, err)
		}
	}
}

// configure prepares envtest: our binaries, our folder, our certificates'
// place, so that an API server comes back with the same ones.
func (c *Cluster) configure(bin string, opts Options) error {
	existing := false // an environment variable must not point tests at a real cluster
	c.env = &envtest.Environment{
		UseExistingCluster:       &existing,
		ControlPlaneStartTimeout: serverTimeout,
		ControlPlaneStopTimeout:  serverTimeout,
	}
	api := c.env.ControlPlane.GetAPIServer()
	etcd := &envtest.Etcd{DataDir: filepath.Join(c.guard.dir, "data")}
	c.env.ControlPlane.Etcd = etcd
	api.CertDir = filepath.Join(c.guard.dir, "certificates")
	for _, dir := range []string{etcd.DataDir, api.CertDir} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
	}
	if err := c.listen(etcd, api, opts); err != nil {
		return err
	}
	var err error
	if etcd.Path, err = c.guard.wrap(etcdName, filepath.Join(bin, etcdName)); err != nil {
		return err
	}
	if api.Path, err = c.guard.wrap(apiServerName, filepath.Join(bin, apiServerName)); err != nil {
		return err
	}
	etcdLog, err := os.Create(c.logFile(etcdName))
	if err != nil {
		return err
	}
	apiLog, err := os.Create(c.logFile(apiServerName))
	if err != nil {
		return errors.Join(err, etcdLog.Close())
	}
	etcd.Out, etcd.Err = etcdLog, etcdLog
	api.Out, api.Err = apiLog, apiLog
	// The client of a cluster for one user gains nothing from fair queuing, and
	// the server is up sooner without.
	api.Configure().Set("enable-priority-and-fairness", "false")
	if opts.Audit {
		return c.configureAudit()
	}
	return nil
}

// listen chooses the addresses of both servers. envtest's own choice could be taken by a connection
// while a server is down.
func (c *Cluster) listen(etcd *envtest.Etcd, api *envtest.APIServer, opts Options) error {
	choose := opts.address
	if choose == nil {
		choose = c.guard.address
	}
	var addresses [3]string
	for i := range addresses {
		var err error
		if addresses[i], err = choose(); err != nil {
			return err
		}
	}
	etcd.URL = &url.URL{Scheme: "http", Host: addresses[0]}
	etcd.Configure().Set("listen-peer-urls", "http://"+addresses[1])
	var err error
	api.Address, api.Port, err = net.SplitHostPort(addresses[2])
	return err
}

func (c *Cluster) logFile(name string) string { return filepath.Join(c.guard.dir, name+".log") }

// serverLogs is the end of what both servers wrote.
func (c *Cluster) serverLogs() string {
	return quoteLog(etcdName, c.logFile(etcdName)) + quoteLog(apiServerName, c.logFile(apiServerName))
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, err
	}
	return scheme, servingv1.AddToScheme(scheme)
}

// InstallCRDs installs Knative's definitions of services, revisions,
// configurations and routes, as the module knative.dev/serving ships them, and
// returns when the API server serves them.
func (c *Cluster) InstallCRDs() error {
	began := time.Now()
	_, err := envtest.InstallCRDs(c.Config, envtest.CRDInstallOptions{
		Scheme:             c.Client.Scheme(),
		Paths:              c.crds,
		ErrorIfPathMissing: true,
		MaxTime:            serverTimeout,
		PollInterval:       20 * time.Millisecond,
	})
	if err != nil {
		return fmt.Errorf("install Knative's definitions: %w", err)
	}
	c.logf("cluster: Knative's definitions served after %s", since(began))
	return nil
}

// createNamespaces also waits for kube-system, whose uid stands for the cluster
// and which the API server makes on its own time.
func (c *Cluster) createNamespaces(ctx context.Context, names []string) error {
	if names == nil {
		names = []string{DefaultNamespace}
	}
	for _, name := range names {
		if err := c.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return fmt.Errorf("create namespace %s: %w", name, err)
		}
	}
	return wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, serverTimeout, true, func(ctx context.Context) (bool, error) {
		err := c.Client.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, &corev1.Namespace{})
		return err == nil, client.IgnoreNotFound(err)
	})
}

// Stop ends both servers and removes their files. It may be called twice.
func (c *Cluster) Stop() error {
	if c.guard == nil {
		return nil
	}
	began := time.Now()
	var errs []error
	if c.env != nil {
		// Nobody needs what they hold, and an API server in good order waits
		// a minute for its watchers.
		plane := &c.env.ControlPlane
		errs = append(errs, c.kill(apiServerName, plane.APIServer.Stop), c.kill(etcdName, plane.Etcd.Stop), c.closeLogs())
	}
	errs = append(errs, c.guard.close())
	c.guard, c.up = nil, false
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("stop the cluster: %w", err)
	}
	c.logf("cluster: stopped after %s", since(began))
	return nil
}

func (c *Cluster) closeLogs() error {
	var errs []error
	for _, out := range []any{c.env.ControlPlane.Etcd.Out, c.env.ControlPlane.APIServer.Out} {
		if file, ok := out.(*os.File); ok {
			errs = append(errs, file.Close())
		}
	}
	return errors.Join(errs...)
}

// Dir is a folder for the caller's own files; Stop removes it.
func (c *Cluster) Dir(name string) (string, error) {
	dir := filepath.Join(c.guard.dir, "user", name)
	return dir, os.MkdirAll(dir, 0o700)
}

func since(t time.Time) time.Duration { return time.Since(t).Round(10 * time.Millisecond) }
