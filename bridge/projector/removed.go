package projector

import (
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

const logRemoved = "events were removed from the stream before they were projected"

// ErrRemoved ends a session: events that the bucket does not reflect are gone from
// the stream. The next session compares the cluster with what is left.
var ErrRemoved = errors.New(logRemoved)

// removed handles the sequences from and to, and those between. The bucket does
// not reflect them, and the stream has them no more. Those that were gone before
// the session read the stream are in none of its records, so that its comparison
// finds what they were about. For all others it returns an error.
func (p *Projector) removed(from, to uint64) error {
	var err error
	for _, gap := range store.WithoutRanges(subjects.LostRange{From: from, To: to}, p.lost) {
		p.metrics.removedSequences.Add(float64(gap.To - gap.From + 1))
		if p.supersedes {
			continue // what removed them is a newer event of the same subject
		}
		p.log.Error(logRemoved, zap.String("stream", p.stream), zap.Uint64("from", gap.From), zap.Uint64("to", gap.To))
		p.lost = append(p.lost, gap) // reported once, also over the sessions
		if gap.From <= p.followed.Load() || gap.To > p.end {
			err = fmt.Errorf("%w: stream %s, sequences %s", ErrRemoved, p.stream, gap)
		}
	}
	return err
}

// notice logs a notice of loss.
func (p *Projector) notice(sequence uint64, from, to string) {
	lost, err := subjects.ParseNotice(from, to)
	if err != nil {
		p.log.Warn("cannot parse a notice of loss in the stream", zap.Uint64("sequence", sequence), zap.Error(err))
		return
	}
	p.log.Info("the stream holds a notice of loss",
		zap.Uint64("sequence", sequence), zap.Uint64("from", lost.From), zap.Uint64("to", lost.To))
}
