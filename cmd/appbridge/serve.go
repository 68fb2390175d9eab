package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/bridge/appsvc"
	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/cmd/appbridge/config"
)

func serveCommand() *cobra.Command {
	return configured(config.Serve, &cobra.Command{
		Use: "serve", Short: "Watch the cluster, publish app events and the snapshot, serve requests",
		Long: `Watches the Knative Services that Flyte manages, appends every change of an app
to a NATS JetStream stream and keeps the current state in a key-value bucket.

Every flag has an environment variable (--nats-url: APPBRIDGE_NATS_URL) and a key in the
file that --config names (nats-url). A flag wins over a variable, a variable over
the file, the file over the default.`,
	}, `Exit codes: 0 after a clean shutdown, 1 on a failure or when not everything could be
flushed, 2 when the configuration is wrong.`, exitAtOnce(exitFailure), serveUntilStopped)
}

func serveUntilStopped(ctx context.Context, cfg config.Config, log *zap.Logger, _, stderr io.Writer) int {
	routeLibraryLogs(log)
	limitMemory(memlimit.FromCgroup, log)
	if err := serve(ctx, cfg, log, hooks{}); err != nil {
		if cfg.LogFormat == config.LogFormatJSON {
			log.Error("stopped by an error", zap.Error(err))
		} else {
			printf(stderr, "appbridge: %v\n", err)
		}
		return exitFailure
	}
	log.Info("stopped")
	return exitOK
}

// runner is what serve needs of a bridge.
type runner interface {
	appsvc.Cache
	Run(ctx context.Context) error
	Ready() error
}

// hooks replace parts in a test. The zero value is the program.
type hooks struct {
	// newBridge stands in for bridge.New.
	newBridge func(bridge.Config, *rest.Config, *nats.Conn, *zap.Logger, prometheus.Registerer) (runner, error)
	// listening gets the addresses of the HTTP server and NATS before the bridge runs.
	listening func(http net.Addr, natsURLs []string)
}

func newBridge(cfg bridge.Config, kube *rest.Config, nc *nats.Conn, log *zap.Logger, reg prometheus.Registerer) (runner, error) {
	return bridge.New(cfg, kube, nc, log, reg)
}

// readiness answers /readyz: for the embedded server first, then for the connection, then for
// the bridge. What is not set yet does not count, but without a bridge nothing is ready.
type readiness struct {
	local atomic.Pointer[embedded]
	link  atomic.Pointer[natsconn.Conn]
	from  atomic.Pointer[runner]
}

func (r *readiness) ready() error {
	if err := r.local.Load().ready(); err != nil {
		return err
	}
	if err := r.link.Load().Refusal(); err != nil {
		return err
	}
	from := r.from.Load()
	if from == nil {
		return errors.New("starting")
	}
	return (*from).Ready()
}

// serve runs until ctx is done and everything is flushed (nil), or until a part of it ends by
// itself (an error). HTTP starts first, so that probes and metrics work during the start. The parts
// stop in reverse order: the bridge and the services, HTTP, the connections, the embedded server.
func serve(ctx context.Context, cfg config.Config, log *zap.Logger, h hooks) error {
	build := currentBuild()
	log.Info("appbridge starts", zap.String("version", build.Version), zap.String("commit", build.Commit),
		zap.String("cluster", cfg.ClusterName), zap.String("kubernetes", cfg.Kube.Host), zap.Strings("namespaces", cfg.Namespaces))
	identity, err := newIdentity()
	if err != nil {
		return err
	}
	reg := newRegistry()
	var state readiness
	site, err := startWeb(ctx, cfg.HTTPListen, newHandler(reg, state.ready, cfg.Pprof, log.Named("http")), defaultWebTimeouts(), log.Named("http"))
	if err != nil {
		return err
	}
	var local *embedded
	var link *natsconn.Conn
	starting, started := context.WithCancel(ctx)
	var limited sync.WaitGroup
	limited.Go(func() { limitStart(starting, state.ready) })
	flushed := false
	defer func() {
		started()
		limited.Wait()
		site.stop()
		link.Close(flushed)
		local.stop()
	}()
	log.Info("HTTP server listens", zap.Stringer("address", site.addr))

	if cfg.NATSEmbedded {
		local, err = startEmbedded(ctx, cfg.NATSEmbeddedListen, cfg.NATSEmbeddedDir, cfg.NATSEmbeddedMaxBytes, log.Named("nats-server"))
		if err != nil {
			return stoppedOr(ctx, err)
		}
		state.local.Store(local)
		cfg.NATS.URLs = []string{local.url}
		log.Info("embedded NATS server listens", zap.String("url", local.url), zap.String("dir", cfg.NATSEmbeddedDir))
		warnOfGuests(log, local.addr, cfg.EnableWrites)
	}
	if h.newBridge == nil {
		h.newBridge = newBridge
	}
	for pause := retry.NewPause(); ; {
		link.Close(false) // that of the bridge before
		log.Info("connecting to NATS", zap.String("servers", natsconn.ShowURLs(cfg.NATS.URLs)))
		link, err = natsconn.Connect(ctx, cfg.NATS, connectionName(cfg), log.Named("nats"))
		if err != nil {
			return err
		}
		began := time.Now()
		flushed, err = serveBridge(ctx, cfg, identity, link, site, &state, log, reg, &h)
		if !errors.Is(err, natsconn.ErrClosed) || ctx.Err() != nil {
			return err
		}
		if time.Since(began) > time.Minute {
			pause.Reset()
		}
		wait := pause.NextBackOff()
		log.Warn("a NATS connection was closed for good; starting again with new ones", zap.Duration("in", wait), zap.Error(err))
		if retry.Wait(ctx, wait) != nil {
			return nil
		}
	}
}

