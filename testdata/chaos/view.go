package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// view is the newest version of every Knative Service and Revision, from etcd.
type view struct {
	history *testenv.History
	podLog  *testenv.History // nil: pods do not count

	mu                  sync.Mutex
	taken               int // changes
	services, revisions map[string]*unstructured.Unstructured
	objects             map[string]string // the Service of each app that ever was, by key
	podsTaken           int
	pods                map[string]kservice.PodState
}

func newView(h, pods *testenv.History) *view {
	return &view{
		history: h, podLog: pods, pods: map[string]kservice.PodState{}, objects: map[string]string{},
		services: map[string]*unstructured.Unstructured{}, revisions: map[string]*unstructured.Unstructured{},
	}
}

// update takes in what is new. mu must be held, here and in what follows without a
// lock of its own.
func (v *view) update() {
	for _, c := range v.history.ChangesFrom(v.taken) {
		v.taken++
		v.take(audit.Change(c))
	}
	if v.podLog == nil {
		return
	}
	for _, c := range v.podLog.ChangesFrom(v.podsTaken) {
		v.podsTaken++
		if delete(v.pods, c.Name); !c.Deleted {
			v.pods[c.Name] = audit.PodState(audit.Change(c))
		}
	}
}

func (v *view) take(c audit.Change) {
	all := v.services
	if c.Kind == audit.KindRevision {
		all = v.revisions
	} else if key, ok := keyOf(c.Object); ok {
		v.objects[key] = c.Name
	}
	all[c.Name] = c.Object
	if c.Deleted {
		delete(all, c.Name)
	}
}

// truth is how an app is in the cluster.
type truth struct {
	exists       bool
	uid, version string
	app          *appv1.App
}

// truth of the app of a key.
func (v *view) truth(key string) (truth, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.update()
	return v.truthOf(key)
}

func (v *view) truthOf(key string) (truth, error) {
	o := v.services[v.objects[key]]
	if o == nil {
		return truth{}, nil
	}
	if now, ok := keyOf(o); !ok || now != key || o.GetLabels()[kservice.LabelManaged] != "true" {
		return truth{}, nil
	}
	svc, err := serviceOf(o)
	if err != nil {
		return truth{}, err
	}
	app, err := kservice.Convert(svc, revisionOf(v.revisions[svc.Status.LatestReadyRevisionName]), kservice.Config{BaseDomain: baseDomain})
	if err != nil {
		return truth{}, fmt.Errorf("convert %s: %w", key, err)
	}
	if v.podLog != nil {
		audit.SetPodCondition(app, svc, audit.PodConditionOf(svc, v.pods))
	}
	return truth{exists: true, uid: string(o.GetUID()), version: o.GetResourceVersion(), app: app}, nil
}

// versionOf is the newest version of an object, 0 if there is none.
func (v *view) versionOf(kind, name string) int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.update()
	return v.newest(kind, name)
}

func (v *view) newest(kind, name string) int64 {
	all := v.services
	if kind == audit.KindRevision {
		all = v.revisions
	}
	if all[name] == nil {
		return 0
	}
	return number(all[name].GetResourceVersion())
}

// ownerOf is the key of the app that an object belongs to, "" if none does.
func (v *view) ownerOf(kind, name string) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.update()
	return v.owner(kind, name)
}

func (v *view) owner(kind, name string) string {
	for key, service := range v.objects {
		o := v.services[service]
		switch {
		case kind == audit.KindService && service == name:
			return key
		case kind == audit.KindRevision && o != nil && readyOf(o) == name:
			return key
		}
	}
	return ""
}

func readyOf(o *unstructured.Unstructured) string {
	name, _, err := unstructured.NestedString(o.Object, "status", "latestReadyRevisionName")
	if err != nil {
		return ""
	}
	return name
}

// serviceOf is an object as a bridge decodes and trims it.
func serviceOf(o *unstructured.Unstructured) (*kservice.Service, error) {
	svc := &kservice.Service{ObjectMeta: metav1.ObjectMeta{
		Name: o.GetName(), Namespace: o.GetNamespace(), UID: o.GetUID(), Generation: o.GetGeneration(), ResourceVersion: o.GetResourceVersion(),
		CreationTimestamp: o.GetCreationTimestamp(), DeletionTimestamp: o.GetDeletionTimestamp(),
		Labels: o.GetLabels(), Annotations: o.GetAnnotations(),
	}}
	if err := statusInto(o, &svc.Status); err != nil {
		return nil, fmt.Errorf("decode the status of Service %s: %w", o.GetName(), err)
	}
	_, err := kservice.Trim(svc)
	return svc, err
}

func revisionOf(o *unstructured.Unstructured) *kservice.Revision {
	if o == nil {
		return nil
	}
	rev := &kservice.Revision{}
	rev.Namespace, rev.Name = o.GetNamespace(), o.GetName()
	if statusInto(o, &rev.Status) != nil {
		return nil
	}
	return rev
}

