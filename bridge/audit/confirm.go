package audit

import (
	"context"
	"slices"
	"time"

	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/subjects"
)

// maxConfirms bounds, as a multiple of ConfirmFor, for how long what keeps changing is compared.
const maxConfirms = 10

// doubt is something that has differed each time it was compared.
type doubt struct {
	differences []Difference // of the last comparison
	first       []Difference
	since       time.Time // of the first comparison with the same result
}

// confirm compares what differs again until it has persisted unchanged for ConfirmFor, or is gone.
// What still changes after ten times that counts as a difference if the side that is behind did not
// move in all that time, and is a note otherwise.
func (v *Verifier) confirm(ctx context.Context, started time.Time, differences []Difference) (persisting []Difference, changing []Note, err error) {
	persisting = []Difference{}
	doubts := map[string]*doubt{}
	for subject, found := range bySubject(differences) {
		doubts[subject] = &doubt{differences: found, first: found, since: started}
	}
	pause := min(max(v.Options.ConfirmFor/5, 20*time.Millisecond), time.Second)
	compared := started
	for {
		for subject, d := range doubts {
			confirmed := compared.Sub(d.since) >= v.Options.ConfirmFor+d.more()
			over := compared.Sub(started) > maxConfirms*v.Options.ConfirmFor+d.more()
			switch {
			case confirmed, over && d.stuck():
				persisting = append(persisting, d.differences...)
			case over:
				changing = append(changing, d.note())
			default:
				continue
			}
			delete(doubts, subject)
		}
		if len(doubts) == 0 {
			break
		}
		if err := retry.Wait(ctx, pause); err != nil {
			return nil, nil, err
		}
		compared = time.Now()
		s, err := v.read(ctx, selectionOf(doubts))
		if err != nil {
			return nil, nil, err
		}
		again, _ := v.Target.judge(s)
		found := bySubject(again)
		for subject, d := range doubts {
			if now := found[subject]; len(now) == 0 {
				delete(doubts, subject)
			} else if same(now) != same(d.differences) {
				d.differences, d.since = now, compared
			}
		}
	}
	sortDifferences(persisting)
	slices.SortFunc(changing, compareNotes)
	return persisting, changing, nil
}

// more is for how much longer than others it may persist.
func (d *doubt) more() (more time.Duration) {
	for _, difference := range d.differences {
		more = max(more, difference.tolerated)
	}
	return more
}

// stuck reports whether one of the sides that are wrong has not moved.
func (d *doubt) stuck() bool {
	for _, now := range d.differences {
		for _, then := range d.first {
			same := now.StreamSequence == then.StreamSequence
			if now.Side == plan.SideBucket {
				same = now.BucketSequence == then.BucketSequence
			}
			if now.Side == then.Side && same {
				return true
			}
		}
	}
	return false
}

func (d *doubt) note() Note {
	last := d.differences[0]
	return Note{App: last.App, Key: last.Key, Kind: NoteChanging, Detail: "differed each time it was compared and kept changing, at last: " + last.Detail}
}

// selectionOf confines a comparison to what is in doubt; nil compares everything.
func selectionOf(doubts map[string]*doubt) *selection {
	only := &selection{apps: map[subjects.AppID]struct{}{}, keys: map[string]struct{}{}}
	for _, d := range doubts {
		for _, difference := range d.differences {
			switch {
			case difference.Kind == DifferenceHistory:
				return nil // it may be any app that is ahead
			case difference.App != nil:
				only.apps[difference.id] = struct{}{}
			case difference.Kind == DifferenceForeignKey:
				only.keys[difference.at] = struct{}{}
			}
		}
	}
	return only
}
