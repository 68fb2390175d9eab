package bridge

import (
	"context"
	"errors"
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
	"github.com/appbridge/appbridge/bridge/watch"
)

const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// lead runs sessions, with leader election only while the Lease is held. The
// Lease saves work; that two bridges cannot harm the order is due to the fences.
func (b *Bridge) lead(stop context.Context, k *watch.Cluster) error {
	if !b.cfg.LeaderElect {
		b.metrics.leader.Set(1)
		defer b.metrics.leader.Set(0)
		return b.sessions(context.WithoutCancel(stop), stop, k)
	}
	for stop.Err() == nil {
		if err := b.term(stop, k); err != nil {
			return err
		}
	}
	return nil
}

var errDeposed = errors.New("deposed")

// leads confirms with the API server that this bridge holds the Lease; without
// leader election there is none to hold.
func (b *Bridge) leads(ctx context.Context, k *watch.Cluster) error {
	if !b.cfg.LeaderElect {
		return nil
	}
	name := b.cfg.LeaseNamespace + "/" + b.cfg.LeaseName
	ctx, cancel := context.WithTimeout(ctx, kubeapi.Timeout)
	defer cancel()
	lease, err := k.Clientset.CoordinationV1().Leases(b.cfg.LeaseNamespace).Get(ctx, b.cfg.LeaseName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read Lease %s: %w", name, err)
	}
	switch held := resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec); {
	case held.HolderIdentity != b.cfg.Identity:
		return fmt.Errorf("%w: %q holds Lease %s", errDeposed, held.HolderIdentity, name)
	case time.Since(held.RenewTime.Time) > leaseDuration:
		return fmt.Errorf("lease %s was last renewed at %s", name, held.RenewTime.UTC().Format(time.RFC3339))
	}
	return nil
}

// leases are the Leases of the cluster with the checkpoint in them.
func (b *Bridge) leases(k *watch.Cluster) checkpointLeases {
	return checkpointLeases{k.Clientset.CoordinationV1(), &b.memory.acknowledged, b.newStorage().Checkpoint(), b.log}
}

func (b *Bridge) readCheckpoint(ctx context.Context, k *watch.Cluster, lease types.NamespacedName) error {
	_, err := b.leases(k).Leases(lease.Namespace).Get(ctx, lease.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read Lease %s: %w", lease, err)
	}
	return nil
}

// ownLock is a lock that gives back no Lease but its own. client-go's elector reads the Lease
// before it gives it back, but goes by what it knew of the holder: one that was paused would take
// the Lease from its successor. Only the elector's goroutine uses it.
type ownLock struct {
	resourcelock.Interface
	holder string // as last read
}

func (l *ownLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if err == nil {
		l.holder = record.HolderIdentity
	}
	return record, raw, err
}

func (l *ownLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" && l.holder != l.Identity() {
		return fmt.Errorf("%w: %q holds the Lease", errDeposed, l.holder)
	}
	return l.Interface.Update(ctx, record)
}

func (b *Bridge) term(stop context.Context, k *watch.Cluster) error {
	// Stopping first flushes, then gives the Lease back.
	ctx, cancel := context.WithCancel(context.WithoutCancel(stop))
	defer cancel()
	started := make(chan context.Context, 1)
	var mu sync.Mutex
	leads := false

	b.status.set("waiting for the Lease")
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &ownLock{Interface: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: b.cfg.LeaseNamespace, Name: b.cfg.LeaseName},
			Client:     b.leases(k),
			LockConfig: resourcelock.ResourceLockConfig{Identity: b.cfg.Identity},
		}},
		LeaseDuration:   leaseDuration,
		RenewDeadline:   renewDeadline,
		RetryPeriod:     retryPeriod,
		ReleaseOnCancel: true,
		Name:            b.cfg.LeaseName,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(lead context.Context) { started <- lead },
			OnStoppedLeading: func() {},
			OnNewLeader: func(identity string) {
				if identity != "" && identity != b.cfg.Identity {
					// Another replica publishes: this one is ready.
					b.log.Info("standing by", zap.String("leader", identity))
					mu.Lock()
					defer mu.Unlock()
					if !leads { // client-go may be late with this call
						b.status.set("")
					}
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
	defer func() {
		cancel()
		<-ended
	}()

	select {
	case <-stop.Done():
		return nil
	case <-ended:
		return nil // the Lease was lost before it was used
	case lead := <-started:
		mu.Lock()
		leads = true
		b.status.set("not publishing")
		mu.Unlock()
		b.log.Info("leading", zap.String("lease", b.cfg.LeaseNamespace+"/"+b.cfg.LeaseName), zap.String("identity", b.cfg.Identity))
		b.metrics.leader.Set(1)
		defer b.metrics.leader.Set(0)
		err := b.sessions(lead, stop, k)
		b.memory.acknowledged.Release()
		if err == nil && stop.Err() == nil {
			b.log.Warn("lost the Lease")
		}
		return err
	}
}
