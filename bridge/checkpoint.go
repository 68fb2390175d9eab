package bridge

import (
	"context"
	"encoding/json"
	"fmt"

	"go.uber.org/zap"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	of    store.Checkpoint
	log   *zap.Logger
	lease *lease
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
	switch {
	case err == nil:
		l.read(lease)
	case apierrors.IsNotFound(err):
		l.leases.known.ReadLease(store.LeaseCheckpoint{})
		l.leases.lease.share(nil)
	}
	return lease, err
}

func (l checkpointLease) Create(ctx context.Context, lease *coordinationv1.Lease, opts metav1.CreateOptions) (*coordinationv1.Lease, error) {
	return l.LeaseInterface.Create(ctx, l.annotated(lease), opts)
}

func (l checkpointLease) Update(ctx context.Context, lease *coordinationv1.Lease, opts metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	return l.LeaseInterface.Update(ctx, l.annotated(lease), opts)
}

// read notes the Lease's checkpoint. One of another cluster, stream or bucket is none.
func (l checkpointLease) read(lease *coordinationv1.Lease) {
	c := store.LeaseCheckpoint{
		Source: fmt.Sprintf("the annotation %s of Lease %s/%s", checkpointAnnotation, lease.Namespace, lease.Name),
		Value:  lease.Annotations[checkpointAnnotation],
	}
	var other error
	if c.Value != "" {
		c.Err = json.Unmarshal([]byte(c.Value), &c.Checkpoint)
		of := l.leases.of
		of.StreamID = c.StreamID
		if c.Err == nil && (c.StreamName != of.StreamName || c.BucketName != of.BucketName) {
			other = fmt.Errorf("bridges of stream %q and bucket %q use Lease %s/%s: give those of each stream one of their own with --lease-name",
				c.StreamName, c.BucketName, lease.Namespace, lease.Name)
		}
		if c.Err == nil && !c.SameHistory(of) {
			c.Checkpoint = store.Checkpoint{}
		}
	}
	if l.leases.lease.share(other) {
		l.leases.log.Warn("bridges of another stream use the Lease", zap.Error(other))
	}
	if l.leases.known.ReadLease(c) {
		return
	}
	now := l.leases.known.Checkpoint()
	if c.Err != nil || c.Stream > now.Stream || c.Bucket > now.Bucket {
		l.leases.log.Warn("another client changed the Lease's annotation; it is written again",
			zap.String("annotation", checkpointAnnotation), zap.String("value", c.Value), zap.Error(c.Err))
	}
}

// annotated is the Lease with the present checkpoint. A bridge that has not compared stream and
// bucket with the Lease's checkpoint leaves it as it is.
func (l checkpointLease) annotated(lease *coordinationv1.Lease) *coordinationv1.Lease {
	now, ours := l.leases.known.ToLease()
	if !ours {
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
