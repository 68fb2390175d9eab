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

// A replica gives back only its own Lease: the successor of a leader that was paused keeps it.
func TestReleaseOfAnothersLease(t *testing.T) {
	for holder, want := range map[string]error{"me": nil, "successor": errDeposed} {
		stored := &storedLock{record: resourcelock.LeaderElectionRecord{HolderIdentity: holder}}
		err := giveBack(t.Context(), stored)
		if !errors.Is(err, want) || (stored.updates == 0) != (want != nil) {
			t.Errorf("a Lease of %s is given back: %v after %d writes, want %v", holder, err, stored.updates, want)
		}
	}
}
