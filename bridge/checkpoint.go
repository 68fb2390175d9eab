package bridge

import (
	"context"
	"encoding/json"

	"go.uber.org/zap"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/appbridge/appbridge/bridge/store"
)

// checkpointAnnotation of the Lease holds a checkpoint as JSON.
const checkpointAnnotation = "appbridge.flyte.org/acknowledged"

// checkpointLeases adds the checkpoint to what leader election reads and writes: no request more,
// no right more.
type checkpointLeases struct {
	coordinationv1client.LeasesGetter
	known *store.Acknowledged
	// of is what the checkpoint has to be of; its StreamID and sequences do not count.
	of  store.Checkpoint
	log *zap.Logger
}

func (l checkpointLeases) Leases(namespace string) coordinationv1client.LeaseInterface {
	return checkpointLease{LeaseInterface: l.LeasesGetter.Leases(namespace), leases: l}
}

type checkpointLease struct {
	coordinationv1client.LeaseInterface
	leases checkpointLeases
}

func (l checkpointLease) Get(ctx context.Context, name string, opts metav1.GetOptions) (*coordinationv1.Lease, error) {
	lease, err := l.LeaseInterface.Get(ctx, name, opts)
	if err == nil {
		l.read(lease)
	}
	return lease, err
}

func (l checkpointLease) Create(ctx context.Context, lease *coordinationv1.Lease, opts metav1.CreateOptions) (*coordinationv1.Lease, error) {
	return l.LeaseInterface.Create(ctx, l.annotated(lease), opts)
}

func (l checkpointLease) Update(ctx context.Context, lease *coordinationv1.Lease, opts metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	return l.LeaseInterface.Update(ctx, l.annotated(lease), opts)
}

func (l checkpointLease) read(lease *coordinationv1.Lease) {
	text := lease.Annotations[checkpointAnnotation]
	if text == "" {
		return
	}
	var w store.Checkpoint
	if err := json.Unmarshal([]byte(text), &w); err != nil {
		l.leases.log.Warn("the Lease's annotation cannot be read", zap.String("annotation", checkpointAnnotation), zap.String("value", text), zap.Error(err))
		return
	}
	of := l.leases.of
	of.StreamID = w.StreamID
	if w.SameHistory(of) {
		l.leases.known.Merge(w)
	}
}

// annotated is the Lease with the present checkpoint. A bridge that knows of no acknowledgement
// leaves the annotation as it is.
func (l checkpointLease) annotated(lease *coordinationv1.Lease) *coordinationv1.Lease {
	now := l.leases.known.Checkpoint()
	if now.StreamID == "" {
		return lease
	}
	text, err := json.Marshal(now)
	if err != nil {
		l.leases.log.DPanic("encode the checkpoint", zap.Error(err))
		return lease
	}
	lease = lease.DeepCopy()
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, checkpointAnnotation, string(text))
	return lease
}
