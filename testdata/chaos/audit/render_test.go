package audit_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

const bucket = "flyte-apps"

// published is the last event of an app, as render goes along.
type published struct {
	kind     subjects.EventKind
	sequence uint64
	header   nats.Header
	app      *appv1.App
	taken    bool
	removed  bool
	before   *published // of the same app
}

// render writes the steps as the bridge does, and the bucket that follows.
func (w *world) render() audit.Input {
	w.t.Helper()
	s, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		w.t.Fatal(err)
	}
	in := audit.Input{
		Changes: slices.Clone(w.changes), Gaps: slices.Clone(w.gaps),
		Subjects: s, Bucket: bucket, ClusterName: "test", App: kservice.Config{BaseDomain: "example.com"},
	}
	last, shown := map[subjects.AppID]*published{}, map[subjects.AppID]*published{}
	epoch, sequence := 0, uint64(0)
	for i, step := range w.steps {
		for ; epoch < len(w.losses) && w.losses[epoch].end == i; epoch++ {
			in.Losses = append(in.Losses, w.losses[epoch].render(&in, &sequence, epoch))
			rewind(last)
			rewind(shown)
		}
		sequence++
		msg, now := w.event(&in, step, last[step.app.id], sequence)
		if step.message != nil {
			step.message(&msg)
		}
		msg.Epoch = epoch
		if step.removed {
			in.Removed = append(in.Removed, subjects.LostRange{From: sequence, To: sequence})
		}
		in.Events = append(in.Events, msg)
		now.taken, now.removed, now.before = step.taken, step.removed, last[step.app.id]
		last[step.app.id] = now
		if w.frozen == 0 || i < w.frozen || step.app.name != "checkout" {
			shown[step.app.id] = now
		}
	}
	if epoch < len(w.losses) {
		in.Losses = append(in.Losses, w.losses[epoch].render(&in, &sequence, epoch))
		rewind(shown)
	}
	for _, id := range slices.SortedFunc(maps.Keys(shown), func(a, b subjects.AppID) int { return strings.Compare(a.String(), b.String()) }) {
		in.Entries = append(in.Entries, w.entry(id, shown[id], uint64(len(in.Entries)+1)))
	}
	if w.final != nil {
		w.final(&in)
	}
	return in
}

