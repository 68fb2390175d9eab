package bridge

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// lead runs sessions, with leader election only while the Lease is held. The
// Lease saves work; that two bridges cannot harm the order is the fence's doing.
func (b *Bridge) lead(stop context.Context, k *kube) error {
	if !b.cfg.LeaderElect {
		b.metrics.leader.Set(1)
		defer b.metrics.leader.Set(0)
		return b.sessions(context.WithoutCancel(stop), stop, k)
	}
	clientset, err := kubernetes.NewForConfig(b.rest)
	if err != nil {
		return fmt.Errorf("create the client for the Lease: %w", err)
	}
	for stop.Err() == nil {
		if err := b.term(stop, clientset, k); err != nil {
			return err
		}
	}
	return nil
}

// term waits for the Lease and publishes while it is held.
func (b *Bridge) term(stop context.Context, clientset kubernetes.Interface, k *kube) error {
	// Stopping first flushes, then gives the Lease back.
	ctx, cancel := context.WithCancel(context.WithoutCancel(stop))
	defer cancel()
	leading := make(chan struct{})
	finished := make(chan error, 1)
	unhook := context.AfterFunc(stop, func() {
		select {
		case <-leading: // the sessions see stop themselves
		default:
			cancel()
		}
	})
	defer unhook()

	b.setStatus("waiting for the Lease")
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: b.cfg.LeaseNamespace, Name: b.cfg.LeaseName},
			Client:     clientset.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: b.cfg.Identity},
		},
		LeaseDuration:   leaseDuration,
		RenewDeadline:   renewDeadline,
		RetryPeriod:     retryPeriod,
		ReleaseOnCancel: true,
		Name:            b.cfg.LeaseName,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(lead context.Context) {
				close(leading)
				b.log.Info("leading", zap.String("lease", b.cfg.LeaseNamespace+"/"+b.cfg.LeaseName), zap.String("identity", b.cfg.Identity))
				b.metrics.leader.Set(1)
				defer b.metrics.leader.Set(0)
				finished <- b.sessions(lead, stop, k)
				cancel()
			},
			OnStoppedLeading: func() {},
			OnNewLeader: func(identity string) {
				if identity != b.cfg.Identity {
					// Somebody publishes: this replica does its work by waiting.
					b.log.Info("standing by", zap.String("leader", identity))
					b.setStatus("")
				}
			},
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	elector.Run(ctx)
	select {
	case <-leading:
		err := <-finished
		if err == nil && stop.Err() == nil {
			b.log.Warn("lost the Lease; standing by")
		}
		return err
	default:
		if stop.Err() == nil && ctx.Err() == nil {
			return errors.New("leader election ended without reason")
		}
		return nil
	}
}
