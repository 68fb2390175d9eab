package main

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"golang.org/x/sync/errgroup"

	"github.com/appbridge/appbridge/testdata/testenv"
)

const (
	churnWriters = 16
	churnSteps   = 20 // lines
	churnRetry   = 200 * time.Millisecond
)

// playChurn creates and deletes many apps, through the real API server, with so many
// alive at a time, and shows what a bridge keeps of those that are gone.
func playChurn(ctx context.Context, w *world) error {
	w.out.heading("Creating and deleting %d apps, %d alive at a time", w.cfg.count, w.cfg.apps)
	b := w.bridges[0]
	began := time.Now()
	step := max(w.cfg.count/churnSteps, 1)
	for done := 0; done < w.cfg.count; {
		next := min(done+step, w.cfg.count)
		if err := w.churn(ctx, done, next); err != nil {
			return err
		}
		done = next
		if err := poll(ctx, settlePatience, func(ctx context.Context) string {
			s := b.look(ctx)
			if !s.answered || s.metrics[metricPending] > 0 || s.metrics[metricLag] > 0 {
				return fmt.Sprintf("%.0f changes wait for the stream, the bucket is %.0f events behind", s.metrics[metricPending], s.metrics[metricLag])
			}
			return ""
		}); err != nil {
			return err
		}
		m, err := memoryOf(b)
		if err != nil {
			return err
		}
		heap := b.look(ctx).metrics["go_memstats_heap_alloc_bytes"] / mebibyte
		w.out.now("%8d apps: resident %s, at most %s, heap %.0f MiB; %.0f apps a second; %.0f rounds of the audit",
			done, m.resident, m.peak, heap, float64(done)/time.Since(began).Seconds(), w.rounds())
	}
	return w.appbridgeVerify(ctx)
}

// churn creates the apps from one number up to another, and deletes those that are
// too many then.
func (w *world) churn(ctx context.Context, from, to int) error {
	g, ctx := errgroup.WithContext(ctx)
	for writer := range churnWriters {
		g.Go(func() error {
			for n := from + writer; n < to; n += churnWriters {
				if err := insistOn(ctx, func() error {
					_, err := w.cluster.Create(ctx, churnApp(n))
					return ignore(err, apierrors.IsAlreadyExists)
				}); err != nil {
					return err
				}
				if n < w.cfg.apps {
					continue
				}
				if err := insistOn(ctx, func() error {
					return ignore(w.cluster.Delete(ctx, churnApp(n-w.cfg.apps).Service()), apierrors.IsNotFound)
				}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

func ignore(err error, what func(error) bool) error {
	if what(err) {
		return nil
	}
	return err
}

// insistOn tries again what a busy API server refused.
func insistOn(ctx context.Context, do func() error) (err error) {
	for range 20 {
		if err = do(); err == nil {
			return nil
		}
		if testenv.Pause(ctx, churnRetry) != nil {
			return ctx.Err()
		}
	}
	return err
}

func churnApp(n int) testenv.App {
	return testenv.App{Project: "churn", Domain: "production", Name: fmt.Sprintf("churn-%07d", n)}
}
