package app

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// encodedAs is a message as encoding the whole of it yields it.
func encodedAs(t *testing.T, m proto.Message, form string) ([]byte, string) {
	t.Helper()
	data, got, err := appv1.Encode(m, form)
	if err != nil {
		t.Fatal(err)
	}
	return data, got
}

// checkSplice compares what is spliced of two states with encoding the whole messages. The pods of
// the first one say something.
func checkSplice(t *testing.T, form string, svc, before *kservice.Service, count, was int32, said kservice.PodCondition) {
	t.Helper()
	cfg := kservice.Config{BaseDomain: "apps.example.com"}
	states := map[*kservice.Service]State{}
	apps := map[*kservice.Service]*appv1.App{}
	for of, n := range map[*kservice.Service]int32{svc: count, before: was} {
		rev := &kservice.Revision{Status: kservice.RevisionStatus{ActualReplicas: &n}}
		states[of] = State{Service: Keeper{App: cfg, Form: form, PodConditions: said.Revision != ""}.Keep(of), Revision: rev}
		want, err := kservice.ConvertCounting(of, rev, cfg)
		if err == nil && of == svc {
			if at := kservice.ReadyIndex(of); at >= 0 {
				want.GetStatus().GetConditions()[at].Substate = said.Substate
			}
			st := states[of]
			st.Pods = said
			states[of] = st
		}
		if err == nil {
			_, err = proto.Marshal(want)
		}
		if err == nil {
			_, err = Identity(of)
		}
		if (states[of].Service.Err == nil) != (err == nil) {
			t.Fatalf("kept with %v, converted with %v", states[of].Service.Err, err)
		}
		if err != nil {
			return
		}
		apps[of] = want
		got, err := states[of].App()
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := got.App()
		if err != nil || !proto.Equal(decoded, want) {
			t.Fatalf("kept %v (%v), want %v", decoded, err, want)
		}
		if got.size() != len(got.Bytes()) || got.Replicas() != want.GetStatus().GetCurrentReplicas() {
			t.Errorf("%d bytes and %d replicas, want %d and %d", got.size(), got.Replicas(), len(got.Bytes()), want.GetStatus().GetCurrentReplicas())
		}
		for _, field := range []string{"", subjects.TruncatedSpec, subjects.TruncatedStatus} {
			cut, err := got.Without(field)
			if err == nil {
				cut, err = cut.As(form)
			}
			whole := proto.CloneOf(want)
			switch field {
			case subjects.TruncatedSpec:
				whole.Spec = nil
			case subjects.TruncatedStatus:
				whole.Status = nil
			}
			if data, form := encodedAs(t, whole, form); err != nil || form != cut.ContentType() || !bytes.Equal(cut.Bytes(), data) {
				t.Errorf("without %q\ngot  %s\nwant %s (%v)", field, cut.Bytes(), data, err)
			}
		}
	}
	now, _ := states[svc].App()
	old, _ := states[before].App()
	e := testEncoder()
	e.Form = form
	for _, event := range []struct {
		kind subjects.EventKind
		old  Encoded
		want *appv1.WatchResponse
	}{
		{subjects.Created, Encoded{}, apptest.Created(apps[svc])},
		{subjects.Updated, old, apptest.Updated(apps[svc], apps[before])},
		{subjects.Updated, Encoded{}, apptest.Updated(apps[svc], nil)},
		{subjects.Deleted, Encoded{}, apptest.Deleted(apps[svc])},
	} {
		got, gotForm, err := e.payload(event.kind, now, event.old)
		if want, wantForm := encodedAs(t, event.want, form); err != nil || gotForm != wantForm || !bytes.Equal(got, want) {
			t.Errorf("%s\ngot  %s %s (%v)\nwant %s %s", event.kind, gotForm, got, err, wantForm, want)
		}
	}
}

