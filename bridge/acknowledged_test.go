package bridge

import (
	"context"
	"testing"

	"go.uber.org/zap"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// history is a witness of stream s1 of cluster c1.
func history(stream, bucket uint64) witness {
	return witness{StreamID: "s1", ClusterUID: "c1", StreamName: "S", BucketName: "b", Stream: stream, Bucket: bucket}
}

func TestAcknowledged(t *testing.T) {
	t.Parallel()
	ours, other := history(10, 20), history(50, 50)
	other.StreamID = "s2"
	fresh := other
	fresh.Stream, fresh.Bucket = 0, 0
	for _, test := range []struct {
		name  string
		known witness
		do    func(*acknowledged)
		want  witness
	}{
		{"a witness when nothing is known", witness{}, func(a *acknowledged) { a.merge(ours) }, ours},
		{"no witness", ours, func(a *acknowledged) { a.merge(witness{}) }, ours},
		{"an older witness", ours, func(a *acknowledged) { a.merge(history(5, 25)) }, history(10, 25)},
		{"a witness of another stream, for a standby", ours, func(a *acknowledged) { a.merge(other) }, other},
		{"a witness of another stream, for a leader", ours, func(a *acknowledged) { a.adopt(history(0, 0)); a.merge(other) }, ours},
		{"a witness of another stream, for one that led", ours, func(a *acknowledged) { a.adopt(ours); a.release(); a.merge(other) }, other},
		{"the same stream again", ours, func(a *acknowledged) { a.adopt(history(0, 0)) }, ours},
		{"another stream", ours, func(a *acknowledged) { a.adopt(fresh) }, fresh},
		{"acknowledgements", ours, func(a *acknowledged) { a.noteStream(11); a.noteStream(9); a.noteBucket(21) }, history(11, 21)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			a := &acknowledged{now: test.known}
			test.do(a)
			if got := a.get(); got != test.want {
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
func TestWitnessInLease(t *testing.T) {
	t.Parallel()
	stored := &oneLease{lease: &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "appbridge", Annotations: map[string]string{"other": "kept"}}}}
	replica := func(a *acknowledged) coordinationv1client.LeaseInterface {
		return witnessLeases{stored, a, history(0, 0), zap.NewNop()}.Leases("flyte")
	}
	renew := func(a *acknowledged) {
		t.Helper()
		lease, err := stored.Get(t.Context(), "appbridge", metav1.GetOptions{})
		if err == nil {
			_, err = replica(a).Update(t.Context(), lease, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	first := &acknowledged{now: history(7, 8)}
	renew(first)
	renew(&acknowledged{})
	second := &acknowledged{}
	if _, err := replica(second).Get(t.Context(), "appbridge", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, want := second.get(), first.get(); got != want {
		t.Errorf("the second replica reads %+v, want %+v", got, want)
	}
	if got := stored.lease.Annotations["other"]; got != "kept" {
		t.Errorf("another annotation is %q", got)
	}
	elsewhere := history(0, 0)
	elsewhere.StreamName = "TRIAL"
	trial := &acknowledged{}
	if _, err := (witnessLeases{stored, trial, elsewhere, zap.NewNop()}).Leases("flyte").Get(t.Context(), "appbridge", metav1.GetOptions{}); err != nil || trial.get() != (witness{}) {
		t.Errorf("the witness of another stream gives %+v, %v", trial.get(), err)
	}
	stored.lease.Annotations[witnessAnnotation] = "{"
	third := &acknowledged{}
	if _, err := replica(third).Get(t.Context(), "appbridge", metav1.GetOptions{}); err != nil || third.get() != (witness{}) {
		t.Errorf("a damaged annotation gives %+v, %v", third.get(), err)
	}
}
