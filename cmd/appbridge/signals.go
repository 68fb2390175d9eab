package main

import (
	"context"
	"os"
	"sync"

	"go.uber.org/zap"
)

// stopOnSignal returns a context that ends with the first signal. A second one
// calls kill, which is expected to end the process at once. stop ends the
// watching and waits for it.
func stopOnSignal(ctx context.Context, signals <-chan os.Signal, log *zap.Logger, kill func()) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for count := 1; ; count++ {
			select {
			case <-done:
				return
			case s := <-signals:
				if count > 1 {
					log.Warn("second signal, exiting at once", zap.Stringer("signal", s))
					kill()
					return
				}
				log.Info("stopping; a second signal exits at once", zap.Stringer("signal", s))
				cancel()
			}
		}
	})
	return ctx, func() {
		close(done)
		watching.Wait()
		cancel()
	}
}
