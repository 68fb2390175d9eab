package bridge

import (
	"context"
	"testing"

	"go.uber.org/zap"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/appbridge/appbridge/bridge/store"
)

// history is a checkpoint of stream s1 of cluster c1.
func history(stream, bucket uint64) store.Checkpoint {
	return store.Checkpoint{StreamID: "s1", ClusterUID: "c1", StreamName: "S", BucketName: "b", Stream: stream, Bucket: bucket}
}

func readLease(a *store.Acknowledged, c store.Checkpoint) {
	a.ReadLease(store.LeaseCheckpoint{Checkpoint: c})
}

func TestAcknowledged(t *testing.T) {
	t.Parallel()
	ours, other := history(10, 20), history(50, 50)
	other.StreamID = "s2"
	fresh := other
	fresh.Stream, fresh.Bucket = 0, 0
	for _, test := range []struct {
		name  string
		known store.Checkpoint
		do    func(*store.Acknowledged)
		want  store.Checkpoint
	}{
		{"a checkpoint when nothing is known", store.Checkpoint{}, func(a *store.Acknowledged) { readLease(a, ours) }, ours},
		{"no checkpoint", ours, func(a *store.Acknowledged) { readLease(a, store.Checkpoint{}) }, ours},
		{"an older checkpoint", ours, func(a *store.Acknowledged) { readLease(a, history(5, 25)) }, history(10, 25)},
		{"a checkpoint of another stream, for a standby", ours, func(a *store.Acknowledged) { readLease(a, other) }, other},
		{"a checkpoint of another stream, for a leader", ours, func(a *store.Acknowledged) { a.Adopt(history(0, 0)); readLease(a, other) }, ours},
		{"a checkpoint of another stream, for one that led", ours, func(a *store.Acknowledged) { a.Adopt(ours); a.Release(); readLease(a, other) }, other},
		{"a higher checkpoint, for a leader", ours, func(a *store.Acknowledged) { a.Adopt(ours); readLease(a, history(90, 90)) }, ours},
		{"a checkpoint that was corrected", ours, func(a *store.Acknowledged) { readLease(a, history(90, 90)); readLease(a, history(11, 20)) }, history(11, 20)},
		{"the same stream again", ours, func(a *store.Acknowledged) { a.Adopt(history(0, 0)) }, ours},
		{"another stream", ours, func(a *store.Acknowledged) { a.Adopt(fresh) }, fresh},
		{"acknowledgements", ours, func(a *store.Acknowledged) { a.NoteStream(11); a.NoteStream(9); a.NoteBucket(21) }, history(11, 21)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			a := &store.Acknowledged{Now: test.known}
			test.do(a)
			if got := a.Checkpoint(); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

// oneLease is a Lease that lies in memory.
type oneLease struct {
	coordinationv1client.LeaseInterface
	lease *coordinationv1.Lease
}

func (l *oneLease) Leases(string) coordinationv1client.LeaseInterface { return l }

func (l *oneLease) Get(context.Context, string, metav1.GetOptions) (*coordinationv1.Lease, error) {
	return l.lease.DeepCopy(), nil
}

func (l *oneLease) Update(_ context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	l.lease = lease.DeepCopy()
	return l.lease.DeepCopy(), nil
}

// One replica writes what it knows, another one reads it, and one that knows nothing keeps it.
func TestCheckpointInLease(t *testing.T) {
	t.Parallel()
	stored := &oneLease{lease: &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "appbridge", Annotations: map[string]string{"other": "kept"}}}}
	replica := func(a *store.Acknowledged) coordinationv1client.LeaseInterface {
		return checkpointLeases{stored, a, history(0, 0), zap.NewNop(), &lease{}}.Leases("flyte")
	}
	renew := func(a *store.Acknowledged) {
		t.Helper()
		lease, err := stored.Get(t.Context(), "appbridge", metav1.GetOptions{})
		if err == nil {
			_, err = replica(a).Update(t.Context(), lease, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	first := &store.Acknowledged{}
	first.Adopt(history(7, 8))
	renew(first)
	renew(&store.Acknowledged{})
	second := &store.Acknowledged{}
	if _, err := replica(second).Get(t.Context(), "appbridge", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, want := second.Checkpoint(), first.Checkpoint(); got != want {
		t.Errorf("the second replica reads %+v, want %+v", got, want)
	}
	if got := stored.lease.Annotations["other"]; got != "kept" {
		t.Errorf("another annotation is %q", got)
	}
	elsewhere := history(0, 0)
	elsewhere.StreamName = "TRIAL"
	trial := &store.Acknowledged{}
	if _, err := (checkpointLeases{stored, trial, elsewhere, zap.NewNop(), &lease{}}).Leases("flyte").Get(t.Context(), "appbridge", metav1.GetOptions{}); err != nil || trial.Checkpoint() != (store.Checkpoint{}) {
		t.Errorf("the checkpoint of another stream gives %+v, %v", trial.Checkpoint(), err)
	}
	stored.lease.Annotations[checkpointAnnotation] = "{"
	third := &store.Acknowledged{Now: history(7, 8)}
	renew(third)
	if stored.lease.Annotations[checkpointAnnotation] != "{" {
		t.Error("a replica that has compared nothing overwrites a damaged annotation")
	}
	third = &store.Acknowledged{}
	if _, err := replica(third).Get(t.Context(), "appbridge", metav1.GetOptions{}); err != nil || third.Checkpoint() != (store.Checkpoint{}) {
		t.Errorf("a damaged annotation gives %+v, %v", third.Checkpoint(), err)
	}
}
