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

// fault is something that happens again and again, at times that the seed decides.
type fault struct {
	name  string
	least time.Duration // between two times; at most twice as long
	do    func(context.Context, *rand.Rand) error

	rand *rand.Rand
	due  time.Time
}

// chosen are the faults that happen. The number is another one for each log.
func (cfg settings) chosen(number uint64, all ...*fault) []*fault {
	var chosen []*fault
	for i, f := range all {
		f.rand = rand.New(rand.NewPCG(cfg.seed, number<<8+uint64(i)))
		f.due = time.Now()
		f.next()
		if cfg.has(f.name) {
			chosen = append(chosen, f)
		}
	}
	return chosen
}

// next makes the next time that has not passed the due one.
func (f *fault) next() {
	for !f.due.After(time.Now()) {
		f.due = f.due.Add(f.least + time.Duration(f.rand.Int64N(int64(f.least))))
	}
}

// run has the fault happen if it is due.
func (f *fault) run(ctx context.Context) error {
	if time.Now().Before(f.due) {
		return nil
	}
	if err := f.do(ctx, f.rand); err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	f.next()
	return nil
}

// faults are those of one log, which its writer plants between two lines.
func (l *podLog) faults(cfg settings) []*fault {
	return cfg.chosen(l.number,
		&fault{name: faultClock, least: time.Second, do: func(_ context.Context, r *rand.Rand) error {
			l.clock.change(r)
			l.model.trace.add("the clock shows %s", l.clock.now().Format(time.TimeOnly))
			return nil
		}},
		&fault{name: faultRotation, least: 2 * time.Second, do: func(context.Context, *rand.Rand) error {
			l.pod.RotateIf(l.model.rotate)
			return nil
		}},
		&fault{name: faultCut, least: 3 * time.Second, do: l.cut},
		&fault{name: faultContainer, least: 12 * time.Second, do: func(ctx context.Context, _ *rand.Rand) error {
			if !l.model.restart() {
				return nil
			}
			return l.pod.Restart(ctx)
		}},
	)
}

// cut ends the connections to the kubelet in one of its ways.
func (l *podLog) cut(_ context.Context, r *rand.Rand) error {
	l.model.breakFollows("the connections to the kubelet end")
	switch r.IntN(3) {
	case 0:
		l.kubelet.EOF()
	case 1:
		l.kubelet.Cut()
	default:
		if !l.pod.CutLine(l.model.add("cut inside", 0)) {
			return errors.New("the container does not run")
		}
	}
	l.model.breakFollows("they have ended")
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
	logs     []*podLog
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
func (w *world) newLog(ctx context.Context, form testenv.LogForm, seed, number uint64) (*podLog, error) {
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
	l := &podLog{
		name: name, app: app.ID(), kubelet: kubelet, number: number, rand: rand.New(rand.NewPCG(seed, number)),
		model: newModel(name, func(format string, args ...any) { fmt.Printf(format+"\n", args...) }),
	}
	kubelet.SetClock(l.clock.now)
	if l.pod, err = kubelet.RunPod(ctx, testenv.PodOptions{
		Namespace: testenv.DefaultNamespace, Name: svc.Name + "-1", Service: svc.Name, Log: form,
	}); err != nil {
		return nil, errors.Join(err, kubelet.Close())
	}
	l.pod.Observe(l.model.observe)
	w.kubelets = append(w.kubelets, kubelet)
	w.logs = append(w.logs, l)
	return l, nil
}

// trouble is the faults that concern all logs.
func (w *world) trouble(ctx context.Context, cfg settings) error {
	faults := cfg.chosen(1000,
		&fault{name: faultNATS, least: 10 * time.Second, do: func(ctx context.Context, r *rand.Rand) error {
			defer w.breakFollows("the reader is connected to NATS")
			w.breakFollows("the reader loses NATS")
			err := w.proxy.Cut()
			_ = testenv.Pause(ctx, time.Duration(r.IntN(3000))*time.Millisecond) // the proxy is healed also when ctx is done
			return errors.Join(err, w.proxy.Heal())
		}},
		&fault{name: faultBridge, least: 20 * time.Second, do: func(ctx context.Context, r *rand.Rand) error {
			defer w.breakFollows("the bridge has started")
			w.breakFollows("the bridge ends")
			end := w.bridge.Kill
			if r.IntN(2) == 0 {
				end = func() error { return w.bridge.Stop(time.Minute) }
			}
			return errors.Join(end(), w.serve(context.WithoutCancel(ctx)))
		}},
	)
	for ctx.Err() == nil {
		for _, f := range faults {
			if err := f.run(ctx); err != nil {
				return err
			}
		}
		_ = testenv.Pause(ctx, 50*time.Millisecond) // the loop looks at ctx
	}
	return nil
}

func (w *world) breakFollows(why string) {
	for _, l := range w.logs {
		l.model.breakFollows(why)
	}
}
