package e2e_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// stored is a message of the event stream.
type stored struct {
	id       subjects.AppID
	kind     subjects.EventKind
	sequence uint64
	msg      *jetstream.RawStreamMsg
	payload  *appv1.WatchResponse
}

func (e stored) header(name string) string { return e.msg.Header.Get(name) }

// String is the event as the tables of these tests write it.
func (e stored) String() string {
	version := e.header(subjects.HeaderResourceVersion)
	if e.kind == subjects.Deleted {
		version = e.header(subjects.HeaderDeletedResourceVersion)
	}
	return fmt.Sprintf("%s %s@%s", e.kind, e.header(subjects.HeaderUID), version)
}

// app is the App that the event leaves behind, or the one it ends.
func (e stored) app() *appv1.App {
	switch e.kind {
	case subjects.Created:
		return e.payload.GetCreateEvent().GetApp()
	case subjects.Updated:
		return e.payload.GetUpdateEvent().GetUpdatedApp()
	default:
		return e.payload.GetDeleteEvent().GetApp()
	}
}

// events reads the stream after a sequence.
func (w *world) events(after uint64) []stored {
	w.t.Helper()
	s := must[subjects.Subjects](w.t)(subjects.New(subjects.DefaultPrefix))
	stream := must[jetstream.Stream](w.t)(w.js.Stream(w.t.Context(), subjects.DefaultStream))
	state := must[*jetstream.StreamInfo](w.t)(stream.Info(w.t.Context())).State
	var events []stored
	for seq := max(after+1, state.FirstSeq); seq <= state.LastSeq; seq++ {
		msg := must[*jetstream.RawStreamMsg](w.t)(stream.GetMsg(w.t.Context(), seq))
		id, kind, err := s.ParseEvent(msg.Subject)
		if err != nil {
			w.t.Fatal(err)
		}
		payload := &appv1.WatchResponse{}
		switch form := msg.Header.Get(subjects.CEDataContentType); form {
		case subjects.ContentTypeJSON:
			err = protojson.Unmarshal(msg.Data, payload)
		case subjects.ContentTypeProtobuf:
			err = proto.Unmarshal(msg.Data, payload)
		default:
			err = fmt.Errorf("content type %q", form)
		}
		if err != nil {
			w.t.Fatalf("sequence %d: %v", seq, err)
		}
		events = append(events, stored{id: id, kind: kind, sequence: seq, msg: msg, payload: payload})
	}
	return events
}

// lastSequence is the end of the stream.
func (w *world) lastSequence() uint64 {
	w.t.Helper()
	stream := must[jetstream.Stream](w.t)(w.js.Stream(w.t.Context(), subjects.DefaultStream))
	return stream.CachedInfo().State.LastSeq
}

// entries reads the bucket: what exists and the delete markers.
func (w *world) entries() map[subjects.AppID]*jetstream.RawStreamMsg {
	w.t.Helper()
	stream := must[jetstream.Stream](w.t)(w.js.Stream(w.t.Context(), subjects.BucketStream(subjects.DefaultBucket)))
	state := must[*jetstream.StreamInfo](w.t)(stream.Info(w.t.Context(), jetstream.WithSubjectFilter(">"))).State
	entries := map[subjects.AppID]*jetstream.RawStreamMsg{}
	for subject := range state.Subjects {
		msg, err := stream.GetLastMsgForSubject(w.t.Context(), subject)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue // removed meanwhile
		}
		must[any](w.t)(nil, err)
		key := must[string](w.t)(subjects.ParseBucketSubject(subjects.DefaultBucket, subject))
		entries[must[subjects.AppID](w.t)(subjects.ParseKey(key))] = msg
	}
	return entries
}

// service reads an object as the conversion sees it.
func (w *world) service(object *unstructured.Unstructured) *kservice.Service {
	w.t.Helper()
	svc := &kservice.Service{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, svc); err != nil {
		w.t.Fatal(err)
	}
	return svc
}

// truth is what the API server showed, per app, in the words of stored.String.
// It is made for objects whose annotation never changes and that are alone in
// claiming their app.
func (w *world) truth(observations []testenv.Observation) map[subjects.AppID][]string {
	w.t.Helper()
	want := map[subjects.AppID][]string{}
	for _, o := range observations {
		id := must[subjects.AppID](w.t)(kservice.ID(w.service(o.Object)))
		kind := map[watch.EventType]subjects.EventKind{
			watch.Added: subjects.Created, watch.Modified: subjects.Updated, watch.Deleted: subjects.Deleted,
		}[o.Type]
		want[id] = append(want[id], fmt.Sprintf("%s %s@%s", kind, o.UID, o.ResourceVersion))
	}
	return want
}

// holdsAll waits until the stream holds as many events as were observed.
func (w *world) holdsAll(observations []testenv.Observation) {
	w.t.Helper()
	eventually(w.t, "all events are in the stream", func() error {
		stream, err := w.js.Stream(w.t.Context(), subjects.DefaultStream)
		if err != nil {
			return err // the stream may be electing a leader
		}
		if got := int(stream.CachedInfo().State.LastSeq); got < len(observations) {
			return fmt.Errorf("%d of %d", got, len(observations))
		}
		return nil
	})
}

// noStateTwice fails if a state of an app is told twice. Deletes are left out:
// those that nobody observed have no version to tell them apart.
func noStateTwice(t *testing.T, events []stored) {
	t.Helper()
	seen := map[string]bool{}
	for _, e := range events {
		if e.kind != subjects.Deleted && seen[e.String()] {
			t.Errorf("sequence %d: %s is there twice", e.sequence, e)
		}
		seen[e.String()] = true
	}
}

