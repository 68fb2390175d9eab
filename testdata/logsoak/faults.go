package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/network"
)

// What --without names.
const (
	faultClock     = "clock"
	faultRotation  = "rotation"
	faultCut       = "cut"
	faultContainer = "container"
	faultBridge    = "bridge"
	faultNATS      = "nats"
)

// fault is something that happens again and again.
type fault struct {
	name  string
	least time.Duration // between two times; at most twice as long
	do    func(context.Context) error
	due   time.Time
}

func (cfg settings) chosen(all []fault) []fault {
	var chosen []fault
	for _, f := range all {
		if cfg.has(f.name) {
			f.due = time.Now().Add(f.least)
			chosen = append(chosen, f)
		}
	}
	return chosen
}

// faults are those of one log, which its writer plants between two lines.
func (l *podLog) faults(cfg settings) []fault {
	return cfg.chosen([]fault{
		{name: faultClock, least: time.Second, do: func(context.Context) error {
			l.clock.change(l.rand)
			return nil
		}},
		{name: faultRotation, least: 2 * time.Second, do: l.rotate},
		{name: faultCut, least: 3 * time.Second, do: l.cut},
		{name: faultContainer, least: 12 * time.Second, do: l.restart},
	})
}

// rotate rotates the log. A follow that is two rotations behind loses lines in the kubelet, where
// nobody can notice: the reader must have come to the present file, or not be there.
func (l *podLog) rotate(context.Context) error {
	if l.model.within() || l.pod.Followers() == 0 {
		l.model.newFile(true)
		l.pod.Rotate()
	}
	return nil
}

// restart has the container start again. The log of the one before the last is removed.
func (l *podLog) restart(ctx context.Context) error {
	if !l.model.within() {
		return nil
	}
	l.model.newFile(false)
	return l.pod.Restart(ctx)
}

// cut ends the connections to the kubelet in one of its ways.
func (l *podLog) cut(context.Context) error {
	switch l.rand.IntN(3) {
	case 0:
		l.kubelet.EOF()
	case 1:
		l.kubelet.Cut()
	default:
		if !l.pod.CutLine(l.model.add("cut inside", 0)) {
			return errors.New("the container does not run")
		}
	}
	return nil
}

// world is what the logs have in common.
type world struct {
	*kubesuite.World
	servers *testenv.NATS
	proxy   *network.Proxy // between the readers and NATS
	reader  *nats.Conn
	bridge  *kubesuite.Instance
	// kubelets are those of the logs.
	kubelets []*testenv.Kubelet
}

func newWorld(ctx context.Context) (_ *world, err error) {
	w := &world{}
	if w.World, err = kubesuite.StartWorld(ctx, testenv.Options{}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if w.servers, err = testenv.StartNATS(ctx, testenv.NATSOptions{}); err != nil {
		return nil, err
	}
	w.NATS = w.servers.URL()
	if err := w.serve(ctx); err != nil {
		return nil, err
	}
	server, err := url.Parse(w.NATS)
	if err != nil {
		return nil, err
	}
	if w.proxy, err = network.NewProxy(server.Host); err != nil {
		return nil, err
	}
	w.reader, err = nats.Connect("nats://"+w.proxy.Addr(), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond), nats.ReconnectBufSize(-1))
	return w, err
}

// serve starts a bridge.
func (w *world) serve(ctx context.Context) (err error) {
	services := map[string]int{logsvc.ServiceName: 3}
	if w.bridge != nil {
		services = nil // the instances that ended do not answer
	}
	w.bridge, err = w.Serve(ctx, services)
	return err
}

// close ends everything.
func (w *world) close() (err error) {
	if w.reader != nil {
		w.reader.Close()
	}
	if w.proxy != nil {
		err = w.proxy.Close()
	}
	for _, kubelet := range w.kubelets {
		err = errors.Join(err, kubelet.Close())
	}
	err = errors.Join(err, w.Stop())
	if w.servers != nil {
		err = errors.Join(err, w.servers.Close())
	}
	return err
}

// newLog runs a pod whose log has that form, on a node of its own.
func (w *world) newLog(ctx context.Context, form testenv.LogForm, r *rand.Rand) (*podLog, error) {
	name := map[testenv.LogForm]string{testenv.Containerd: "containerd", testenv.CRIO: "crio"}[form]
	kubelet, err := w.StartKubelet(ctx, name)
	if err != nil {
		return nil, err
	}
	app := testenv.App{Project: "soak", Domain: "production", Name: name}
	svc := app.Service()
	if err := w.Client.Create(ctx, svc); err != nil {
		return nil, errors.Join(err, kubelet.Close())
	}
	shown := 0
	l := &podLog{
		name: name, app: app.ID(), kubelet: kubelet, rand: r,
		model: newModel(name, func(format string, args ...any) {
			const most = 50
			if shown++; shown <= most {
				fmt.Printf(format+"\n", args...)
			}
		}),
	}
	kubelet.SetClock(l.clock.now)
	if l.pod, err = kubelet.RunPod(ctx, testenv.PodOptions{
		Namespace: testenv.DefaultNamespace, Name: svc.Name + "-1", Service: svc.Name, Log: form,
	}); err != nil {
		return nil, errors.Join(err, kubelet.Close())
	}
	w.kubelets = append(w.kubelets, kubelet)
	return l, nil
}

// trouble is the faults that concern all logs.
func (w *world) trouble(ctx context.Context, cfg settings, r *rand.Rand) error {
	faults := cfg.chosen([]fault{
		{name: faultNATS, least: 10 * time.Second, do: func(ctx context.Context) error {
			err := w.proxy.Cut()
			_ = testenv.Pause(ctx, time.Duration(r.IntN(3000))*time.Millisecond) // the proxy is healed also when ctx is done
			return errors.Join(err, w.proxy.Heal())
		}},
		{name: faultBridge, least: 20 * time.Second, do: func(ctx context.Context) error {
			end := w.bridge.Kill
			if r.IntN(2) == 0 {
				end = func() error { return w.bridge.Stop(time.Minute) }
			}
			return errors.Join(end(), w.serve(context.WithoutCancel(ctx)))
		}},
	})
	for ctx.Err() == nil {
		for i := range faults {
			f := &faults[i]
			if time.Now().Before(f.due) {
				continue
			}
			if err := f.do(ctx); err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
			f.due = time.Now().Add(f.least + rand.N(f.least))
		}
		_ = testenv.Pause(ctx, 50*time.Millisecond) // the loop looks at ctx
	}
	return nil
}
