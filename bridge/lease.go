package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	kubeapi "github.com/appbridge/appbridge/bridge/kube"
)

const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
	// maxUnrenewed is how long a standby may see no renewal before it does not count on the holder.
	// By then it has taken over, if it can.
	maxUnrenewed = 2 * leaseDuration
	// releaseTimeout bounds giving the Lease back, which delays the end of the process.
	releaseTimeout = 3 * time.Second
)

// leasePhase is the relation of a bridge to its Lease.
type leasePhase int

const (
	leaseUnused  leasePhase = iota // no leader election, it has not begun, or the bridge stands aside
	leaseWanted                    // the bridge competes for the Lease
	leaseGranted                   // client-go has reported that the bridge leads
)

// lease is the knowledge of one bridge about its Lease, from the outcomes of its own requests. That
// these fail or hang shows in the age of the last successful ones, by the monotonic clock: nothing
// depends on client-go to report it. Safe for concurrent use.
type lease struct {
	mu      sync.Mutex
	phase   leasePhase
	holder  string    // as last read or written
	read    time.Time // when the last successful request began
	renewed time.Time // when the last successful write as the holder began
	record  []byte    // as last read
	changed time.Time // when a read first returned that record: the holder has renewed the Lease
	other   error     // bridges of another stream use the Lease; nil if it does not say so
	shared  time.Time // when a read returned that first
	err     error     // of the last request; nil after a success
}

func (l *lease) enter(phase leasePhase) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.phase = phase
}

// answered notes that a request that began at a time succeeded, and the holder that it showed.
func (l *lease) answered(began time.Time, holder string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holder, l.read, l.err = holder, began, nil
}

// show notes the record that a request returned, nil for none. A holder that exists changes it with
// each renewal. Whether its times are right is not looked at: clocks differ.
func (l *lease) show(record []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed.IsZero() || !bytes.Equal(record, l.record) {
		l.record, l.changed = record, time.Now()
	}
}

// share notes whether bridges of another stream use the Lease. It reports whether that is news.
func (l *lease) share(other error) (begins bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if begins = other != nil && l.other == nil; begins {
		l.shared = time.Now()
	}
	l.other = other
	return begins
}

// renew notes that a write as the holder succeeded.
func (l *lease) renew(began time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewed = began
}

// failed notes the error of a request. A write that another replica has overtaken is none: the next
// read shows the holder. Nor is a request that was cancelled.
func (l *lease) failed(ctx context.Context, verb string, err error) {
	if reason := kubeapi.ReasonOf(err); reason == kubeapi.Conflict || errors.Is(context.Cause(ctx), context.Canceled) {
		return
	} else if reason == kubeapi.Unauthorized {
		err = kubeapi.Explain(err, "")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = fmt.Errorf("%s: %w", verb, err)
}

// left returns how long the Lease lasts unless it is renewed.
func (l *lease) left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Until(l.renewed.Add(leaseDuration))
}

// errDeposed is the state of a Lease that another replica holds.
var errDeposed = errors.New("deposed")

// errExpired is the state of a Lease that was not renewed for its duration.
var errExpired = errors.New("the Lease was not renewed for " + leaseDuration.String())

// held returns nil while the Lease was renewed within its duration and no other holder was seen.
func (l *lease) held(identity string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case time.Since(l.renewed) >= leaseDuration:
		return withCause(errExpired, l.err)
	case l.holder != "" && l.holder != identity:
		return fmt.Errorf("%w: %q holds the Lease", errDeposed, l.holder)
	}
	return nil
}

// trouble returns why a bridge that needs the Lease is not ready: it leads and did not renew the
// Lease for its duration, or it waits and has not read for that long that another replica leads. A
// replica leads if it renews the Lease, and for the stream of this bridge. One of another stream may
// lead for the time of a rollout that changes the name of the stream: a rollout waits for readiness.
func (l *lease) trouble(identity string, rollout time.Duration) error {
	l.mu.Lock()
	phase, holder, fresh, err := l.phase, l.holder, time.Since(l.read) < leaseDuration, l.err
	unchanged, other, shared := time.Since(l.changed), l.other, time.Since(l.shared)
	l.mu.Unlock()
	switch {
	case phase == leaseGranted:
		return l.held(identity)
	case phase == leaseUnused:
		return nil
	case !fresh || holder == "" || holder == identity:
		return withCause(errWaiting, err)
	case unchanged >= maxUnrenewed:
		return withCause(fmt.Errorf("%w: %q holds it and has not renewed it for %s", errWaiting, holder, unchanged.Round(time.Second)), err)
	case other != nil && shared >= rollout:
		return fmt.Errorf("%w: %q holds it: %w", errWaiting, holder, other)
	}
	return nil
}

var errWaiting = errors.New("waiting for the Lease")

func withCause(state, cause error) error {
	if cause == nil {
		return state
	}
	return fmt.Errorf("%w: %w", state, cause)
}

// notedLock reports the outcomes of client-go's requests, which client-go only logs. Each request
// ends within the time in which a renewal has to succeed. Only the elector's goroutine uses it.
type notedLock struct {
	resourcelock.Interface
	lease *lease
}

func (l *notedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, renewDeadline)
	defer cancel()
	began := time.Now()
	record, raw, err := l.Interface.Get(ctx)
	switch {
	case err == nil:
		l.lease.answered(began, record.HolderIdentity)
		l.lease.show(raw)
		bound(record)
	case apierrors.IsNotFound(err):
		l.lease.answered(began, "")
		l.lease.show(nil)
	default:
		l.lease.failed(ctx, "get", err)
	}
	return record, raw, err
}

// bound bounds what anyone who may update the Lease can write: client-go lets a holder that does not
// renew keep the Lease for as long as the record says, and counts the transitions up to a number that
// API servers refuse.
func bound(record *resourcelock.LeaderElectionRecord) {
	record.LeaseDurationSeconds = min(record.LeaseDurationSeconds, int(leaseDuration/time.Second))
	if record.LeaderTransitions >= math.MaxInt32 {
		record.LeaderTransitions = 0
	}
}

func (l *notedLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, "create", record, l.Interface.Create)
}

func (l *notedLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, "update", record, l.Interface.Update)
}

func (l *notedLock) write(ctx context.Context, verb string, record resourcelock.LeaderElectionRecord, request func(context.Context, resourcelock.LeaderElectionRecord) error) error {
	ctx, cancel := context.WithTimeout(ctx, renewDeadline)
	defer cancel()
	began := time.Now()
	if err := request(ctx, record); err != nil {
		l.lease.failed(ctx, verb, err)
		return err
	}
	l.lease.answered(began, record.HolderIdentity)
	if record.HolderIdentity == l.Identity() {
		l.lease.renew(began)
	}
	return nil
}

// giveBack empties a Lease, so that another replica need not wait until it expires. It leaves the
// Lease of another holder as it is: client-go's own release would take a paused leader's Lease from
// its successor.
func giveBack(ctx context.Context, lock resourcelock.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	record, _, err := lock.Get(ctx)
	if err != nil {
		return fmt.Errorf("get: %w", err)
	}
	if record.HolderIdentity != lock.Identity() {
		return fmt.Errorf("%w: %q holds the Lease", errDeposed, record.HolderIdentity)
	}
	now := metav1.Now()
	if err := lock.Update(ctx, resourcelock.LeaderElectionRecord{
		LeaseDurationSeconds: 1, AcquireTime: now, RenewTime: now, LeaderTransitions: record.LeaderTransitions,
	}); err != nil {
		return fmt.Errorf("update: %w", err)
	}
	return nil
}
