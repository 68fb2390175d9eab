package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/store"
)

// standAside is how long a bridge with leader election does not compete for the Lease after it found
// that a bridge with other options had begun to lead later.
const standAside = 10 * time.Minute

func (c Config) standAside() time.Duration { return cmp.Or(c.StandAside, standAside) }

// shape returns the options that decide how an App looks.
func (c Config) shape() store.Shape {
	return store.Shape{
		store.ShapeBaseDomain:    strings.ToLower(c.App.BaseDomain), // as kservice.PublicURL does
		store.ShapeScheme:        cmp.Or(c.App.Scheme, "https"),
		store.ShapeIngressPort:   strconv.Itoa(int(c.App.Port)),
		store.ShapeEncoding:      string(cmp.Or(c.Encoding, EncodingJSON)),
		store.ShapePodConditions: strconv.FormatBool(c.PodConditions),
	}
}

// newClaim returns the claim of a term. With leader election the bridges of one Lease know of each
// other, and a hand-over between equal ones writes nothing. See noteOtherWriter.
func (b *Bridge) newClaim() *store.Claim { return store.NewClaim(b.cfg.shape(), !b.cfg.LeaderElect) }

// checkShape returns an *store.OtherShapeError if this bridge must not publish any more. storage has
// just been read.
func (s *session) checkShape(ctx context.Context, storage store.Storage) error {
	if s.repairs {
		return s.cfg.shape().Compare(storage.Stream)
	}
	rival, err := s.memory.claim.Check(storage.Stream)
	if rival && s.leads(ctx) == nil { // the Lease is still held: the other one has another, or none
		s.foundRival()
		if err := storage.Answer(ctx, s.memory.claim); err != nil {
			s.log.Debug("cannot answer the other bridge", zap.Error(err))
		}
	}
	return err
}

// claimShape makes the shape of this bridge that of the stream when a term begins. A repair claims
// nothing: it ends, and the bridges stay.
func (s *session) claimShape(ctx context.Context) error {
	if s.repairs {
		return nil
	}
	return s.storage.Claim(ctx, s.memory.claim)
}

// noteOtherWriter counts the sessions that ended with events of another writer while this bridge led.
// One may be due to a late append of an earlier process or of a former leader. The next one is not
// without leader election. With it, the claim is renewed: only a bridge that leads as well, by a Lease
// of its own or by none, answers.
func (b *Bridge) noteOtherWriter() {
	if b.memory.otherWriters++; b.memory.otherWriters < 2 || b.repairs || b.memory.rival.Load() {
		return
	}
	if b.cfg.LeaderElect {
		b.memory.claim.Renew()
		return
	}
	b.warnRival()
}

const foundRival = "another bridge publishes to this stream; run all bridges of a stream with --leader-elect and the same Lease, or stop this one or the other"

// warnRival warns, once in a term, that another one publishes to the stream.
func (b *Bridge) warnRival() {
	if b.memory.rival.Swap(true) {
		return
	}
	fields := []zap.Field{zap.String("stream", b.cfg.Stream), zap.Bool("leaderElect", b.cfg.LeaderElect)}
	if b.cfg.LeaderElect {
		fields = append(fields, zap.String("lease", b.leaseName()), zap.String("identity", b.cfg.Identity))
	}
	b.log.Warn(foundRival, fields...)
}

// whyEnded is why this bridge is not ready after a session that ended with err.
func (b *Bridge) whyEnded(cause string, err error) string {
	switch {
	case cause != causeOtherWriter || !b.memory.rival.Load():
		return err.Error()
	case b.cfg.LeaderElect:
		return fmt.Sprintf("%v; %s (this one holds Lease %s as %q)", err, foundRival, b.leaseName(), b.cfg.Identity)
	default:
		return fmt.Sprintf("%v; %s", err, foundRival)
	}
}

func isOtherShape(err error) bool { return errors.As(err, new(*store.OtherShapeError)) }

// yield takes the end of a term. If a bridge with other options has begun to lead later, it returns
// when this one may compete again: with leader election after a while, without it never. It returns
// any other error as it is.
func (b *Bridge) yield(stop context.Context, ended error) error {
	var other *store.OtherShapeError
	if !errors.As(ended, &other) || b.repairs {
		return ended
	}
	const text = "a bridge with other options began to lead later; this one publishes nothing"
	var again <-chan time.Time
	if b.cfg.LeaderElect {
		wait := b.cfg.standAside()
		again = time.After(wait)
		b.log.Warn(text, zap.String("stream", other.Stream), zap.String("options", other.Difference()),
			zap.Time("standingByUntil", time.Now().Add(wait)), zap.String("toDo", "give all bridges of the stream the same options"))
		b.lease.enter(leaseUnused) // ready, as any replica that stands by
		b.status.set("")
	} else {
		const toDo = "start it again with the same options as the other, or stop the other and start it again"
		b.log.Error(text, zap.String("stream", other.Stream), zap.String("options", other.Difference()), zap.String("toDo", toDo))
		b.status.set(fmt.Sprintf("%s to stream %s: %s; %s", text, other.Stream, other.Difference(), toDo))
	}
	select {
	case <-stop.Done():
	case <-again:
		b.log.Info("competing for the Lease again")
	}
	return nil
}
