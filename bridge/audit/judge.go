package audit

import (
	"cmp"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

// judge returns the differences between the sides.
func (t *Target) judge(s *sides) ([]Difference, []Note) {
	if len(s.blocked) > 0 {
		return s.blocked, nil
	}
	differences, notes := comparison{t: t, s: s, now: time.Now(), refused: t.refused(s)}.compare()
	if s.storage.Stream == nil {
		differences = append(differences, whole(DifferenceStreamMissing, SideStream, "there is no stream %s", t.Stream))
	}
	if s.storage.Bucket == nil {
		differences = append(differences, whole(DifferenceBucketMissing, SideBucket, "there is no bucket %s", t.Bucket))
	}
	if s.believed == nil {
		differences = append(differences, t.judgeWhole(s)...)
	}
	for subject, sequence := range s.keys {
		d := whole(DifferenceForeignKey, SideBucket, "a key that is no app's in the bucket, at sequence %d of its stream", sequence)
		key, _ := subjects.ParseBucketSubject(t.Bucket, subject)
		d.Key, d.at = cmp.Or(key, subject), subject
		differences = append(differences, d)
	}
	sortDifferences(differences)
	return differences, notes
}

// judgeWhole compares the cluster's name and history. A running bridge checks both by itself.
func (t *Target) judgeWhole(s *sides) (differences []Difference) {
	for side, info := range map[Side]*jetstream.StreamInfo{SideStream: s.storage.Stream, SideBucket: s.storage.Bucket} {
		if info == nil {
			continue
		}
		if name := s.storage.OtherName(info.Config); name != "" {
			differences = append(differences, whole(DifferenceClusterName, side,
				"it names the cluster %q, --cluster-name is %q: a bridge with this name would change ce-source", name, t.ClusterName))
		}
	}
	if err := app.CheckHistory(s.published(), s.version, s.storage.Accepted()); err != nil {
		d := whole(DifferenceHistory, SideCluster, "%v", err)
		d.Same = "the history" // Detail has the highest version of all
		differences = append(differences, d)
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
