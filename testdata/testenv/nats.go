package testenv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/appbridge/appbridge/testdata/testenv/network"
)

// NATSOptions describe nats-server processes. The zero value is a single one.
type NATSOptions struct {
	// Servers is 1, or 3 for a cluster. 0: 1.
	Servers int
	// Version is that of the servers, as [OlderNATSServer] takes it. Empty: the version that this
	// module embeds.
	Version string
	// MaxPayload is the largest message in bytes. 0: the server's own default.
	MaxPayload int32
	// Account has clients without credentials use an account of their own instead of the global
	// one, which takes no limits.
	Account bool
	// Logf, when set, is told what takes time. It may be testing.T's.
	Logf func(format string, args ...any)

	address func() (string, error) // chooses addresses; nil: the guard
}

// NATS is one nats-server or a cluster of three, with JetStream on disk. Its
// methods may be called from several goroutines, but those that start or end
// the same server one after the other.
//
// Servers that lose each other find that out in seconds: a new leader is
// elected 4 to 9 s after the old one was last heard of, and a leader that hears
// of no majority steps down after 10 to 20 s.
type NATS struct {
	bin     string // of nats-server
	guard   *guard
	servers []*natsServer
	routes  map[[2]int]*network.Proxy // from the first to the second
	account bool
	logf    func(format string, args ...any)
}

// natsServer is one process, or its place while it does not run.
type natsServer struct {
	name, config, log              string
	client, cluster, monitor, data string

	mu      sync.Mutex
	process *Process // the last one; nil: there was none
}

// StartNATS starts the servers and returns when JetStream serves. Whoever
// starts them has to Close them; should this process be killed first, they and
// their files go with it.
func StartNATS(ctx context.Context, opts NATSOptions) (*NATS, error) {
	began := time.Now()
	opts.Servers = cmp.Or(opts.Servers, 1)
	if opts.Servers != 1 && opts.Servers != 3 {
		return nil, fmt.Errorf("start NATS: %d servers, want 1 or 3", opts.Servers)
	}
	path, err := NATSServer()
	if opts.Version != "" {
		path, err = OlderNATSServer(opts.Version)
	}
	if err != nil {
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	var n *NATS
	err = startAgain(func() (err error) {
		n, err = startNATS(ctx, path, opts)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	n.logf("nats: %d servers serve at %s after %s", n.Size(), n.URL(), since(began))
	return n, nil
}

func startNATS(ctx context.Context, path string, opts NATSOptions) (n *NATS, err error) {
	n = &NATS{bin: path, logf: opts.Logf, account: opts.Account, routes: map[[2]int]*network.Proxy{}}
	if n.logf == nil {
		n.logf = func(string, ...any) {}
	}
	if n.guard, err = newGuard(); err != nil {
		return nil, err
	}
	if opts.address == nil {
		opts.address = n.guard.address
	}
	if err := n.start(ctx, opts); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *NATS) start(ctx context.Context, opts NATSOptions) error {
	if err := n.configure(opts); err != nil {
		return err
	}
	for i := range n.servers {
		if err := n.Start(ctx, i); err != nil {
			return err
		}
	}
	return n.WaitHealthy(ctx)
}

// Size is the number of servers, running or not.
func (n *NATS) Size() int { return len(n.servers) }

// URL has the client URLs of all servers, separated by commas.
func (n *NATS) URL() string {
	urls := make([]string, n.Size())
	for i := range urls {
		urls[i] = n.ServerURL(i)
	}
	return strings.Join(urls, ",")
}

// ServerURL is the client URL of one server. It stays the same.
func (n *NATS) ServerURL(i int) string { return "nats://" + n.servers[i].client }

// Running tells whether a server's process is there.
func (n *NATS) Running(i int) bool { return n.servers[i].running() != nil }

func (s *natsServer) running() *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return nil
	}
	select {
	case <-s.process.Done():
		return nil
	default:
		return s.process
	}
}

// Start starts a server, again or for the first time, and returns when it
// accepts connections; the cluster may need longer. WaitHealthy waits for that.
func (n *NATS) Start(ctx context.Context, i int) error {
	s := n.servers[i]
	if s.running() != nil {
		return fmt.Errorf("start %s: it runs", s.name)
	}
	process, err := n.guard.run(s.name, s.log, n.bin, "--config", s.config)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.process = process
	s.mu.Unlock()
	if err := s.waitAccepts(ctx, process); err != nil {
		return errors.Join(fmt.Errorf("start %s: %w\n%s", s.name, err, quoteLog(s.name, s.log)), inUse(s.log))
	}
	return nil
}

// waitAccepts waits until the server greets a client, or has ended.
func (s *natsServer) waitAccepts(ctx context.Context, process *Process) error {
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	for {
		err := accepts(ctx, s.client)
		if err == nil {
			return nil
		}
		select {
		case <-process.Done():
			return errors.New("it ended")
		default:
		}
		if ended := pause(ctx); ended != nil {
			return fmt.Errorf("%w: %w", ended, err)
		}
	}
}

// Kill ends a server as a crash would. One that does not run is no error.
func (n *NATS) Kill(i int) error {
	process := n.servers[i].running()
	if process == nil {
		return nil
	}
	return process.Kill()
}

// Stop ends a server in good order: it hands over what it leads. One that does
// not run is no error, nor is an exit code: its log tells of that.
func (n *NATS) Stop(i int) error {
	process := n.servers[i].running()
	if process == nil {
		return nil
	}
	err := process.Stop(serverTimeout)
	if ignoreExit(err) == nil {
		return process.left
	}
	return err
}

// Isolate parts a server of a cluster from the others: nothing gets through
// between them, and nobody is told. Clients still reach all of them. A second
// one is isolated in addition to the first.
func (n *NATS) Isolate(i int) error {
	if n.Size() == 1 {
		return errors.New("isolate: there is but one server")
	}
	var errs []error
	for pair, proxy := range n.routes {
		if pair[0] == i || pair[1] == i {
			errs = append(errs, proxy.Hang())
		}
	}
	return errors.Join(errs...)
}

// Heal ends every partition. The servers need some seconds to find each other;
// WaitHealthy waits for that.
func (n *NATS) Heal() error {
	var errs []error
	for _, proxy := range n.routes {
		errs = append(errs, proxy.Heal())
	}
	return errors.Join(errs...)
}

// Close ends all servers and removes their files. It may be called twice.
func (n *NATS) Close() error {
	if n.guard == nil {
		return nil
	}
	var errs []error
	for i := range n.servers {
		errs = append(errs, n.Kill(i))
	}
	for _, proxy := range n.routes {
		errs = append(errs, proxy.Close())
	}
	errs = append(errs, n.guard.close())
	n.guard = nil
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close NATS: %w", err)
	}
	return nil
}