// What is spliced is byte for byte what encoding the whole message yields.
func FuzzSplice(f *testing.F) {
	add := func(svc *kservice.Service, count int32) {
		condition := kservice.Condition{}
		if len(svc.Status.Conditions) > 0 {
			condition = svc.Status.Conditions[0]
		}
		f.Add(svc.Annotations[kservice.AnnotationAppID], svc.Annotations[kservice.AnnotationOrg], svc.Annotations[kservice.AnnotationSpec],
			svc.Namespace, condition.Status, condition.Reason, condition.Message, count, kservice.Stopped(svc))
	}
	for i, svc := range corpusServices(f) {
		add(svc, int32(i%4)-1)
	}
	f.Add("p/d/n", "", "EhISEAoOCgF4EgkRAQAAAAAA+H8=", "flyte", "True", "", `"status":{"currentReplicas":7,`, int32(7), false)
	f.Add("p/d/n", "", "+j4DYWJj", "flyte", "True", "", "", int32(3), false) // an unknown field
	f.Fuzz(func(t *testing.T, id, org, spec, namespace, status, reason, message string, count int32, stopped bool) {
		svc := &kservice.Service{ObjectMeta: metav1.ObjectMeta{
			Name: "n", Namespace: namespace, CreationTimestamp: metav1.NewTime(time.Unix(1_700_000_000, 0)), Labels: map[string]string{},
			Annotations: map[string]string{kservice.AnnotationAppID: id, kservice.AnnotationOrg: org, kservice.AnnotationSpec: spec},
		}}
		if stopped {
			svc.Labels[kservice.LabelStopped] = "true"
		}
		before := svc.DeepCopy()
		svc.Status.Conditions = []kservice.Condition{{Type: "Ready", Status: status, Reason: reason, Message: message}}
		before.Annotations[kservice.AnnotationSpec] = "Ch8KGGdoY3IuaW8vYWNtZS9oZWxsbzoxLjQuMjoDCJA/"
		for _, form := range []string{subjects.ContentTypeJSON, subjects.ContentTypeProtobuf} {
			checkSplice(t, form, svc, before, count, 1, kservice.PodCondition{})
			checkSplice(t, form, before, svc, 0, count, kservice.PodCondition{})
			checkSplice(t, form, svc, before, count, 1, kservice.PodCondition{Substate: appv1.Status_CRASH_LOOP, Revision: "n-00002"})
		}
	})
}

// The same holds for every Knative Service of the conformance corpus.
func TestSpliceCorpus(t *testing.T) {
	services := corpusServices(t)
	spoken := 0
	for i, svc := range services {
		for _, form := range []string{subjects.ContentTypeJSON, subjects.ContentTypeProtobuf} {
			before, crash := services[(i+1)%len(services)], kservice.PodCondition{Substate: appv1.Status_OOM_KILLED, Revision: strings.Repeat("long-", 40)}
			checkSplice(t, form, svc, before, int32(i), int32(i+1), kservice.PodCondition{})
			checkSplice(t, form, svc, before, int32(i), int32(i+1), crash)
			spoken += kservice.ReadyIndex(svc)
		}
	}
	if spoken < 10 {
		t.Errorf("the Ready condition stands first in nearly every Service: %d", spoken)
	}
}

func corpusServices(tb testing.TB) (services []*kservice.Service) {
	tb.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", "testdata", "conformance", "cases", "*.json"))
	if err != nil || len(files) == 0 {
		tb.Fatal(err, "no cases")
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			tb.Fatal(err)
		}
		var c struct{ KService json.RawMessage }
		if err := json.Unmarshal(data, &c); err != nil {
			tb.Fatal(err)
		}
		svc := &kservice.Service{}
		if err := json.Unmarshal(c.KService, svc); err == nil {
			services = append(services, svc)
		}
	}
	if len(services) < 10 {
		tb.Fatalf("%d cases have a Knative Service", len(services))
	}
	return services
}

// What the informers keep is kept once, and what cannot be published has the reason.
func TestKeeper(t *testing.T) {
	kept, err := testKeeper.Transform(testRaw(func(svc *kservice.Service) { svc.Annotations[kservice.AnnotationAppID] = "p/d" }))
	if err != nil {
		t.Fatal(err)
	}
	stub := kept.(*CachedService)
	if stub.IsApp() || Reason(stub.Err) != ReasonMalformed || stub.UID != "u1" || stub.ResourceVersion != "1" {
		t.Errorf("kept %+v", stub)
	}
	if again, err := testKeeper.Transform(kept); again != kept || err != nil {
		t.Errorf("kept again it is %v, %v", again, err)
	}
	whole := testKeeper.Keep(testRaw(func(svc *kservice.Service) { svc.Annotations[kservice.AnnotationOrg] = "\xff" }))
	if !whole.IsApp() || whole.Err == nil || !strings.Contains(whole.Err.Error(), "convert flyte/") {
		t.Errorf("of an App that cannot be encoded it keeps %+v", whole)
	}
}

