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

// witnessAnnotation of the Lease holds a witness as JSON.
const witnessAnnotation = "appbridge.flyte.org/acknowledged"

// witnessLeases adds the witness to what leader election reads and writes: no request more, no
// right more.
type witnessLeases struct {
	coordinationv1client.LeasesGetter
	known *store.Acknowledged
	// of is what the witness has to be of; its StreamID and sequences do not count.
	of  store.Witness
	log *zap.Logger
}

func (l witnessLeases) Leases(namespace string) coordinationv1client.LeaseInterface {
	return witnessLease{LeaseInterface: l.LeasesGetter.Leases(namespace), leases: l}
}

type witnessLease struct {
	coordinationv1client.LeaseInterface
	leases witnessLeases
}

func (l witnessLease) Get(ctx context.Context, name string, opts metav1.GetOptions) (*coordinationv1.Lease, error) {
	lease, err := l.LeaseInterface.Get(ctx, name, opts)
	if err == nil {
		l.read(lease)
	}
	return lease, err
}

func (l witnessLease) Create(ctx context.Context, lease *coordinationv1.Lease, opts metav1.CreateOptions) (*coordinationv1.Lease, error) {
	return l.LeaseInterface.Create(ctx, l.annotated(lease), opts)
}

func (l witnessLease) Update(ctx context.Context, lease *coordinationv1.Lease, opts metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	return l.LeaseInterface.Update(ctx, l.annotated(lease), opts)
}

func (l witnessLease) read(lease *coordinationv1.Lease) {
	text := lease.Annotations[witnessAnnotation]
	if text == "" {
		return
	}
	var w store.Witness
	if err := json.Unmarshal([]byte(text), &w); err != nil {
		l.leases.log.Warn("the Lease's annotation cannot be read", zap.String("annotation", witnessAnnotation), zap.String("value", text), zap.Error(err))
		return
	}
	of := l.leases.of
	of.StreamID = w.StreamID
	if w.SameHistory(of) {
		l.leases.known.Merge(w)
	}
}

// annotated is the Lease with the present witness. A bridge that knows of no acknowledgement leaves
// the annotation as it is.
func (l witnessLease) annotated(lease *coordinationv1.Lease) *coordinationv1.Lease {
	now := l.leases.known.Witness()
	if now.StreamID == "" {
		return lease
	}
	text, err := json.Marshal(now)
	if err != nil {
		l.leases.log.DPanic("encode the witness", zap.Error(err))
		return lease
	}
	lease = lease.DeepCopy()
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, witnessAnnotation, string(text))
	return lease
}
