package bridge

import (
	"context"
	"errors"
	"fmt"
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
// Lease for its duration, or it waits and has not read for that long that another replica leads.
func (l *lease) trouble(identity string) error {
	l.mu.Lock()
	phase, holder, fresh, err := l.phase, l.holder, time.Since(l.read) < leaseDuration, l.err
	l.mu.Unlock()
	switch {
	case phase == leaseGranted:
		return l.held(identity)
	case phase == leaseUnused, fresh && holder != "" && holder != identity:
		return nil
	}
	return withCause(errWaiting, err)
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
	case apierrors.IsNotFound(err):
		l.lease.answered(began, "")
	default:
		l.lease.failed(ctx, "get", err)
	}
	return record, raw, err
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