// An entry that was read need not be as encoding yields it. What follows from it is.
func TestReadAppIsEncodedAgain(t *testing.T) {
	want := testService("1", "True").app.counting(2)
	var spaced bytes.Buffer
	if err := json.Indent(&spaced, want.Bytes(), "", "  "); err != nil {
		t.Fatal(err)
	}
	read, err := ReadApp(spaced.Bytes(), subjects.ContentTypeJSON)
	if err != nil {
		t.Fatal(err)
	}
	if !SameApp(read, want, subjects.ContentTypeJSON) || read.Replicas() != 2 {
		t.Error("the same App counts as another")
	}
	if got, err := read.As(subjects.ContentTypeJSON); err != nil || !bytes.Equal(got.Bytes(), want.Bytes()) {
		t.Errorf("got %s (%v)", got.Bytes(), err)
	}
	if SameApp(read, want.counting(3), subjects.ContentTypeJSON) {
		t.Error("another count is not seen")
	}
}

// Bytes that come in two parts are compared as the whole that they are.
func TestSameBytes(t *testing.T) {
	for _, form := range []string{subjects.ContentTypeJSON, subjects.ContentTypeProtobuf} {
		keeper := Keeper{App: testKeeper.App, Form: form, PodConditions: true}
		app := keeper.Keep(apptest.Service("u1", "1", "True")).app
		for i, count := range []uint32{0, 1, 300, 0, 1, 300} {
			said := kservice.PodCondition{}
			if i > 2 {
				said = kservice.PodCondition{Substate: appv1.Status_CRASH_LOOP, Revision: "rev-2"}
			}
			parts := app.counting(count).saying(said)
			whole := Encoded{form: form, data: parts.Bytes(), replicas: count}
			if !parts.is(whole.data) || !parts.sameBytes(whole) || !whole.sameBytes(parts) || !parts.sameBytes(app.counting(count).saying(said)) {
				t.Errorf("%s with %d replicas: the same bytes count as others", form, count)
			}
			for _, other := range []Encoded{app.counting(count + 1).saying(said), app.counting(count).saying(kservice.PodCondition{Substate: appv1.Status_OOM_KILLED, Revision: "rev-2"}), {}} {
				if other.sameBytes(whole) || whole.sameBytes(other) || parts.sameBytes(other) {
					t.Errorf("%s with %d replicas: other bytes count as the same", form, count)
				}
			}
			for _, data := range [][]byte{nil, whole.data[:len(whole.data)-1], append(whole.Bytes(), ' ')} {
				if parts.is(data) {
					t.Errorf("%s with %d replicas is taken for %q", form, count, data)
				}
			}
		}
	}
}

// An entry of a known state has the bytes of that, and is what reading it yields.
func TestReadEntryOfKnownState(t *testing.T) {
	now := State{Service: testService("1", "True")}
	app, _ := now.App()
	h := nats.Header{
		subjects.HeaderUID: {"u1"}, subjects.HeaderResourceVersion: {"1"}, subjects.HeaderEventSequence: {"7"},
		subjects.CEType: {subjects.Created.Type()}, subjects.CEDataContentType: {subjects.ContentTypeJSON},
	}
	for _, known := range []State{now, {}, {Service: testService("2", "False")}} {
		r, err := ReadEntryOf(h, app.Bytes(), known)
		if err != nil || r.Sequence != 7 || r.ResourceVersion != "1" || !bytes.Equal(r.App.Bytes(), app.Bytes()) {
			t.Errorf("with %+v known it is %+v (%v)", known, r, err)
		}
		if shared := r.App.shares(app); shared != (known == now) {
			t.Errorf("with %+v known it shares its bytes: %t", known, shared)
		}
	}
}