func (w *world) event(in *audit.Input, s *step, prev *published, sequence uint64) (audit.Message, *published) {
	id, now := s.app.id, &published{sequence: sequence}
	if s.forgotten {
		prev = nil
	}
	known := prev // the newest event; prev is what the content goes on from
	for w.bucket && !s.removed && prev != nil && prev.removed {
		prev = prev.before
	}
	exists := prev != nil && prev.kind != subjects.Deleted
	if s.again {
		first := in.Events[prev.sequence-1]
		return audit.Message{Subject: first.Subject, Sequence: sequence, Header: first.Header, Data: first.Data, Stored: s.at}, prev
	}
	h := nats.Header{}
	payload := &appv1.WatchResponse{}
	if s.remove {
		now.kind = subjects.Deleted
		if prev == nil {
			w.t.Fatalf("%s: a delete of nothing", id)
		}
		for _, name := range []string{subjects.HeaderUID, subjects.HeaderResourceVersion, subjects.HeaderGeneration, subjects.HeaderNamespace, subjects.CETime} {
			h.Set(name, prev.header.Get(name))
		}
		h.Set(subjects.HeaderUID, s.uid)
		if s.deletedVersion != "" {
			h.Set(subjects.HeaderDeletedResourceVersion, s.deletedVersion)
		}
		now.app = prev.app
	} else {
		now.kind = subjects.Created
		if exists {
			now.kind = subjects.Updated
		}
		h.Set(subjects.HeaderUID, s.uid)
		h.Set(subjects.HeaderResourceVersion, s.service.ResourceVersion)
		h.Set(subjects.HeaderGeneration, strconv.FormatInt(s.service.Generation, 10))
		h.Set(subjects.HeaderNamespace, s.service.Namespace)
		h.Set(subjects.CETime, kservice.LastChange(s.service).UTC().Format(time.RFC3339Nano))
		if s.rev != nil {
			h.Set(subjects.HeaderRevision, s.rev.Name)
			h.Set(subjects.HeaderRevisionResourceVersion, s.rev.ResourceVersion)
		}
		app, err := kservice.ConvertCounting(s.service, s.rev, in.App)
		if err != nil {
			w.t.Fatal(err)
		}
		now.app = app
	}
	if s.change != nil {
		now.app = proto.CloneOf(now.app)
		s.change(now.app)
	}
	if strings.Contains(s.truncated, subjects.TruncatedSpec) {
		now.app = proto.CloneOf(now.app)
		now.app.Spec = nil
	}
	if s.truncated != "" {
		h.Set(subjects.HeaderTruncated, s.truncated)
	}
	if s.kind != "" {
		now.kind = s.kind
	}
	switch now.kind {
	case subjects.Created:
		payload = apptest.Created(now.app)
	case subjects.Updated:
		var old *appv1.App
		if prev != nil && !strings.Contains(s.truncated, subjects.TruncatedOldApp) {
			old = prev.app
		}
		payload = apptest.Updated(now.app, old)
	case subjects.Deleted:
		payload = apptest.Deleted(now.app)
	}
	var before uint64
	if known != nil {
		before = known.sequence
		h.Set(subjects.HeaderPreviousSequence, strconv.FormatUint(before, 10))
	}
	key, _ := id.Key()
	subject, _ := in.Subjects.Event(id, now.kind)
	filter, _ := in.Subjects.EventFilter(id)
	msgID := subjects.MessageID{UID: h.Get(subjects.HeaderUID), ResourceVersion: h.Get(subjects.HeaderResourceVersion), PreviousSequence: before}.String()
	for name, value := range map[string]string{
		subjects.HeaderMsgID: msgID, subjects.CEID: msgID, subjects.CESpecVersion: "1.0", subjects.CESource: "/appbridge/test", subjects.CEDataSchema: subjects.DataSchema,
		subjects.CEType: now.kind.Type(), subjects.CESubject: key, subjects.CEDataContentType: cmp.Or(w.form, subjects.ContentTypeJSON),
		subjects.HeaderExpectedLastSubjectSequence:        strconv.FormatUint(before, 10),
		subjects.HeaderExpectedLastSubjectSequenceSubject: filter,
	} {
		h.Set(name, value)
	}
	if s.merged > 0 {
		h.Set(subjects.HeaderMergedUpdates, strconv.Itoa(s.merged))
	}
	if s.synthesized {
		h.Set(subjects.HeaderSynthesized, subjects.FlagTrue)
	}
	if s.lost {
		h.Set(subjects.HeaderFinalStateUnknown, subjects.FlagTrue)
	}
	now.header = h
	return audit.Message{Subject: subject, Sequence: sequence, Header: h, Data: w.encode(payload), Stored: s.at}, now
}

func (w *world) entry(id subjects.AppID, last *published, sequence uint64) audit.Message {
	key, _ := id.Key()
	h := nats.Header{}
	for name, values := range last.header {
		if !strings.HasPrefix(name, "Nats-") {
			h[name] = slices.Clone(values)
		}
	}
	h.Set(subjects.HeaderEventSequence, strconv.FormatUint(last.sequence, 10))
	h.Set(subjects.HeaderExpectedLastSequence, fmt.Sprint(sequence-1))
	msg := audit.Message{Subject: subjects.BucketSubject(bucket, key), Sequence: sequence, Header: h}
	if last.kind == subjects.Deleted {
		h.Set(subjects.HeaderKVOperation, subjects.KVDelete)
		return msg
	}
	msg.Data = w.encode(last.app)
	return msg
}

func (w *world) encode(m proto.Message) []byte {
	if w.form == subjects.ContentTypeProtobuf {
		data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			w.t.Fatal(err)
		}
		return data
	}
	spaced, err := protojson.Marshal(m)
	if err != nil {
		w.t.Fatal(err)
	}
	var out bytes.Buffer
	if err := json.Compact(&out, spaced); err != nil {
		w.t.Fatal(err)
	}
	return out.Bytes()
}

func (w *world) decode(data []byte) *appv1.WatchResponse {
	payload := &appv1.WatchResponse{}
	if err := protojson.Unmarshal(data, payload); err != nil {
		w.t.Fatal(err)
	}
	return payload
}
