package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/zap"
)

const embeddedReadyTimeout = 30 * time.Second

// embedded is a JetStream server inside this process. A nil one is no server.
type embedded struct {
	options server.Options // of each server that runs here, one after another
	dir     string         // as it was configured
	limit   int64          // nats-embedded-max-bytes
	url     string
	addr    net.Addr
	lock    *os.File // of dir
	log     *zap.Logger
	server  *server.Server // of the start, then of supervise, then of stop

	mu      sync.Mutex
	trouble error // why the server cannot write, nil when it can
	alarmed bool  // the server logged that the disk is full

	supervising sync.WaitGroup
	cancel      context.CancelFunc
}

// startEmbedded runs a server that listens on listen and keeps its streams in
// dir, up to limit bytes of them, and returns when clients can connect. A limit
// of 0 is three quarters of the space that the disk has for them.
func startEmbedded(ctx context.Context, listen, dir string, limit int64, log *zap.Logger) (*embedded, error) {
	host, portText, splitErr := net.SplitHostPort(listen)
	port, err := strconv.Atoi(portText)
	if err := cmp.Or(splitErr, err); err != nil {
		return nil, fmt.Errorf("nats-embedded-listen %s: %w", listen, err)
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	if err := checkFree(ctx, listen); err != nil {
		return nil, err
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("nats-embedded-dir %s: %w", dir, err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, fmt.Errorf("nats-embedded-dir %s: %w", dir, err)
	}
	e := &embedded{
		options: server.Options{
			ServerName: "appbridge",
			Host:       host,
			Port:       port,
			JetStream:  true,
			StoreDir:   dir,
			NoSigs:     true,
			// A reader of logs that does not keep up is its own problem alone.
			NoFastProducerStall: true,
		},
		dir: dir, limit: limit, lock: lock, log: log,
	}
	warnOfReaders(log, dir)
	if err := e.startServer(ctx); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	e.addr = e.server.Addr()
	e.url = localURL(e.addr)
	if tcp, ok := e.addr.(*net.TCPAddr); ok {
		e.options.Port = tcp.Port // clients find the next one where they found the first
	}
	ctx, e.cancel = context.WithCancel(context.WithoutCancel(ctx)) // until stop
	e.supervising.Go(func() { e.supervise(ctx) })
	return e, nil
}

// startServer runs a server, the first or the next one.
func (e *embedded) startServer(ctx context.Context) error {
	e.options.JetStreamMaxStore = e.maxStore()
	options := e.options // the server keeps and changes what it is given
	s, err := server.NewServer(&options)
	if err != nil {
		return fmt.Errorf("embedded NATS server: %w", err)
	}
	output := &serverLog{log: e.log.Sugar(), full: e.noteFull}
	s.SetLogger(output, false, false)
	s.Start()
	if err := awaitReady(ctx, s, output, e.options); err != nil {
		s.Shutdown()
		s.WaitForShutdown()
		return err
	}
	if stored := s.JetStreamConfig(); stored != nil {
		e.log.Info("the embedded NATS server has a limit for its streams", zap.Int64("maxBytes", stored.MaxStore), zap.String("dir", e.dir))
	}
	e.server = s
	return nil
}

// checkFree finds out whether the server will be able to listen, before anything is on disk.
func checkFree(ctx context.Context, listen string) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("nats-embedded-listen %s: %w; choose another with --nats-embedded-listen", listen, rootCause(err))
	}
	return listener.Close()
}

// awaitReady waits until clients can connect. What made the server give up is in its log alone.
func awaitReady(ctx context.Context, s *server.Server, output *serverLog, options server.Options) error {
	listen := net.JoinHostPort(options.Host, strconv.Itoa(max(options.Port, 0)))
	if fatal := output.fatal.Load(); fatal != nil {
		return fmt.Errorf("embedded NATS server (nats-embedded-listen %s, nats-embedded-dir %s): %w", listen, options.StoreDir, *fatal)
	}
	deadline := time.Now().Add(embeddedReadyTimeout)
	for !s.ReadyForConnections(100 * time.Millisecond) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("embedded NATS server on %s: not ready after %s", listen, embeddedReadyTimeout)
		}
	}
	return nil
}

// localURL is how this process reaches a server that listens on addr.
func localURL(addr net.Addr) string {
	host, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return "nats://" + addr.String()
	}
	if net.ParseIP(host).IsUnspecified() {
		// Of IPv6 as well: such a socket takes IPv4 too, and a pod without IPv6 has no ::1.
		host = "127.0.0.1"
	}
	return "nats://" + net.JoinHostPort(host, port)
}

// stop ends the server and returns when everything is on disk.
func (e *embedded) stop() {
	if e == nil {
		return
	}
	e.cancel()
	e.supervising.Wait()
	e.stopServer()
	if err := e.lock.Close(); err != nil {
		e.log.Warn("cannot release the lock of the data folder", zap.Error(err))
	}
}

func (e *embedded) stopServer() {
	e.server.Shutdown()
	e.server.WaitForShutdown()
}

// serverLog sends the server's log to ours. Its notices (a banner, every
// listener, every recovered stream) are details here. A fatal line means that
// the server gave up; what this process does about it is decided elsewhere.
type serverLog struct {
	log *zap.SugaredLogger
	// full is called, with locks of the server held, when a line is about a disk that is full.
	full  func(error)
	fatal atomic.Pointer[error] // the first one
}

func (l *serverLog) Noticef(format string, v ...any) { l.log.Debugf(format, v...) }
func (l *serverLog) Debugf(format string, v ...any)  { l.log.Debugf(format, v...) }
func (l *serverLog) Tracef(format string, v ...any)  { l.log.Debugf(format, v...) }

func (l *serverLog) Warnf(format string, v ...any) {
	l.look(v)
	l.log.Warnf(format, v...)
}

func (l *serverLog) Errorf(format string, v ...any) {
	l.look(v)
	l.log.Errorf(format, v...)
}

func (l *serverLog) look(v []any) {
	for _, arg := range v {
		if err, ok := arg.(error); ok && noRoom(err.Error()) {
			l.full(err)
		}
	}
}

func (l *serverLog) Fatalf(format string, v ...any) {
	err := fmt.Errorf(format, v...)
	for _, arg := range v {
		if cause, ok := arg.(error); ok {
			err = rootCause(cause)
		}
	}
	l.log.Debugf(format, v...)
	l.fatal.CompareAndSwap(nil, &err)
}

// lockDir makes dir if it is missing and takes its lock, which ends with the file and the process.
// It keeps a second process out: two servers would destroy each other's streams.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, rootCause(err)
	}
	file, err := os.OpenFile(filepath.Join(dir, "appbridge.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, rootCause(err)
	}
	if err := flock(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
