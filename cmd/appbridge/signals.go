package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
)

// secondSignalAfter: a signal sooner after the first is the same wish, sent
// twice, as when a terminal and a parent process both pass on a Ctrl-C.
const secondSignalAfter = 500 * time.Millisecond

// catchSignals delivers the signals that stop a command: SIGINT, SIGTERM, and SIGHUP
// unless it is ignored from the start, as under nohup. A reader of
// standard output or standard error that is gone is an error of the write from now on,
// where SIGPIPE would end the process in the middle of its work.
func catchSignals() (signals chan os.Signal, stop func()) {
	signals = make(chan os.Signal, 2)
	hangup := !signal.Ignored(syscall.SIGHUP)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	if hangup {
		signal.Notify(signals, syscall.SIGHUP)
	}
	// A handler is what turns the signal into an error; nobody has to read it.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	return signals, func() {
		signal.Stop(signals)
		signal.Stop(broken)
	}
}

// stopOnSignal returns a context that ends with the first signal. A second one
// calls kill, which is expected to end the process at once. stop ends the
// watching and waits for it.
func stopOnSignal(ctx context.Context, signals <-chan os.Signal, log *zap.Logger, kill func()) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		var first time.Time
		for {
			select {
			case <-done:
				return
			case s := <-signals:
				switch {
				case first.IsZero():
					first = time.Now()
					log.Info("stopping; a second signal exits at once", zap.Stringer("signal", s))
					cancel()
				case time.Since(first) >= secondSignalAfter:
					log.Warn("second signal, exiting at once", zap.Stringer("signal", s))
					kill()
					return
				}
			}
		}
	})
	return ctx, func() {
		close(done)
		watching.Wait()
		cancel()
	}
}

// killWhenStuck calls kill when ctx is done and what it returns is not called
// within grace. That ends the watching and waits for it.
func killWhenStuck(ctx context.Context, grace time.Duration, kill func()) (stop func()) {
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-over:
			return
		case <-ctx.Done():
		}
		select {
		case <-over:
		case <-time.After(grace):
			kill()
		}
	})
	return func() {
		close(over)
		watching.Wait()
	}
}