func statusInto(o *unstructured.Unstructured, into any) error {
	status, there := o.Object["status"]
	if !there {
		return nil
	}
	data, err := json.Marshal(status)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

// shown is what stream and bucket say of an app: nil where there is no message.
type shown struct{ event, entry *audit.Message }

// judge says what stream and bucket say wrongly of an app, "" if nothing. Without
// owed, the app's last event may have been removed from the stream.
func (t truth) judge(s shown, owed bool) string {
	event := s.event
	if event != nil && event.Header.Get(subjects.CEType) == "" {
		event = nil // no event
	}
	switch {
	case event == nil && owed && t.exists:
		return "the stream has no event of it"
	case event == nil:
	case !t.exists && event.Header.Get(subjects.CEType) != subjects.Deleted.Type():
		return "the app is gone, and its last event is no delete"
	case t.exists:
		if why := t.shownBy(*event); why != "" {
			return "the last event: " + why
		}
	}
	entry := s.entry
	marker := entry != nil && entry.Header.Get(subjects.HeaderKVOperation) != ""
	switch {
	case !t.exists && entry != nil && !marker:
		return "the bucket has an entry of an app that is gone"
	case !t.exists:
		return ""
	case entry == nil:
		return "the bucket has no entry of it"
	case marker:
		return "the bucket has a delete marker of it"
	}
	if event != nil && entry.Header.Get(subjects.HeaderEventSequence) != strconv.FormatUint(event.Sequence, 10) {
		return fmt.Sprintf("the entry reflects sequence %s, the last event has %d", entry.Header.Get(subjects.HeaderEventSequence), event.Sequence)
	}
	if why := t.shownBy(*entry); why != "" {
		return "the entry: " + why
	}
	return ""
}

// shownBy says what an event or an entry of an app that exists says wrongly.
func (t truth) shownBy(m audit.Message) string {
	if got := m.Header.Get(subjects.HeaderUID); got != t.uid {
		return fmt.Sprintf("it has uid %s, the object %s", got, t.uid)
	}
	if got := m.Header.Get(subjects.HeaderResourceVersion); got != t.version {
		return fmt.Sprintf("it has version %s, the object %s", got, t.version)
	}
	if m.Header.Get(subjects.HeaderTruncated) != "" {
		return ""
	}
	app, err := appIn(m)
	if err != nil {
		return err.Error()
	}
	if !proto.Equal(app, t.app) {
		if got, want := app.GetStatus().GetCurrentReplicas(), t.app.GetStatus().GetCurrentReplicas(); got != want {
			return fmt.Sprintf("it has %d replicas, the app %d", got, want)
		}
		return "it has another App"
	}
	return ""
}

// appIn is the App that an event or an entry shows.
func appIn(m audit.Message) (*appv1.App, error) {
	form := m.Header.Get(subjects.CEDataContentType)
	app := &appv1.App{}
	if m.Header.Get(subjects.HeaderEventSequence) != "" {
		return app, appv1.Decode(m.Data, form, app)
	}
	w := &appv1.WatchResponse{}
	if err := appv1.Decode(m.Data, form, w); err != nil {
		return nil, err
	}
	switch {
	case w.GetCreateEvent() != nil:
		app = w.GetCreateEvent().GetApp()
	case w.GetUpdateEvent() != nil:
		app = w.GetUpdateEvent().GetUpdatedApp()
	default:
		return nil, errors.New("it shows no App")
	}
	return app, nil
}

// wrong says what stream and bucket say wrongly of some apps, "" if nothing.
func (w *world) wrong(ctx context.Context, keys []string, owed bool) string {
	for _, key := range keys {
		t, err := w.view.truth(key)
		if err != nil {
			return err.Error()
		}
		s, err := w.events.shown(ctx, w.names, key)
		if err != nil {
			return err.Error()
		}
		if why := t.judge(s, owed); why != "" {
			return key + ": " + why
		}
	}
	return ""
}

// shown reads an app's last event and its entry from the leaders of their streams.
func (r *recorder) shown(ctx context.Context, names subjects.Subjects, key string) (s shown, err error) {
	id, err := subjects.ParseKey(key)
	if err != nil {
		return s, err
	}
	filter, err := names.EventFilter(id)
	if err != nil {
		return s, err
	}
	if s.event, err = r.last(ctx, subjects.DefaultStream, filter); err != nil {
		return s, err
	}
	s.entry, err = r.last(ctx, subjects.BucketStream(subjects.DefaultBucket), subjects.BucketSubject(subjects.DefaultBucket, key))
	return s, err
}

// last is the last message of a subject, as the stream's leader has it, nil without one.
func (r *recorder) last(ctx context.Context, stream, subject string) (*audit.Message, error) {
	limit, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	body, err := json.Marshal(map[string]string{"last_by_subj": subject})
	if err != nil {
		return nil, err
	}
	reply, err := r.conn.RequestWithContext(limit, "$JS.API.STREAM.MSG.GET."+stream, body)
	if err != nil {
		return nil, fmt.Errorf("read the last message of %s: %w", subject, err)
	}
	var answer struct {
		Error   *jetstream.APIError
		Message struct {
			Subject    string
			Seq        uint64
			Hdrs, Data []byte
			Time       time.Time
		}
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return nil, fmt.Errorf("read the last message of %s: %w", subject, err)
	}
	if answer.Error != nil {
		if answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound {
			return nil, nil
		}
		return nil, fmt.Errorf("read the last message of %s: %w", subject, answer.Error)
	}
	m := &audit.Message{Subject: answer.Message.Subject, Sequence: answer.Message.Seq, Header: nats.Header{}, Data: answer.Message.Data, Stored: answer.Message.Time}
	if len(answer.Message.Hdrs) > 0 {
		if m.Header, err = nats.DecodeHeadersMsg(answer.Message.Hdrs); err != nil {
			return nil, fmt.Errorf("read the last message of %s: %w", subject, err)
		}
	}
	return m, nil
}