// serveBridge runs a bridge and the services until ctx is done, or one of them ends.
func serveBridge(ctx context.Context, cfg config.Config, identity string, link *natsconn.Conn, site *web, state *readiness, log *zap.Logger, all prometheus.Registerer, h *hooks) (flushed bool, err error) {
	reg := &scopedRegistry{Registerer: all}
	defer reg.unregister()
	b, err := h.newBridge(cfg.Bridge(identity), cfg.Kube, link.NATS, log.Named("bridge"), reg)
	if err != nil {
		return false, fmt.Errorf("set up the bridge: %w", err)
	}
	state.link.Store(link)
	state.from.Store(&b)
	if h.listening != nil {
		h.listening(site.addr, cfg.NATS.URLs)
		h.listening = nil
	}
	ctx, cancel := context.WithCancel(ctx)
	services, ctx := errgroup.WithContext(ctx)
	services.Go(func() error { return runLogService(ctx, cfg, b, log.Named("logs"), reg) })
	services.Go(func() error { return runAppService(ctx, cfg, b, log.Named("apps"), reg) })
	err = runBridge(ctx, b, cfg.FlushTimeout, link, site, log)
	cancel()
	_ = services.Wait() // its error is the cause of ctx, which runBridge returns
	return err == nil, err
}

// bridgeStopGrace is how long a bridge may take to return after its flush has ended.
const bridgeStopGrace = time.Second

// runBridge runs the bridge and stops it when the connection or the HTTP server ends. A
// bridge that does not stop in time loses its connection.
func runBridge(parent context.Context, b runner, flushTimeout time.Duration, link *natsconn.Conn, site *web, log *zap.Logger) error {
	ctx, cancel := context.WithCancelCause(parent)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel(nil)
	watching.Go(func() {
		select {
		case <-ctx.Done():
		case <-link.Closed():
			cancel(link.Err())
		case err := <-site.failed:
			cancel(err)
		}
	})
	returned := killWhenStuck(ctx, flushTimeout+bridgeStopGrace, func() {
		log.Warn("NATS does not answer, cutting the connection", zap.Duration("after", flushTimeout+bridgeStopGrace))
		link.Cut()
	})
	err := b.Run(ctx)
	returned()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	if parent.Err() != nil {
		return err
	}
	// A connection that is closed for good causes other errors in the bridge, perhaps before
	// the watcher has seen it: this one is the reason.
	if failure := link.Err(); failure != nil {
		return failure
	}
	return err
}

// stoppedOr is nil when the start was interrupted because ctx is done.
func stoppedOr(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// warnOfGuests logs what others can do with an embedded server at addr.
func warnOfGuests(log *zap.Logger, addr net.Addr, writes bool) {
	if listensOnLoopback(addr) {
		return
	}
	log.Warn("the embedded NATS server requires no password and can be reached from other machines", zap.Stringer("address", addr))
	if writes {
		log.Warn("writes are on: every client of the embedded NATS server can deploy, stop and delete apps", zap.Stringer("address", addr))
	}
}

func listensOnLoopback(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// newIdentity names this process in the Lease. The host name alone would not do: containers that
// share a host's network share its name and have the same process ids.
func newIdentity() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("read the host name for the lease: %w", err)
	}
	return host + "_" + strings.ToLower(rand.Text()[:12]), nil
}
