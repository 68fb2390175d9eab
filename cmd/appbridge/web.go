package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

const (
	webStopTimeout = time.Second
	// webMaxHeaderBytes is what a scraper or a probe sends several times over.
	webMaxHeaderBytes = 16 << 10
)

// webTimeouts end connections of clients that send or read too slowly, or nothing.
type webTimeouts struct {
	// read is for a whole request, and write for its answer: of the metrics a scraper gets more
	// than 100 KB.
	read, write time.Duration
	// idle is how long a connection waits for its next request. A scraper comes within 60 s.
	idle time.Duration
}

func defaultWebTimeouts() webTimeouts {
	return webTimeouts{read: 5 * time.Second, write: 30 * time.Second, idle: 2 * time.Minute}
}

// newRegistry holds the metrics of the process; the bridge adds its own.
func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	build := currentBuild()
	promauto.With(reg).NewGauge(prometheus.GaugeOpts{
		Name:        "appbridge_build_info",
		Help:        "Always 1; the labels identify the program.",
		ConstLabels: prometheus.Labels{"version": build.Version, "commit": build.Commit, "go_version": build.Go},
	}).Set(1)
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// newHandler serves the metrics of reg, liveness, and readiness by ready, which is called for
// every request. With profiles, it serves those of the Go runtime too.
func newHandler(reg *prometheus.Registry, ready func() error, profiles bool, log *zap.Logger) http.Handler {
	mux := http.NewServeMux()
	if profiles {
		// Not the command line, which may have passwords.
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{Registry: reg, ErrorLog: zap.NewStdLog(log)}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			answer(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		answer(w, http.StatusOK, "ok")
	})
	return mux
}

func answer(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body+"\n") // the client may be gone
}

type web struct {
	server *http.Server
	addr   net.Addr
	failed chan error // gets one error when serving ends unasked, closed when it has ended
}

func startWeb(ctx context.Context, listen string, handler http.Handler, timeouts webTimeouts, log *zap.Logger) (*web, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("http-listen %s: %w; choose another with --http-listen", listen, rootCause(err))
	}
	w := &web{
		server: &http.Server{
			Handler: handler, MaxHeaderBytes: webMaxHeaderBytes, ErrorLog: zap.NewStdLog(log),
			ReadHeaderTimeout: timeouts.read, ReadTimeout: timeouts.read, WriteTimeout: timeouts.write, IdleTimeout: timeouts.idle,
		},
		addr:   listener.Addr(),
		failed: make(chan error, 1),
	}
	go func() {
		defer close(w.failed)
		if err := w.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			w.failed <- fmt.Errorf("serve HTTP on %s: %w", w.addr, err)
		}
	}()
	return w, nil
}

// stop lets running requests end for a moment, then cuts them off. It returns
// when nothing of the server runs any more.
func (w *web) stop() {
	// The process is stopping: there is no live context to derive this from.
	ctx, cancel := context.WithTimeout(context.Background(), webStopTimeout)
	defer cancel()
	if err := w.server.Shutdown(ctx); err != nil {
		_ = w.server.Close() // cutting off is all that is left
	}
	for range w.failed { // until it is closed
	}
}

// rootCause is an error of package net or os without the operation and its operand, for
// lines that name them.
func rootCause(err error) error {
	if opError, ok := errors.AsType[*net.OpError](err); ok {
		return opError.Err
	}
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError.Err
	}
	return err
}
