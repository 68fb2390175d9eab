package knative

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/network"
)

const (
	// Namespace is where Knative keeps its settings.
	Namespace = "knative-serving"
	// nodeName is the node of every pod.
	nodeName = "knative-node"
	// Processes get this long to come up or to go down: seconds on an idle machine, more on a busy one.
	timeout = 5 * time.Minute
)

// kwokStages says what becomes of pods.
//
//go:embed kwok.yaml
var kwokStages []byte

// Options of Knative. The zero value is what Flyte's apps need.
type Options struct {
	// Bin is a folder as testenv.KnativeDir returns it. Empty: that one.
	Bin string
	// Settings are merged over what Flyte's apps need: by the name of the config map and the key.
	// An empty value removes the key.
	Settings map[string]map[string]string
	// Logf, when set, logs what takes time. It may be testing.T's.
	Logf func(format string, args ...any)
}

// Knative runs beside a cluster. Its methods may be called from several goroutines, except Restart
// and Stop.
type Knative struct {
	client  client.Client
	cluster *testenv.Cluster
	bin     string
	dir     string
	address string // of the webhooks
	ports   []func()
	web     *http.Client // asks the program for its settings
	kubelet *testenv.Kubelet
	logf    func(format string, args ...any)

	manager, kwok, program *testenv.Process
}

// Start brings up Knative and what it needs beside a cluster, and returns when its webhooks answer.
// Who starts it has to Stop it, before the cluster stops. After an error nothing of it runs.
func Start(ctx context.Context, c *testenv.Cluster, opts Options) (*Knative, error) {
	began := time.Now()
	k := &Knative{client: c.Client, cluster: c, bin: opts.Bin, logf: opts.Logf}
	if k.logf == nil {
		k.logf = func(string, ...any) {}
	}
	if err := k.start(ctx, opts); err != nil {
		return nil, errors.Join(fmt.Errorf("start Knative: %w\n%s", err, k.Logs()), k.Stop())
	}
	k.logf("knative: up after %s", since(began))
	return k, nil
}

func (k *Knative) start(ctx context.Context, opts Options) (err error) {
	if k.bin == "" {
		if k.bin, err = testenv.KnativeDir(); err != nil {
			return err
		}
	}
	if k.dir, err = k.cluster.Dir("knative"); err != nil {
		return err
	}
	if err := k.cluster.Kubeconfig(k.file("kubeconfig")); err != nil {
		return err
	}
	if err := k.installCRDs(); err != nil {
		return err
	}
	if err := k.createConfig(ctx, opts.Settings); err != nil {
		return err
	}
	if err := k.createActivator(ctx); err != nil {
		return err
	}
	address, release, err := network.ReserveAddress()
	if err != nil {
		return err
	}
	k.address, k.ports = address, append(k.ports, release)
	authority, err := k.certify()
	if err != nil {
		return err
	}
	if err := k.startManager(); err != nil {
		return err
	}
	if err := k.startPods(ctx); err != nil {
		return err
	}
	if err := k.startProgram(ctx); err != nil {
		return err
	}
	// Not before: until the program listens, the API server refuses what they are asked about.
	if err := k.registerWebhooks(ctx, authority); err != nil {
		return err
	}
	return k.admits(ctx)
}

// startManager starts the controllers that Knative builds on: Deployments become pods, Services get
// endpoints, and what an owner leaves behind goes with it.
func (k *Knative) startManager() (err error) {
	controllers := []string{
		"deployment-controller", "replicaset-controller", "garbage-collector-controller", "namespace-controller",
		"endpoints-controller", "endpointslice-controller", "serviceaccount-controller",
	}
	k.manager, err = k.cluster.Run("kube-controller-manager", k.file("kube-controller-manager.log"),
		filepath.Join(k.bin, "kube-controller-manager"),
		"--kubeconfig="+k.file("kubeconfig"),
		"--controllers="+strings.Join(controllers, ","),
		"--leader-elect=false", "--secure-port=0",
		"--kube-api-qps=1000", "--kube-api-burst=2000",
	)
	return err
}

