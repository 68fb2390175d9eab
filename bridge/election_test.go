package bridge

import (
	"context"
	"errors"
	"testing"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// storedLock is a Lease that somebody holds.
type storedLock struct {
	resourcelock.Interface
	record  resourcelock.LeaderElectionRecord
	updates int
}

func (l *storedLock) Identity() string { return "me" }

func (l *storedLock) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	return &l.record, nil, nil
}

func (l *storedLock) Update(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	l.record = record
	l.updates++
	return nil
}

// Who gives a Lease back gives back only his own: the successor of a leader
// that was paused keeps it.
func TestReleaseOfAnothersLease(t *testing.T) {
	for holder, want := range map[string]error{"me": nil, "successor": errDeposed} {
		stored := &storedLock{record: resourcelock.LeaderElectionRecord{HolderIdentity: holder}}
		lock := &ownLock{Interface: stored}
		if _, _, err := lock.Get(t.Context()); err != nil {
			t.Fatal(err)
		}
		err := lock.Update(t.Context(), resourcelock.LeaderElectionRecord{})
		if !errors.Is(err, want) || (stored.updates == 0) != (want != nil) {
			t.Errorf("a Lease of %s is given back: %v after %d writes, want %v", holder, err, stored.updates, want)
		}
	}
	stored := &storedLock{record: resourcelock.LeaderElectionRecord{HolderIdentity: "successor"}}
	if err := (&ownLock{Interface: stored}).Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "me"}); err != nil {
		t.Errorf("taking a Lease: %v", err)
	}
}
