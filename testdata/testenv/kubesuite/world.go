package kubesuite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/network"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// World is what users of appbridge have around them: a cluster with a kubelet,
// the program as it is built, and the tools that the documentation uses.
type World struct {
	*testenv.Cluster
	Kubelet *testenv.Kubelet
	// Bin is the folder of appbridge, nats, jq and kubectl.
	Bin string
	// KubeconfigPath is a file with an administrator's kubeconfig.
	KubeconfigPath string
	// NATS is the URL of the server that everybody uses.
	NATS string

	home      string
	instances []*Instance
	started   *atomic.Int64 // instances on this cluster, by every world
	beside    bool          // the cluster is another world's
}

// StartWorld starts a cluster with a kubelet, and builds appbridge. Whoever starts
// a world has to Stop it.
func StartWorld(ctx context.Context, opts testenv.Options) (*World, error) {
	w := &World{started: new(atomic.Int64)}
	var err error
	if w.Cluster, err = testenv.Start(ctx, opts); err != nil {
		return nil, err
	}
	if err := w.furnish(ctx); err != nil {
		return nil, errors.Join(err, w.Stop())
	}
	return w, nil
}

func (w *World) furnish(ctx context.Context) (err error) {
	if w.Kubelet, err = w.StartKubelet(ctx, "node"); err != nil {
		return err
	}
	if w.home, err = w.Dir("home"); err != nil {
		return err
	}
	w.KubeconfigPath = filepath.Join(w.home, "kubeconfig")
	if err := w.Kubeconfig(w.KubeconfigPath); err != nil {
		return err
	}
	if w.Bin, err = w.Dir("tools"); err != nil {
		return err
	}
	built, err := testenv.BinDir()
	if err != nil {
		return err
	}
	for _, name := range []string{"nats", "jq", "kubectl"} {
		if err := os.Symlink(filepath.Join(built, name), filepath.Join(w.Bin, name)); err != nil {
			return err
		}
	}
	return Build(ctx, filepath.Join(w.Bin, "appbridge"))
}

// Beside is a world on the same cluster: its bridges and NATS server are its own. It has to be
// stopped before w.
func (w *World) Beside() *World {
	return &World{
		Cluster: w.Cluster, Kubelet: w.Kubelet, Bin: w.Bin, KubeconfigPath: w.KubeconfigPath, home: w.home, started: w.started, beside: true,
	}
}

// Stop ends every appbridge, the last one first, and the cluster if it is this world's.
func (w *World) Stop() error {
	var errs []error
	for len(w.instances) > 0 {
		last := len(w.instances) - 1
		errs = append(errs, w.instances[last].Stop(suite.Patience))
		w.instances = w.instances[:last]
	}
	if w.beside {
		return errors.Join(errs...)
	}
	if w.Kubelet != nil {
		errs = append(errs, w.Kubelet.Close())
	}
	return errors.Join(append(errs, w.Cluster.Stop())...)
}

// Serve starts `appbridge serve`, with further options, and returns when it is
// ready and its services listen. They are given by name, with the number of
// endpoints that each has. The first one runs the world's NATS server, unless the
// world has one already.
func (w *World) Serve(ctx context.Context, services map[string]int, options ...string) (*Instance, error) {
	name := fmt.Sprintf("appbridge-%d", w.started.Add(1))
	dir, err := w.Dir(name)
	if err != nil {
		return nil, err
	}
	i := &Instance{}
	if i.HTTP, err = network.FreeAddress(""); err != nil {
		return nil, err
	}
	args := []string{"serve", "--kubeconfig", w.KubeconfigPath, "--cluster-name", "test", "--http-listen", i.HTTP}
	if w.NATS == "" {
		listen, err := network.FreeAddress("")
		if err != nil {
			return nil, err
		}
		w.NATS = "nats://" + listen
		args = append(args, "--nats-embedded", "--nats-embedded-dir", filepath.Join(dir, "jetstream"), "--nats-embedded-listen", listen)
	} else {
		args = append(args, "--nats-url", w.NATS)
	}
	if i.Process, err = w.Run(name, filepath.Join(dir, "log"), filepath.Join(w.Bin, "appbridge"), append(args, options...)...); err != nil {
		return nil, err
	}
	w.instances = append(w.instances, i)
	if err := w.waitServes(ctx, i, services); err != nil {
		text, _ := i.LogTail()
		return nil, fmt.Errorf("%s does not serve: %w\n%s", name, err, text)
	}
	return i, nil
}

func (w *World) waitServes(ctx context.Context, i *Instance, services map[string]int) error {
	ctx, cancel := context.WithTimeout(ctx, suite.Patience)
	defer cancel()
	for {
		err := i.ready(ctx)
		if err == nil {
			err = w.listen(ctx, services)
		}
		if err == nil {
			return nil
		}
		select {
		case <-i.Done():
			return fmt.Errorf("it has ended: %w", i.Exit())
		default:
		}
		if testenv.Pause(ctx, 50*time.Millisecond) != nil {
			return err
		}
	}
}

// listen returns nil when every instance has every service.
func (w *World) listen(ctx context.Context, services map[string]int) error {
	if len(services) == 0 {
		return nil
	}
	nc, err := nats.Connect(w.NATS)
	if err != nil {
		return err
	}
	defer nc.Close()
	for name, endpoints := range services {
		if err := w.listens(ctx, nc, name, endpoints); err != nil {
			return fmt.Errorf("service %s: %w", name, err)
		}
	}
	return nil
}

func (w *World) listens(ctx context.Context, nc *nats.Conn, name string, endpoints int) error {
	subject, err := micro.ControlSubject(micro.InfoVerb, name, "")
	if err != nil {
		return err
	}
	answers, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		return err
	}
	if err := nc.PublishRequest(subject, answers.Subject, nil); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	// Endpoints are added one after the other, when the service answers already.
	for n := range w.instances {
		msg, err := answers.NextMsgWithContext(ctx)
		if err != nil {
			return fmt.Errorf("%d of %d instances: %w", n, len(w.instances), err)
		}
		var info micro.Info
		if err := json.Unmarshal(msg.Data, &info); err != nil {
			return fmt.Errorf("it says %q: %w", msg.Data, err)
		}
		if len(info.Endpoints) != endpoints {
			return fmt.Errorf("it has %d endpoints of %d", len(info.Endpoints), endpoints)
		}
	}
	return nil
}
