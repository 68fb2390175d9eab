package bridge

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	kubeapi "github.com/appbridge/appbridge/bridge/kube"
	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/bridge/watch"
)

// lead runs sessions, with leader election only while the Lease is held. The
// Lease saves work; that two bridges cannot harm the order is due to the fences.
func (b *Bridge) lead(stop context.Context, k *watch.Cluster) error {
	if !b.cfg.LeaderElect {
		b.metrics.leader.Set(1)
		err := b.sessions(context.WithoutCancel(stop), stop, k)
		b.metrics.leader.Set(0)
		return b.yield(stop, err)
	}
	for stop.Err() == nil {
		if err := b.yield(stop, b.term(stop, k)); err != nil {
			return err
		}
	}
	return nil
}

func (b *Bridge) leaseName() string { return b.cfg.LeaseNamespace + "/" + b.cfg.LeaseName }

// leads confirms with the API server that this bridge holds the Lease; without
// leader election there is none to hold.
func (b *Bridge) leads(ctx context.Context, k *watch.Cluster) error {
	if !b.cfg.LeaderElect {
		return nil
	}
	name := b.leaseName()
	ctx, cancel := context.WithTimeout(ctx, kubeapi.Timeout)
	defer cancel()
	lease, err := k.Clientset.CoordinationV1().Leases(b.cfg.LeaseNamespace).Get(ctx, b.cfg.LeaseName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read Lease %s: %w", name, err)
	}
	if holder := resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec).HolderIdentity; holder != b.cfg.Identity {
		return fmt.Errorf("%w: %q holds Lease %s", errDeposed, holder, name)
	}
	return b.lease.held(b.cfg.Identity)
}

// leases are the Leases of the cluster with the checkpoint in them.
func (b *Bridge) leases(k *watch.Cluster) checkpointLeases {
	return checkpointLeases{k.Clientset.CoordinationV1(), &b.memory.acknowledged, b.newStorage().Checkpoint(), b.log, &b.lease}
}

func (b *Bridge) readCheckpoint(ctx context.Context, k *watch.Cluster, lease types.NamespacedName) error {
	_, err := b.leases(k).Leases(lease.Namespace).Get(ctx, lease.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read Lease %s: %w", lease, err)
	}
	return nil
}

// term waits for the Lease and runs sessions while it is held.
func (b *Bridge) term(stop context.Context, k *watch.Cluster) error {
	// Stopping first flushes, then gives the Lease back.
	ctx, cancel := context.WithCancel(context.WithoutCancel(stop))
	defer cancel()
	started := make(chan context.Context, 1)
	b.lease.enter(leaseWanted) // readiness reports the wait
	b.status.set("")
	lock := &notedLock{&resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: b.cfg.LeaseNamespace, Name: b.cfg.LeaseName},
		Client:     b.leases(k),
		LockConfig: resourcelock.ResourceLockConfig{Identity: b.cfg.Identity},
	}, &b.lease}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          lock,
		LeaseDuration: leaseDuration,
		RenewDeadline: renewDeadline,
		RetryPeriod:   retryPeriod,
		Name:          b.cfg.LeaseName,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(lead context.Context) { started <- lead },
			OnStoppedLeading: func() {},
			OnNewLeader: func(identity string) {
				if identity != "" && identity != b.cfg.Identity {
					b.log.Info("standing by", zap.String("leader", identity))
				}
			},
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		elector.Run(ctx)
	}()
	defer b.memory.acknowledged.Release() // after giving the Lease back, which writes the checkpoint
	defer func() {
		cancel()
		<-ended
		if b.lease.held(b.cfg.Identity) != nil {
			return // also if it was never held
		}
		if err := giveBack(context.WithoutCancel(stop), lock); err != nil {
			b.log.Warn("the Lease is not given back", zap.Error(err))
		}
	}()

	select {
	case <-stop.Done():
		return nil
	case <-ended:
		return nil // the Lease was lost before it was used
	case lead := <-started:
		return b.serveTerm(lead, stop, k)
	}
}

// leaseCheck is how often a leader checks that it holds the Lease, and once more when that expires.
const leaseCheck = time.Second

// serveTerm runs sessions until lead ends or the Lease is not held: client-go's elector may be
// blocked in a request, and it tries for a while to renew what another replica holds.
func (b *Bridge) serveTerm(lead, stop context.Context, k *watch.Cluster) error {
	b.status.set("not publishing")
	b.lease.enter(leaseGranted)
	b.log.Info("leading", zap.String("lease", b.leaseName()), zap.String("identity", b.cfg.Identity))
	b.metrics.leader.Set(1)
	lead, end := context.WithCancelCause(lead)
	var checking sync.WaitGroup
	checking.Go(func() {
		defer func() {
			b.lease.enter(leaseWanted) // not ready, although the last session may still be ending
			b.metrics.leader.Set(0)
		}()
		for retry.Wait(lead, min(b.lease.left(), leaseCheck)) == nil {
			if err := b.lease.held(b.cfg.Identity); err != nil {
				end(err)
			}
		}
	})
	defer checking.Wait()
	defer end(nil)
	err := b.sessions(lead, stop, k)
	if err == nil && stop.Err() == nil {
		b.log.Warn("lost the Lease", zap.NamedError("cause", b.lease.held(b.cfg.Identity)))
	}
	return err
}
