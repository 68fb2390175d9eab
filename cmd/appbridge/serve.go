package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/bridge/appsvc"
)

// serveCommand is `appbridge serve`: everything that belongs to the process
// (environment, signals, the libraries' loggers) around serve.
func serveCommand(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	options := serveOptions()
	cfg, set, help, err := load(options, args, os.Environ())
	if help {
		serveUsage(stdout, options)
		return exitOK
	}
	kube, err := completeConfig(&cfg, set, true, err)
	if err != nil {
		printProblems(stderr, "serve", err)
		return exitUsage
	}

	format := resolveLogFormat(cfg.LogFormat, stderr)
	log, err := newLogger(cfg.LogLevel, format, stderr)
	if err != nil {
		printf(stderr, "appbridge: %v\n", err)
		return exitUsage
	}
	routeLibraryLogs(log)

	signals, release := catchSignals()
	defer release()
	ctx, stop := stopOnSignal(ctx, signals, log, func() { os.Exit(exitFailure) })
	defer stop()

	if err := serve(ctx, cfg, kube, log, hooks{}); err != nil {
		if format == logFormatJSON {
			log.Error("stopped by an error", zap.Error(err))
		} else {
			printf(stderr, "appbridge: %v\n", err)
		}
		return exitFailure
	}
	log.Info("stopped")
	return exitOK
}

// printProblems says what is wrong with the configuration of a command.
func printProblems(stderr io.Writer, command string, err error) {
	var lines problems
	errors.As(err, &lines)
	for _, line := range lines {
		printf(stderr, "appbridge: %s\n", line)
	}
	printf(stderr, "appbridge: the configuration is wrong; `appbridge %s --help` lists every option\n", command)
}

// completeConfig adds what comes from outside of the options: the cluster and
// the pod's namespace if the Lease is needed. err is what load found; the result has everything.
func completeConfig(cfg *config, set settings, lease bool, err error) (*rest.Config, error) {
	var found problems
	errors.As(err, &found)
	var kube *rest.Config
	// A kubeconfig that load has refused is reported already. One that is searched for, because
	// nothing names it, is no part of what is wrong with the rest.
	if _, given := set["kubeconfig"]; cfg.Kubeconfig != "" || (!given && len(found) == 0) {
		var kubeErr error
		if kube, kubeErr = kubeConfig(cfg.Kubeconfig); kubeErr != nil {
			found.add("%s", kubeErr)
		}
	}
	if kube != nil {
		cfg.checkOwnAccount(kube, &found)
	}
	if _, given := set["lease-namespace"]; lease && cfg.LeaderElect && cfg.LeaseNamespace == "" && !given {
		namespace, nsErr := ownNamespace()
		if nsErr != nil {
			found.add("lease-namespace: not set, and this is not a pod that has one: want the name of a namespace for leader-elect (from %s)", set["leader-elect"].source)
		}
		cfg.LeaseNamespace = namespace
	}
	return kube, found.err()
}

// runner is what serve needs of a bridge.
type runner interface {
	appsvc.Cache
	Run(ctx context.Context) error
	Ready() error
}

// hooks let a test take part. The zero value is the program.
type hooks struct {
	// newBridge stands in for bridge.New.
	newBridge func(bridge.Config, *rest.Config, *nats.Conn, *zap.Logger, prometheus.Registerer) (runner, error)
	// listening is told where the HTTP server and NATS are, before the bridge
	// runs.
	listening func(http net.Addr, natsURLs []string)
}

func (h hooks) bridge(cfg bridge.Config, kube *rest.Config, nc *nats.Conn, log *zap.Logger, reg prometheus.Registerer) (runner, error) {
	if h.newBridge != nil {
		return h.newBridge(cfg, kube, nc, log, reg)
	}
	return bridge.New(cfg, kube, nc, log, reg)
}

// readiness answers /readyz: first for the embedded server, and before there is a
// bridge to ask.
type readiness struct {
	mu    sync.Mutex
	from  runner
	link  *natsLink
	local *embedded
}

func (r *readiness) set(from runner, link *natsLink) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.from, r.link = from, link
}

func (r *readiness) setEmbedded(local *embedded) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.local = local
}

func (r *readiness) ready() error {
	r.mu.Lock()
	from, link, local := r.from, r.link, r.local
	r.mu.Unlock()
	if err := local.ready(); err != nil {
		return err
	}
	if err := link.unready(); err != nil {
		return err
	}
	if from == nil {
		return errors.New("starting")
	}
	return from.Ready()
}