// startPods starts the node's kubelet, which serves logs, and kwok, which writes the status of its
// pods.
func (k *Knative) startPods(ctx context.Context) (err error) {
	if k.kubelet, err = k.cluster.StartKubelet(ctx, nodeName); err != nil {
		return err
	}
	kwok, err := testenv.Kwok()
	if err != nil {
		return err
	}
	if err := os.WriteFile(k.file("kwok.yaml"), kwokStages, 0o600); err != nil {
		return err
	}
	k.kwok, err = k.cluster.Run("kwok", k.file("kwok.log"), kwok,
		"--kubeconfig="+k.file("kubeconfig"), "--config="+k.file("kwok.yaml"),
		"--manage-single-node="+nodeName, "--node-lease-duration-seconds=0", "--cidr=10.128.0.1/16",
	)
	return err
}

func (k *Knative) startProgram(ctx context.Context) (err error) {
	began := time.Now()
	k.program, err = k.cluster.Run("knative", k.file("knative.log"), filepath.Join(k.bin, "knative"),
		"--kubeconfig="+k.file("kubeconfig"), "--namespace="+Namespace, "--node="+nodeName,
		"--listen="+k.address, "--tls-cert="+k.file("webhook.crt"), "--tls-key="+k.file("webhook.key"),
	)
	if err != nil {
		return err
	}
	err = poll(ctx, func(ctx context.Context) (bool, error) {
		if err := k.ended(); err != nil {
			return false, err
		}
		_, err := k.seen(ctx, configDefaults)
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("wait until it serves: %w", err)
	}
	k.logf("knative: its program serves after %s", since(began))
	return nil
}

// ended is an error when one of the processes is gone.
func (k *Knative) ended() error {
	for _, p := range k.processes() {
		select {
		case <-p.Done():
			if err := p.Exit(); err != nil {
				return fmt.Errorf("%s: %w", filepath.Base(p.LogPath()), err)
			}
			return fmt.Errorf("%s: the process has ended", filepath.Base(p.LogPath()))
		default:
		}
	}
	return nil
}

func (k *Knative) processes() []*testenv.Process {
	var all []*testenv.Process
	for _, p := range []*testenv.Process{k.program, k.kwok, k.manager} {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

// Restart kills Knative's program, if it runs, and starts it again at the same address.
func (k *Knative) Restart(ctx context.Context) error {
	if err := k.program.Kill(); err != nil {
		return fmt.Errorf("restart Knative: %w", err)
	}
	if err := k.startProgram(ctx); err != nil {
		return fmt.Errorf("restart Knative: %w\n%s", err, k.Logs())
	}
	return nil
}

// Program is Knative's reconcilers and webhooks. While it does not run, the API server refuses every
// write of a Knative object.
func (k *Knative) Program() *testenv.Process { return k.program }

// Kubelet serves the logs of the pods; see also Pod.
func (k *Knative) Kubelet() *testenv.Kubelet { return k.kubelet }

// Node is the name of the node that all pods are on.
func (k *Knative) Node() string { return nodeName }

// Logs is the end of what each process wrote.
func (k *Knative) Logs() string {
	var text strings.Builder
	for _, p := range k.processes() {
		tail, err := p.LogTail()
		if err != nil {
			tail = err.Error() + "\n"
		}
		fmt.Fprintf(&text, "--- end of %s\n%s", filepath.Base(p.LogPath()), tail)
	}
	return text.String()
}

// Stop ends all processes and waits until they are gone. What they wrote to the API server stays. It
// may be called twice.
func (k *Knative) Stop() error {
	var errs []error
	// Without asking: nobody needs what they hold.
	for _, p := range k.processes() {
		errs = append(errs, p.Kill())
	}
	if k.kubelet != nil {
		errs = append(errs, k.kubelet.Close())
	}
	if k.web != nil {
		k.web.CloseIdleConnections()
	}
	for _, release := range k.ports {
		release()
	}
	k.ports = nil
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("stop Knative: %w", err)
	}
	return nil
}

func (k *Knative) file(name string) string { return filepath.Join(k.dir, name) }

func poll(ctx context.Context, done wait.ConditionWithContextFunc) error {
	return wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, timeout, true, done)
}

func since(t time.Time) time.Duration { return time.Since(t).Round(10 * time.Millisecond) }
