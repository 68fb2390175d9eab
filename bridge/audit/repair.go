package audit

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

// repair repairs the differences of the report: first the entries that do not reflect their last
// events, then, with an ordinary session, what the stream lacks. In this order the session reads
// what was really published and publishes nothing twice.
func (v *Verifier) repair(ctx context.Context) error {
	now, err := v.read(ctx, nil)
	if err != nil {
		return err
	}
	if err := undecided(v.report.Differences, now); err != nil {
		return err
	}
	if err := v.repairBucket(ctx, now); err != nil {
		return err
	}
	if now, err = v.read(ctx, nil); err != nil {
		return err
	}
	left, _ := v.Target.judge(now)
	if left = among(left, v.report.Differences); len(left) == 0 {
		return nil
	}
	wait := v.Options.Timeout
	if now.storage.Stream != nil {
		// The server remembers, and rejects, an event that was removed for so long.
		wait += now.storage.Stream.Config.Duplicates
	}
	var doubtful []subjects.AppID
	for _, d := range left {
		if d.Kind == plan.RemovedEvent {
			doubtful = append(doubtful, d.id)
		}
	}
	if err := v.Session(ctx, wait, doubtful); err != nil {
		return fmt.Errorf("publish what the stream lacks: %w", err)
	}
	return v.reportSession(ctx, left, now)
}

// undecided returns what only an operator can decide as an error; nothing is repaired then.
func undecided(differences []Difference, now *sides) error {
	for _, d := range differences {
		switch {
		case d.Kind == DifferenceOtherCluster, d.Kind == DifferenceUnfit, d.Kind == DifferenceOtherShape, d.Kind == DifferenceHistory, d.Kind == DifferenceClusterName:
		case d.Kind == plan.BucketAhead && now.entries[d.id].Sequence() > now.end():
			// A bridge fills what the stream lost; only the entry has its extent.
		default:
			continue
		}
		return fmt.Errorf("nothing is repaired, since this is for an operator to decide: %s", d)
	}
	return nil
}

func (s *sides) end() uint64 {
	if s.storage.Stream == nil {
		return 0
	}
	return s.storage.Stream.State.LastSeq
}

// among returns the differences of known subjects: others may be changes in progress.
func among(differences, known []Difference) []Difference {
	about := bySubject(known)
	return slices.DeleteFunc(slices.Clone(differences), func(d Difference) bool { return about[d.Subject()] == nil })
}

// repairBucket writes the entries that differ from their last events, and purges foreign keys.
//
// A session cannot do that: an entry that names a wrong event moves the position from which the
// session reads the stream, or has it refuse the bucket. Nor can a purge before the session: until
// the session has written the entry, readers of the bucket would miss the app.
func (v *Verifier) repairBucket(ctx context.Context, now *sides) error {
	if now.storage.Stream == nil || now.storage.Bucket == nil {
		return nil // the session makes the one that is missing
	}
	found, _ := v.Target.judge(now)
	found = slices.DeleteFunc(among(found, v.report.Differences), func(d Difference) bool { return d.Side != plan.SideBucket })
	limit := now.projected(found)
	// In the order of the stream, as the projector would.
	slices.SortStableFunc(found, func(a, b Difference) int { return cmp.Compare(a.StreamSequence, b.StreamSequence) })
	for _, d := range found {
		var err error
		switch {
		case d.Kind == DifferenceForeignKey:
			err = v.purgeKey(ctx, d, d.at, 0)
		case d.StreamSequence <= limit:
			err = v.rewrite(ctx, d, limit)
		}
		if err != nil {
			return fmt.Errorf("repair %s: %w", d, err)
		}
	}
	return nil
}

// projected is the sequence up to which the bucket had been written. No projector writes an event
// up to there again. Later events are left to the session's projector, which writes them in order:
// the bucket never reflects a later event without an earlier one.
func (s *sides) projected(found []Difference) uint64 {
	wrong := map[subjects.AppID]Difference{}
	for _, d := range found {
		if d.App != nil {
			wrong[d.id] = d
		}
	}
	var limit uint64
	for id, h := range s.entries {
		e := s.events[id]
		d, differs := wrong[id]
		switch {
		case h.Record == nil:
		case differs && (h.Other != "" || (e != nil && h.Record.Sequence > e.Record.Previous())):
			// The entry's recorded position is wrong: the position of its last event counts.
			limit = max(limit, d.StreamSequence)
		default:
			limit = max(limit, h.Record.Sequence)
		}
	}
	return limit
}