// serve runs until ctx is done and everything is flushed (nil), or until
// something ends that should not (an error). HTTP comes first, so that the
// process can be asked while it starts. It ends in the order in which nothing
// is missed: the bridge and the services, HTTP, the connections, the embedded
// server.
func serve(ctx context.Context, cfg config, kube *rest.Config, log *zap.Logger, h hooks) error {
	build := currentBuild()
	log.Info("appbridge starts", zap.String("version", build.Version), zap.String("commit", build.Commit),
		zap.String("cluster", cfg.ClusterName), zap.String("kubernetes", kube.Host), zap.Strings("namespaces", cfg.Namespaces))
	identity, err := newIdentity()
	if err != nil {
		return err
	}
	reg := newRegistry()
	var state readiness
	site, err := startWeb(ctx, cfg.HTTPListen, newHandler(reg, state.ready, log.Named("http")), defaultWebTimeouts(), log.Named("http"))
	if err != nil {
		return err
	}
	var local *embedded
	var link *natsLink
	flushed := false
	defer func() {
		site.stop()
		link.close(flushed)
		local.stop()
	}()
	log.Info("HTTP server listens", zap.Stringer("address", site.addr))

	urls := cfg.NATSURL
	if cfg.NATSEmbedded {
		local, err = startEmbedded(ctx, cfg.NATSEmbeddedListen, cfg.NATSEmbeddedDir, cfg.NATSEmbeddedMaxBytes, log.Named("nats-server"))
		if err != nil {
			return stoppedOr(ctx, err)
		}
		state.setEmbedded(local)
		urls = []string{local.url}
		log.Info("embedded NATS server listens", zap.String("url", local.url), zap.String("dir", cfg.NATSEmbeddedDir))
		warnOfGuests(log, local.addr, cfg.EnableWrites)
	}
	log.Info("connecting to NATS", zap.String("servers", shownURLs(urls)))
	link, err = connectNATS(ctx, cfg, urls, log.Named("nats"))
	if err != nil {
		return err
	}
	b, err := h.bridge(cfg.bridgeConfig(identity), kube, link.nc, log.Named("bridge"), reg)
	if err != nil {
		return fmt.Errorf("set up the bridge: %w", err)
	}
	state.set(b, link)
	if h.listening != nil {
		h.listening(site.addr, urls)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var services sync.WaitGroup
	defer services.Wait()
	services.Go(func() {
		if err := runLogService(ctx, cfg, urls, kube, b, log.Named("logs"), reg); err != nil {
			cancel(err)
		}
	})
	services.Go(func() {
		if err := runAppService(ctx, cfg, urls, kube, b, log.Named("apps"), reg); err != nil {
			cancel(err)
		}
	})
	err = runBridge(ctx, b, cfg.FlushTimeout, link, site, log)
	flushed = err == nil
	cancel(nil)
	return err
}

// bridgeStopGrace is how long a bridge may take to return after its flush has
// ended.
const bridgeStopGrace = time.Second

// runBridge runs the bridge and stops it when what it stands on is gone. A
// bridge that is to stop and does not come back from NATS loses its connection.
func runBridge(parent context.Context, b runner, flushTimeout time.Duration, link *natsLink, site *web, log *zap.Logger) error {
	ctx, cancel := context.WithCancelCause(parent)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel(nil)
	watching.Go(func() {
		select {
		case <-ctx.Done():
		case <-link.closed:
			cancel(link.failure())
		case err := <-site.failed:
			cancel(err)
		}
	})
	returned := make(chan struct{})
	watching.Go(func() {
		select {
		case <-returned:
			return
		case <-ctx.Done():
		}
		select {
		case <-returned:
		case <-time.After(flushTimeout + bridgeStopGrace):
			log.Warn("NATS does not answer, cutting the connection", zap.Duration("after", flushTimeout+bridgeStopGrace))
			link.cut()
		}
	})
	err := b.Run(ctx)
	close(returned)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	if parent.Err() != nil {
		return err
	}
	// A connection that is closed for good makes all kinds of errors in the
	// bridge, perhaps before the watcher has seen it: this one is the reason.
	if failure := link.failure(); failure != nil {
		return failure
	}
	return err
}

// stoppedOr is nil when the start was given up because ctx is done.
func stoppedOr(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// warnOfGuests says what others can do with an embedded server at addr.
func warnOfGuests(log *zap.Logger, addr net.Addr, writes bool) {
	if listensOnLoopback(addr) {
		return
	}
	log.Warn("the embedded NATS server asks nobody for a password and can be reached from other machines", zap.Stringer("address", addr))
	if writes {
		log.Warn("writes are on: whoever reaches the embedded NATS server can deploy, stop and delete apps", zap.Stringer("address", addr))
	}
}

func listensOnLoopback(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}
