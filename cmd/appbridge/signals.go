package main

import (
	"context"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
)

// secondSignalAfter: a second signal sooner than this after the first is a copy of it, as when
// a terminal and a parent process both send SIGINT.
const secondSignalAfter = 500 * time.Millisecond

// stopOnSignal returns a context that ends with the first SIGINT, SIGTERM or SIGHUP; SIGHUP
// that is ignored from the start, as under nohup, stays ignored. The next signal, grace later or
// after that, calls kill, which is expected to end the process at once. stop ends the watching
// and waits for it. Until then a write to a closed pipe is an error and not SIGPIPE.
func stopOnSignal(parent context.Context, log *zap.Logger, grace time.Duration, kill func()) (_ context.Context, stop func()) {
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	pipe := make(chan os.Signal, 1) // a handler turns the signal into an error of the write
	signal.Notify(pipe, syscall.SIGPIPE)
	first, release := signal.NotifyContext(parent, signals...)
	// Its cause is the signal, which some releases of Go do not count as a cancellation.
	ctx, cancel := context.WithCancel(parent)
	context.AfterFunc(first, cancel)
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-done:
			return
		case <-first.Done():
		}
		if parent.Err() != nil {
			return
		}
		name := strings.TrimSuffix(context.Cause(first).Error(), " signal received")
		log.Info("stopping; a second signal exits at once", zap.String("signal", name))
		select {
		case <-done:
			return
		case <-time.After(grace):
		}
		second, release := signal.NotifyContext(context.WithoutCancel(parent), signals...)
		defer release()
		select {
		case <-done:
		case <-second.Done():
			log.Warn("second signal, exiting at once")
			kill()
		}
	})
	return ctx, func() {
		close(done)
		watching.Wait()
		release()
		cancel()
		signal.Stop(pipe)
	}
}

// killWhenStuck calls kill when ctx is done and stop is not called within grace. stop ends the
// watching and waits for it.
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
