package watch

import (
	"context"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/appbridge/appbridge/bridge/kube"
	"github.com/appbridge/appbridge/bridge/retry"
)

// progressKey is the key of an *atomic.Int64 that counts the parts of a list's answer.
type progressKey struct{}

// Transport counts the bytes of the lists of a Group on their way.
type Transport struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(req)
	if p, ok := req.Context().Value(progressKey{}).(*atomic.Int64); ok && err == nil {
		p.Add(1)
		resp.Body = &countedBody{resp.Body, p}
	}
	return resp, err
}

type countedBody struct {
	io.ReadCloser
	steps *atomic.Int64
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.steps.Add(1)
	}
	return n, err
}

// await cancels a list of which nothing comes for too long, until stop is called.
func (g *Group) await(steps *atomic.Int64, cancel context.CancelCauseFunc) (stop func()) {
	var seen int64
	return every(g.limits.NoProgress, func() (moved bool) {
		now := steps.Load()
		moved, seen = now != seen, now
		return moved
	}, cancel)
}

// every cancels with ErrNoProgress once moved has reported nothing for the limit.
func every(limit time.Duration, moved func() bool, cancel context.CancelCauseFunc) (stop func()) {
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.Tick(limit / silentSteps)
		for silent := 0; silent < silentSteps; {
			select {
			case <-done:
				return
			case <-tick:
			}
			if silent++; moved() {
				silent = 0
			}
		}
		cancel(ErrNoProgress)
	})
	return func() {
		close(done)
		running.Wait()
	}
}

// untilAnswered repeats a request until an API server answers. retried receives the failures.
func untilAnswered(ctx context.Context, request func() error, retried func(error)) error {
	return retry.Do(ctx, func() error {
		err := request()
		if err != nil && !kube.RetryNow(err) {
			return retry.Permanent(err)
		}
		return err
	}, func(err error, _ time.Duration) { retried(err) })
}
