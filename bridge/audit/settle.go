package audit

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/appbridge/appbridge/subjects"
)

// settleRounds bounds, in settle times, for how long apps that keep changing are compared.
const settleRounds = 10

// doubt is something that has differed each time it was compared.
type doubt struct {
	differences []Difference // of the last comparison
	first       []Difference
	since       time.Time // of the first comparison with the same result
}

// settle compares what differs again until it has persisted unchanged for the settle time, or is
// gone. What still changes after ten settle times counts as a difference if the side that is behind
// did not move in all that time, and is a note otherwise.
func (v *Verifier) settle(ctx context.Context, started time.Time, differences []Difference) (persisting []Difference, changing []Note, err error) {
	persisting = []Difference{}
	doubts := map[string]*doubt{}
	for subject, found := range bySubject(differences) {
		doubts[subject] = &doubt{differences: found, first: found, since: started}
	}
	pause := min(max(v.Options.Settle/5, 20*time.Millisecond), time.Second)
	compared := started
	for {
		for subject, d := range doubts {
			if compared.Sub(d.since) >= v.Options.Settle+d.more() {
				persisting = append(persisting, d.differences...)
				delete(doubts, subject)
			}
		}
		for subject, d := range doubts {
			if compared.Sub(started) <= settleRounds*v.Options.Settle+d.more() {
				continue
			}
			if d.stuck() {
				persisting = append(persisting, d.differences...)
			} else {
				changing = append(changing, d.note())
			}
			delete(doubts, subject)
		}
		if len(doubts) == 0 {
			break
		}
		if err := wait(ctx, pause); err != nil {
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
			switch now := found[subject]; {
			case len(now) == 0:
				delete(doubts, subject)
			case words(now) != words(d.differences):
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
			if now.Side == SideBucket {
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

func bySubject(differences []Difference) map[string][]Difference {
	found := map[string][]Difference{}
	for _, d := range differences {
		found[d.subject()] = append(found[d.subject()], d)
	}
	return found
}

// words is the text of differences, versions and sequences included.
func words(differences []Difference) string {
	var b strings.Builder
	for _, d := range differences {
		b.WriteString(string(d.Kind))
		if d.Kind != DifferenceHistory { // its text has the highest version of all
			b.WriteString(" " + d.Detail)
		}
		b.WriteByte('\n')
	}
	return b.String()
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
