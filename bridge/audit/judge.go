package audit

import (
	"fmt"
	"iter"
	"maps"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

// apps counts the apps that any side has.
func (s *sides) apps() int {
	ids := map[subjects.AppID]bool{}
	for _, side := range []iter.Seq[subjects.AppID]{maps.Keys(s.current), maps.Keys(s.events), maps.Keys(s.entries)} {
		for id := range side {
			ids[id] = true
		}
	}
	return len(ids)
}

// judge returns the differences between the sides.
func (t *Target) judge(s *sides) ([]Difference, []Note) {
	if len(s.blocked) > 0 {
		return s.blocked, nil
	}
	var differences []Difference
	c := comparison{
		app: t.App, watched: t.Watched,
		bucket: t.Entries, now: time.Now(),
		pending:  s.pending,
		refused:  t.refused(s),
		believed: s.believed,
	}
	if s.storage.Stream == nil {
		c.noStream = true
		differences = append(differences, Difference{
			Kind: DifferenceStreamMissing, Side: SideStream, Detail: fmt.Sprintf("there is no stream %s", t.Stream),
		})
	} else {
		c.streamEnd = s.storage.Stream.State.LastSeq
		c.streamFirst = s.storage.Stream.State.FirstSeq
		c.keepsNewest = s.storage.Stream.Config.Retention == jetstream.LimitsPolicy
	}
	if s.storage.Bucket == nil {
		c.noBucket = true
		differences = append(differences, Difference{
			Kind: DifferenceBucketMissing, Side: SideBucket, Detail: fmt.Sprintf("there is no bucket %s", t.Bucket),
		})
	}
	if s.believed == nil {
		differences = append(differences, t.judgeWhole(s)...)
	}
	for subject, sequence := range s.keys {
		key, err := subjects.ParseBucketSubject(t.Bucket, subject)
		if err != nil {
			key = subject
		}
		differences = append(differences, Difference{
			Key: key, Kind: DifferenceForeignKey, Side: SideBucket, at: subject,
			Detail: fmt.Sprintf("a key that is no app's in the bucket, at sequence %d of its stream", sequence),
		})
	}
	found, notes := c.compare(s.current, s.events, s.entries)
	differences = append(differences, found...)
	sortDifferences(differences)
	return differences, notes
}

// judgeWhole compares the cluster's name and history. A running bridge checks both by itself.
func (t *Target) judgeWhole(s *sides) (differences []Difference) {
	for _, i := range []struct {
		side Side
		info *jetstream.StreamInfo
	}{{SideStream, s.storage.Stream}, {SideBucket, s.storage.Bucket}} {
		if i.info == nil {
			continue
		}
		if name := s.storage.OtherName(i.info.Config); name != "" {
			differences = append(differences, Difference{
				Kind: DifferenceClusterName, Side: i.side,
				Detail: fmt.Sprintf("it names the cluster %q, --cluster-name is %q: a bridge with this name would change ce-source", name, t.ClusterName),
			})
		}
	}
	if err := app.CheckHistory(lastPublished(s.events, s.entries), s.version, s.storage.Accepted()); err != nil {
		differences = append(differences, Difference{Kind: DifferenceHistory, Side: SideCluster, Detail: err.Error()})
	}
	return differences
}

// refused returns a function that reports why the publisher could not publish a state.
func (t *Target) refused(s *sides) func(subjects.AppID, app.State, *app.Record) error {
	var limit int64
	if s.storage.Stream != nil {
		limit = int64(s.storage.Stream.Config.MaxMsgSize)
	}
	e := t.Encoder(limit)
	return func(id subjects.AppID, now app.State, prev *app.Record) error {
		if prev != nil && prev.Exists() && prev.UID != string(now.Service.UID) {
			prev = &app.Record{Kind: subjects.Deleted, Sequence: prev.Sequence} // a delete comes between
		}
		_, err := e.Encode(id, app.NewUpsert(now, !prev.Exists()), prev)
		return err
	}
}
