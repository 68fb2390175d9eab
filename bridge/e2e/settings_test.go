package e2e_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/bridge/audit"
	"github.com/appbridge/appbridge/subjects"
)

// refusedEdit is an edit of a live stream or bucket that the server accepts, and that a bridge refuses.
type refusedEdit struct {
	bucket  bool
	change  func(*jetstream.StreamConfig)
	setting string // in the reason at /readyz
	moves   bool   // messages are stored under other subjects
	restart bool   // another bridge goes on, which knows of no acknowledgement
}

var refusedEdits = map[string]refusedEdit{
	"transform out of the events": {change: transform("flyte.apps.events.>", "elsewhere.events.>"), setting: "subject_transform", moves: true},
	"transform to another app":    {change: transform("flyte.apps.events.vision.*.*.*", "flyte.apps.events.other.{{wildcard(1)}}.{{wildcard(2)}}.{{wildcard(3)}}"), setting: "subject_transform", moves: true},
	"transform, then a restart":   {change: transform("flyte.apps.events.>", "elsewhere.events.>"), setting: "subject_transform", moves: true, restart: true},
	"transform of the bucket":     {bucket: true, change: transform("$KV.flyte-apps.>", "$KV.elsewhere.>"), setting: "subject_transform"},
	"no ack":                      {change: func(c *jetstream.StreamConfig) { c.NoAck = true }, setting: "no_ack"},
	"no ack of the bucket":        {bucket: true, change: func(c *jetstream.StreamConfig) { c.NoAck = true }, setting: "no_ack"},
	"subjects of the bucket":      {bucket: true, change: func(c *jetstream.StreamConfig) { c.Subjects = []string{"$KV.other.>"} }, setting: "subjects"},
	"subjects narrowed":           {change: func(c *jetstream.StreamConfig) { c.Subjects = []string{"flyte.apps.events.other.>"} }, setting: "subjects"},
	"interest":                    {change: func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy }, setting: "retention"},
	"new per subject": {change: func(c *jetstream.StreamConfig) {
		c.Discard, c.DiscardNewPerSubject, c.MaxMsgsPerSubject = jetstream.DiscardNew, true, 1
	}, setting: "discard_new_per_subject"},
	"threshold":              {bucket: true, change: func(c *jetstream.StreamConfig) { c.ConsumerLimits.InactiveThreshold = time.Second }, setting: "consumer_limits.inactive_threshold"},
	"limit of values":        {bucket: true, change: func(c *jetstream.StreamConfig) { c.MaxMsgSize = 8192 }, setting: "max_msg_size 8192"},
	"identity":               {change: otherID, setting: "do not belong together"},
	"identity of the bucket": {bucket: true, change: otherID, setting: "do not belong together"},
	"consumers":              {bucket: true, change: func(c *jetstream.StreamConfig) { c.MaxConsumers = 1 }, setting: "max_consumers"},
}

func otherID(c *jetstream.StreamConfig) { c.Metadata[subjects.MetadataStreamID] = "another" }

func transform(from, to string) func(*jetstream.StreamConfig) {
	return func(c *jetstream.StreamConfig) {
		c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: from, Destination: to}
	}
}

// A live edit to a refused setting: the bridge is not ready within seconds and names it, verify names
// it and repairs nothing, and once it is taken back all that is owed is in stream and bucket, also the
// changes that were acknowledged and stored elsewhere before the edit was noticed.
func TestSettingRefusedLive(t *testing.T) {
	t.Parallel()
	for name, edit := range refusedEdits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			cfg := w.audited()
			r := w.start(cfg)
			one, gone := w.create(w.app("one")), w.create(w.app("gone"))
			w.converged(w.waitFor(0, "created one", "created gone"))
			of := cfg.Stream
			if edit.bucket {
				of = subjects.BucketStream(cfg.Bucket)
			}
			before := w.stream(of).CachedInfo().Config
			w.changeStream(of, edit.change)
			// At once: some of it is published before the edit is noticed.
			w.create(w.app("new"))
			must[*servingv1.Service](t)(w.Progressing(t.Context(), one))
			must[any](t)(nil, w.Client.Delete(t.Context(), gone))
			r.notReady(edit.setting)

			stands := w.ends(cfg.Stream, subjects.BucketStream(cfg.Bucket))
			must[*servingv1.Service](t)(w.Failed(t.Context(), one, "Broken", "it is"))
			w.create(w.app("later"))
			looked := r.metric("appbridge_resyncs_total")
			eventually(t, "it looks again, twice", func() error {
				if now := r.metric("appbridge_resyncs_total"); now < looked+2 {
					return fmt.Errorf("%v times", now-looked)
				}
				return nil
			})
			r.notReady(edit.setting)
			report, err := w.verify(cfg, audit.Options{Repair: true})
			if err == nil || !strings.Contains(err.Error(), "nothing is repaired, since this is for an operator to decide") || !strings.Contains(err.Error(), edit.setting) {
				t.Errorf("verify --repair: got %v", err)
			}
			if got := kinds(report); len(got) != 1 || got[0] != string(audit.DifferenceUnfit) {
				t.Errorf("verify: got %v, want %s", report.Differences, audit.DifferenceUnfit)
			}
			if now := w.ends(cfg.Stream, subjects.BucketStream(cfg.Bucket)); now != stands {
				t.Errorf("it published or wrote: the streams ended at %s, now %s", stands, now)
			}

			if edit.restart {
				_ = r.stop() // what it could not publish is an error
			}
			must[jetstream.Stream](t)(w.js.UpdateStream(t.Context(), before))
			if edit.restart {
				r = w.launch(cfg, nil)
			}
			r.waitReady()
			w.noneOwed(cfg)
			if edit.moves && !w.storedElsewhere(cfg.Stream) {
				t.Error("nothing was stored elsewhere: this test tests nothing")
			}
			if n := r.metric("appbridge_resyncs_total"); edit.restart && n > 3 {
				t.Errorf("it resynced %v times: the ids of what was stored elsewhere are rejected", n)
			}
		})
	}
}

// ends are the last sequences of streams.
func (w *world) ends(names ...string) string {
	w.t.Helper()
	var ends []string
	for _, name := range names {
		ends = append(ends, fmt.Sprint(w.stream(name).CachedInfo().State.LastSeq))
	}
	return strings.Join(ends, ", ")
}

// noneOwed waits until a repair of what no bridge touches, foreign keys, is all that verify needs.
func (w *world) noneOwed(cfg bridge.Config) {
	w.t.Helper()
	eventually(w.t, "verify finds nothing", func() error {
		report, err := w.verify(cfg, audit.Options{})
		if err != nil || len(report.Differences) == 0 {
			return err
		}
		for _, d := range report.Differences {
			if d.Kind != audit.DifferenceForeignKey {
				return errors.New(d.String())
			}
		}
		_, err = w.verify(cfg, audit.Options{Repair: true})
		return err
	})
	w.findsNothing(cfg, 0)
}

// storedElsewhere reports whether the stream has a message that is no event of vision.
func (w *world) storedElsewhere(stream string) bool {
	w.t.Helper()
	s := w.stream(stream)
	for seq := uint64(1); seq <= s.CachedInfo().State.LastSeq; seq++ {
		m, err := s.GetMsg(w.t.Context(), seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		must[any](w.t)(nil, err)
		if !strings.HasPrefix(m.Subject, "flyte.apps.events.vision.") {
			return true
		}
	}
	return false
}
