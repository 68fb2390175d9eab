package bridge

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/audit"
	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/subjects"
)

// Verify compares the cluster, the stream and the bucket with what a Bridge with cfg should have
// published, also while one runs. Without opts.Repair it changes nothing. The connection must have
// been made with natsconn.Options.
//
// An error means that something could not be read or repaired. The report is never nil; with an
// error it has what was found before.
func Verify(ctx context.Context, cfg Config, kube *rest.Config, nc *nats.Conn, log *zap.Logger, opts audit.Options) (*audit.Report, error) {
	var lease types.NamespacedName
	if cfg.LeaderElect {
		lease = types.NamespacedName{Namespace: cfg.LeaseNamespace, Name: cfg.LeaseName}
	}
	cfg.LeaderElect, cfg.AcceptReset = false, false
	b, err := New(cfg, kube, nc, log, prometheus.NewRegistry())
	if err != nil {
		return audit.NewReport(), err
	}
	k, err := watch.NewCluster(kube, cfg.Namespaces, b.source, b.conn, log)
	if err != nil {
		return audit.NewReport(), err
	}
	cluster := watch.ClusterReader{Cluster: k}
	v := &audit.Verifier{
		Target: b.target(k.Namespaces), Options: opts, Log: log, Cluster: cluster.Read,
		Connect: func(ctx context.Context) error {
			uid, err := k.UID(ctx)
			b.clusterUID = string(uid)
			if err != nil {
				return err
			}
			return cluster.CheckNamespaces(ctx)
		},
		Session: func(ctx context.Context, timeout time.Duration, doubtful []subjects.AppID) error {
			once, err := New(b.cfg, kube, nc, log.Named("repair"), prometheus.NewRegistry())
			if err != nil {
				return err
			}
			once.clusterUID, once.repairs = b.clusterUID, true
			once.memory.doubts.add(doubtful)
			if lease.Name != "" {
				// No sequence that a bridge has seen acknowledged may be used again.
				if err := audit.UntilAnswered(ctx, log, opts.Timeout, "Kubernetes", func(ctx context.Context) error { return once.readCheckpoint(ctx, k, lease) }); err != nil {
					return err
				}
			}
			return once.runUntilReady(ctx, timeout)
		},
	}
	return v.Run(ctx)
}

func (b *Bridge) target(namespaces []string) *audit.Target {
	return &audit.Target{
		JetStream: b.js, Subjects: b.subjects,
		ClusterName: b.cfg.ClusterName, Stream: b.cfg.Stream, Bucket: b.cfg.Bucket,
		Watched: plan.Watching(namespaces), Connected: b.checkConnection, Storage: b.newStorage, Entries: b.newBucket(b.js),
		Shape: b.cfg.shape(),
		Encoder: func(maxSize int64) *app.Encoder {
			return b.newEncoder(func() int { return store.MaxMessage(b.nc, maxSize) })
		},
	}
}

func (b *Bridge) runUntilReady(parent context.Context, timeout time.Duration) error {
	ctx, stop := context.WithCancel(parent)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	limit := time.After(timeout)
	tick := time.Tick(20 * time.Millisecond)
	for b.Ready() != nil {
		select {
		case err := <-done:
			return err
		case <-limit:
			why := b.Ready()
			stop()
			return errors.Join(fmt.Errorf("not done within %s: %w", timeout, why), <-done)
		case <-parent.Done():
			return errors.Join(context.Cause(parent), <-done)
		case <-tick:
		}
	}
	stop()
	return <-done
}
