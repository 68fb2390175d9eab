package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/appbridge/appbridge/subjects"
)

// repair mends the differences of the report: first the bucket where it is not
// what the stream says, then, by an ordinary session, what the stream lacks.
// In this order the session finds what was really published and publishes
// nothing twice.
func (v *verifier) repair(ctx context.Context) error {
	now, err := v.look(ctx, nil)
	if err != nil {
		return err
	}
	if err := undecided(v.report.Differences, now); err != nil {
		return err
	}
	if err := v.repairBucket(ctx, now); err != nil {
		return err
	}
	if now, err = v.look(ctx, nil); err != nil {
		return err
	}
	left, _ := v.judge(now)
	if left = among(left, v.report.Differences); len(left) == 0 {
		return nil
	}
	wait := v.opts.Timeout
	if now.storage.stream != nil {
		// An event that was removed from the stream is remembered for so long,
		// and the same one is not taken again before.
		wait += now.storage.stream.Config.Duplicates
	}
	if err := v.runSession(ctx, wait); err != nil {
		return fmt.Errorf("publish what the stream lacks: %w", err)
	}
	return v.tellSession(ctx, left, now)
}

// undecided says what only an operator can decide; nothing is repaired then.
func undecided(differences []Difference, now *sides) error {
	for _, d := range differences {
		switch {
		case d.Kind == DifferenceOtherCluster, d.Kind == DifferenceUnfit, d.Kind == DifferenceHistory, d.Kind == DifferenceClusterName:
		case d.Kind == DifferenceBucketAhead && now.entries[d.id].sequence() > now.end():
			// A bridge fills what the stream lost; the entry is what says how much that is.
		default:
			continue
		}
		return fmt.Errorf("nothing is repaired, since this is for an operator to decide: %s", d)
	}
	return nil
}

// end is the last sequence of the stream.
func (s *sides) end() uint64 {
	if s.storage.stream == nil {
		return 0
	}
	return s.storage.stream.State.LastSeq
}

// among are the differences that are about what others are about too: what
// only appeared meanwhile may be under way.
func among(differences, known []Difference) []Difference {
	about := bySubject(known)
	return slices.DeleteFunc(slices.Clone(differences), func(d Difference) bool { return about[d.subject()] == nil })
}

// repairBucket writes the entries anew that are not what the stream says, and
// purges the keys that are nobody's.
func (v *verifier) repairBucket(ctx context.Context, now *sides) error {
	if now.storage.stream == nil || now.storage.bucket == nil {
		return nil // the session makes what is missing, from what is there
	}
	found, _ := v.judge(now)
	found = slices.DeleteFunc(among(found, v.report.Differences), func(d Difference) bool { return d.Side != SideBucket })
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

// projected is the sequence up to which the bucket had been written. What is
// behind it nobody would write again; what is past it the session's projector
// writes, in order, so that the bucket never reflects a later event without an
// earlier one.
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
		case h.record == nil:
		case differs && (h.other != "" || (e != nil && h.record.sequence > e.record.previous())):
			// It says what is not so: what counts is where it belongs.
			limit = max(limit, d.StreamSequence)
		default:
			limit = max(limit, h.record.sequence)
		}
	}
	return limit
}

// rewrite writes the entry of an app anew from its last event. Everything is
// read again right before, and the write expects that nobody has written the
// bucket since.
func (v *verifier) rewrite(ctx context.Context, d Difference, limit uint64) error {
	stream := subjects.BucketStream(v.cfg.Bucket)
	b := v.entries()
	return v.until(ctx, "NATS", func(ctx context.Context) error {
		handle, err := v.js.Stream(ctx, stream)
		if err != nil {
			return unavailable("look up bucket "+v.cfg.Bucket, err)
		}
		last := handle.CachedInfo().State.LastSeq
		s := &sides{entries: map[subjects.AppID]*held{}, events: map[subjects.AppID]*lastEvent{}}
		only := map[subjects.AppID]struct{}{d.id: {}}
		if err := v.readBucket(ctx, s, &selection{apps: only}); err != nil {
			return err
		}
		if err := v.readEvents(ctx, s, only); err != nil {
			return err
		}
		e, h := s.events[d.id], s.entries[d.id]
		if e == nil || e.record == nil {
			if err := v.readDoubtful(ctx, s); err != nil {
				return err
			}
			if h == nil || (h.record != nil && h.other == "") {
				return nil // it may be all that is left to know of the app
			}
			subject, err := b.subject(d.id)
			if err != nil {
				return permanent(err)
			}
			return v.purgeKey(ctx, d, subject, h.stored)
		}
		c := comparison{bucket: b, now: time.Now()}
		if _, differs := c.judgeEntry(d.id, e, h); !differs || e.record.sequence > limit {
			return nil // somebody was faster, or will be
		}
		msg, err := b.entry(d.id, e.record, e.header)
		if err != nil {
			return permanent(err)
		}
		msg.Header.Set(subjects.HeaderExpectedLastSequence, strconv.FormatUint(last, 10))
		if _, err := v.js.PublishMsg(ctx, msg, jetstream.WithRetryAttempts(0)); err != nil {
			return fmt.Errorf("write the bucket: %w", err)
		}
		what := "entry"
		if e.record.kind == subjects.Deleted {
			what = "delete marker"
		}
		v.repaired(d, "wrote the bucket's %s from the event %s at %d", what, e.record.kind, e.record.sequence)
		return nil
	})
}