// checkOrder fails unless the stream holds, per app, exactly want.
func (w *world) checkOrder(want map[subjects.AppID][]string, events []stored) {
	w.t.Helper()
	got := map[subjects.AppID][]string{}
	for _, e := range events {
		got[e.id] = append(got[e.id], e.String())
	}
	for id := range want {
		if !slices.Equal(got[id], want[id]) {
			w.t.Errorf("%s: the stream holds\n  %s\nwant\n  %s", id, strings.Join(got[id], "\n  "), strings.Join(want[id], "\n  "))
		}
	}
	for id := range got {
		if want[id] == nil {
			w.t.Errorf("%s: the stream holds %v, want nothing", id, got[id])
		}
	}
}

// checkHeaders fails unless the headers of every event are those of the
// contract and each event refers to the one before.
func (w *world) checkHeaders(events []stored) {
	w.t.Helper()
	previous := map[subjects.AppID]stored{}
	for _, e := range events {
		before, had := previous[e.id]
		previous[e.id] = e
		key := must[string](w.t)(e.id.Key())
		var fence uint64
		wantPrevious, wantVersion, wantStatus := "", e.header(subjects.HeaderResourceVersion), ""
		if had {
			fence, wantPrevious = before.sequence, strconv.FormatUint(before.sequence, 10)
		}
		if e.kind == subjects.Deleted {
			wantVersion = before.header(subjects.HeaderResourceVersion)
			if got := e.header(subjects.HeaderAppStatus); got != "" {
				w.t.Errorf("sequence %d (%s %s): header %s is %q on a delete", e.sequence, e.kind, e.id, subjects.HeaderAppStatus, got)
			}
		}
		if e.kind != subjects.Created {
			wantStatus = before.header(subjects.HeaderAppStatus)
		}
		id := subjects.MessageID{UID: e.header(subjects.HeaderUID), ResourceVersion: wantVersion, PreviousSequence: fence}.String()
		for name, want := range map[string]string{
			subjects.HeaderMsgID:            id,
			subjects.CEID:                   id,
			subjects.CESpecVersion:          "1.0",
			subjects.CESource:               "/appbridge/test",
			subjects.CEType:                 e.kind.Type(),
			subjects.CESubject:              key,
			subjects.CEDataContentType:      subjects.ContentTypeJSON,
			subjects.CEDataSchema:           subjects.DataSchema,
			subjects.HeaderNamespace:        w.namespace,
			subjects.HeaderPreviousSequence: wantPrevious,

			subjects.HeaderPreviousAppStatus: wantStatus,
		} {
			if got := e.header(name); got != want {
				w.t.Errorf("sequence %d (%s %s): header %s is %q, want %q", e.sequence, e.kind, e.id, name, got, want)
			}
		}
		for _, name := range []string{subjects.HeaderUID, subjects.HeaderResourceVersion, subjects.HeaderGeneration, subjects.CETime} {
			if e.header(name) == "" {
				w.t.Errorf("sequence %d (%s %s): header %s is missing", e.sequence, e.kind, e.id, name)
			}
		}
		if e.kind == subjects.Updated && !proto.Equal(e.payload.GetUpdateEvent().GetOldApp(), before.app()) {
			w.t.Errorf("sequence %d (%s): old_app is not the app of sequence %d", e.sequence, e.id, before.sequence)
		}
	}
}

// bucketDrift compares the bucket with the cluster and the end of the stream.
func (w *world) bucketDrift(cfg kservice.Config, events []stored) error {
	w.t.Helper()
	live := map[subjects.AppID]*kservice.Service{}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kservice.GroupVersion().WithKind("ServiceList"))
	if err := w.Client.List(w.t.Context(), list, inNamespace(w.namespace), managed()); err != nil {
		return err
	}
	for i := range list.Items {
		svc := w.service(&list.Items[i])
		if id, err := kservice.ID(svc); err == nil && id.Validate() == nil {
			live[id] = svc
		}
	}
	last := map[subjects.AppID]stored{}
	for _, e := range events {
		last[e.id] = e
	}
	entries := w.entries()
	for id, entry := range entries {
		svc, exists := live[id]
		switch deleted := entry.Header.Get(subjects.HeaderKVOperation) != ""; {
		case deleted && exists:
			return fmt.Errorf("%s: the bucket says deleted, the cluster has it", id)
		case !deleted && !exists:
			return fmt.Errorf("%s: the bucket has it, the cluster has not", id)
		}
		if got, want := entry.Header.Get(subjects.HeaderEventSequence), strconv.FormatUint(last[id].sequence, 10); got != want {
			return fmt.Errorf("%s: the bucket reflects sequence %s, its last event is %s", id, got, want)
		}
		for _, name := range []string{subjects.HeaderUID, subjects.HeaderResourceVersion, subjects.CEType, subjects.CEID, subjects.CETime} {
			if got, want := entry.Header.Get(name), last[id].header(name); got != want {
				return fmt.Errorf("%s: bucket header %s is %q, its event's %q", id, name, got, want)
			}
		}
		if !exists {
			continue
		}
		got := &appv1.App{}
		if err := protojson.Unmarshal(entry.Data, got); err != nil {
			return err
		}
		want, err := kservice.Convert(svc, nil, cfg)
		if err != nil {
			return err
		}
		want.Status.CurrentReplicas = got.Status.GetCurrentReplicas() // compared where Revisions are part of the test
		if !proto.Equal(got, want) {
			return fmt.Errorf("%s: the bucket holds %v, the cluster %v", id, got, want)
		}
	}
	for id := range live {
		if entries[id] == nil {
			return fmt.Errorf("%s: not in the bucket", id)
		}
	}
	return nil
}