// rewrite writes the entry of an app again from its last event. Entry and event are read right
// before, and the write expects that the bucket was not written since.
func (v *Verifier) rewrite(ctx context.Context, d Difference, limit uint64) error {
	stream := subjects.BucketStream(v.Target.Bucket)
	b := v.Target.Entries
	return v.until(ctx, "NATS", func(ctx context.Context) error {
		_, info, err := store.LookUp(ctx, v.Target.JetStream, stream)
		if err != nil {
			return err
		}
		last := info.State.LastSeq
		s := v.Target.newSides()
		only := map[subjects.AppID]struct{}{d.id: {}}
		if err := v.Target.readBucket(ctx, s, &selection{apps: only}); err != nil {
			return err
		}
		if err := v.Target.readEvents(ctx, s, only); err != nil {
			return err
		}
		e, h := s.events[d.id], s.entries[d.id]
		if e.Published() == nil {
			if err := v.Target.readDoubtful(ctx, s); err != nil {
				return err
			}
			if h == nil || (h.Record != nil && h.Other == "") {
				return nil // it may be all that is known of the app
			}
			subject, err := b.Subject(d.id)
			if err != nil {
				return retry.Permanent(err)
			}
			return v.purgeKey(ctx, d, subject, h.Stored)
		}
		if plan.Check(&b.Entries, d.id, e, h, time.Now()) == nil || e.Record.Sequence > limit {
			return nil // a bridge has written it, or the session will
		}
		msg, err := b.Entry(d.id, e.Record, e.Header)
		if err != nil {
			return retry.Permanent(err)
		}
		msg.Header.Set(subjects.HeaderExpectedLastSequence, strconv.FormatUint(last, 10))
		if _, err := v.Target.JetStream.PublishMsg(ctx, store.Addressed(v.Target.JetStream, msg), jetstream.WithRetryAttempts(0)); err != nil {
			return fmt.Errorf("write the bucket: %w", err)
		}
		what := "entry"
		if e.Record.Kind == subjects.Deleted {
			what = "delete marker"
		}
		v.repaired(d, "wrote the bucket's %s from the event %s at %d", what, e.Record.Kind, e.Record.Sequence)
		return nil
	})
}

// purgeKey removes a key of the bucket, up to sequence stored of its stream if that is not 0.
func (v *Verifier) purgeKey(ctx context.Context, d Difference, subject string, stored uint64) error {
	if strings.ContainsAny(subject, "*>") {
		return nil // a purge would match other keys; the key stays in the report
	}
	if err := v.Target.Entries.Purge(ctx, subject, stored); err != nil {
		return err
	}
	v.repaired(d, "purged from the bucket")
	return nil
}

// reportSession reports what a session did about differences. before was read when it started.
func (v *Verifier) reportSession(ctx context.Context, differences []Difference, before *sides) error {
	now, err := v.read(ctx, nil)
	if err != nil {
		return err
	}
	remaining, _ := v.Target.judge(now)
	left := bySubject(remaining)
	for _, d := range differences {
		if slices.ContainsFunc(left[d.Subject()], func(l Difference) bool { return l.Kind == d.Kind }) {
			continue
		}
		switch {
		case d.Kind == DifferenceStreamMissing:
			v.repaired(d, "made stream %s, which begins at %d", v.Target.Stream, max(now.storage.Stream.State.FirstSeq, 1))
		case d.Kind == DifferenceBucketMissing:
			v.repaired(d, "made bucket %s and wrote %d entries", v.Target.Bucket, len(now.entries))
		case d.App == nil:
		case d.Side == plan.SideStream:
			published, err := v.published(ctx, d.id, before.events[d.id], now.end())
			if err != nil {
				return err
			}
			v.repaired(d, "published %s", published)
		default:
			v.repaired(d, "the bucket reflects %d", now.entries[d.id].Sequence())
		}
	}
	return nil
}

// published names the events of an app after the one that was its last.
func (v *Verifier) published(ctx context.Context, id subjects.AppID, before *plan.Event, end uint64) (string, error) {
	filter, err := v.Target.Subjects.EventFilter(id)
	if err != nil {
		return "", err
	}
	var from uint64 = 1
	if before != nil {
		from = max(before.Record.Previous(), before.Foreign) + 1
	}
	var names []string
	err = v.Target.reader().EachMessage(ctx, filter, from, end+1, func(m *store.Message) {
		if r, err := m.Record(v.Target.Subjects); err == nil {
			names = append(names, fmt.Sprintf("%s at %d", r.Kind, r.Sequence))
		}
	})
	return strings.Join(names, ", "), err
}

func (v *Verifier) repaired(d Difference, format string, args ...any) {
	r := Repair{App: d.App, Key: d.Key, Kind: d.Kind, Detail: fmt.Sprintf(format, args...)}
	v.report.Repairs = append(v.report.Repairs, r)
	v.report.Repaired = len(v.report.Repairs)
	if v.Options.Repaired != nil {
		v.Options.Repaired(r)
	}
}