// purgeKey removes a key of the bucket, up to sequence stored of its stream if
// that is not 0.
func (v *verifier) purgeKey(ctx context.Context, d Difference, subject string, stored uint64) error {
	if strings.ContainsAny(subject, "*>") {
		return nil // it would match other keys: left, and reported
	}
	if err := v.entries().purge(ctx, subject, stored); err != nil {
		return err
	}
	v.repaired(d, "purged from the bucket")
	return nil
}

// runSession publishes, once, what a bridge that starts now would publish.
func (v *verifier) runSession(parent context.Context, wait time.Duration) error {
	b, err := New(v.cfg, v.rest, v.nc, v.log.Named("repair"), prometheus.NewRegistry())
	if err != nil {
		return err
	}
	b.clusterUID = v.clusterUID
	if v.lease.Name != "" {
		// No sequence that a bridge has seen acknowledged may be used again.
		if err := v.until(parent, "Kubernetes", func(ctx context.Context) error { return b.readWitness(ctx, v.kube, v.lease) }); err != nil {
			return err
		}
	}
	ctx, stop := context.WithCancel(parent)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	limit := time.NewTimer(wait)
	defer limit.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for b.Ready() != nil {
		select {
		case err := <-done:
			return err
		case <-limit.C:
			why := b.Ready()
			stop()
			return errors.Join(fmt.Errorf("not done within %s: %w", wait, why), <-done)
		case <-parent.Done():
			return errors.Join(context.Cause(parent), <-done)
		case <-tick.C:
		}
	}
	stop()
	return <-done
}

// tellSession says what a session did about the differences that it found,
// before being what it started from.
func (v *verifier) tellSession(ctx context.Context, differences []Difference, before *sides) error {
	now, err := v.look(ctx, nil)
	if err != nil {
		return err
	}
	remaining, _ := v.judge(now)
	left := bySubject(remaining)
	for _, d := range differences {
		if slices.ContainsFunc(left[d.subject()], func(l Difference) bool { return l.Kind == d.Kind }) {
			continue
		}
		switch {
		case d.Kind == DifferenceStreamMissing:
			v.repaired(d, "made stream %s, which begins at %d", v.cfg.Stream, max(now.storage.stream.State.FirstSeq, 1))
		case d.Kind == DifferenceBucketMissing:
			v.repaired(d, "made bucket %s and wrote %d entries", v.cfg.Bucket, len(now.entries))
		case d.App == nil:
		case d.Side == SideStream:
			told, err := v.published(ctx, d.id, before.events[d.id], now.end())
			if err != nil {
				return err
			}
			v.repaired(d, "published %s", told)
		default:
			v.repaired(d, "the bucket reflects %d", now.entries[d.id].sequence())
		}
	}
	return nil
}

// published lists the events of an app after the one that was its last.
func (v *verifier) published(ctx context.Context, id subjects.AppID, before *lastEvent, end uint64) (string, error) {
	filter, err := v.subjects.EventFilter(id)
	if err != nil {
		return "", err
	}
	var from uint64 = 1
	if before != nil {
		from = max(before.record.previous(), before.foreign) + 1
	}
	var told []string
	err = v.reader().eachMessage(ctx, filter, from, end+1, func(m *storedMessage) {
		if r, err := m.record(v.subjects); err == nil {
			told = append(told, fmt.Sprintf("%s at %d", r.kind, r.sequence))
		}
	})
	return strings.Join(told, ", "), err
}

// repaired adds a repair to the report and tells of it.
func (v *verifier) repaired(d Difference, format string, args ...any) {
	r := Repair{App: d.App, Key: d.Key, Kind: d.Kind, Detail: fmt.Sprintf(format, args...)}
	v.report.Repairs = append(v.report.Repairs, r)
	v.report.Repaired = len(v.report.Repairs)
	if v.opts.Repaired != nil {
		v.opts.Repaired(r)
	}
}
