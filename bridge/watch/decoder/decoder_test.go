package decoder

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/appbridge/appbridge/bridge/kservice"
)

var kinds = []string{"Service", "Revision"}

func negotiator(tb testing.TB) runtime.ClientNegotiator {
	tb.Helper()
	scheme := runtime.NewScheme()
	if err := kservice.AddToScheme(scheme); err != nil {
		tb.Fatal(err)
	}
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		tb.Fatal(err)
	}
	return runtime.NewClientNegotiator(serializer.NewCodecFactory(scheme).WithoutConversion(), kservice.GroupVersion())
}

// corpus is the Services and Revisions of the conformance corpus, and one as a cluster has it.
func corpus(tb testing.TB) (objects [][]byte) {
	tb.Helper()
	for _, kind := range kinds {
		objects = append(objects, typical(kind))
	}
	files, err := filepath.Glob("../../../testdata/conformance/cases/*.json")
	if err != nil || len(files) == 0 {
		tb.Fatal("no corpus", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			tb.Fatal(err)
		}
		var c struct {
			KService  json.RawMessage   `json:"kservice"`
			Revisions []json.RawMessage `json:"revisions"`
		}
		if err := json.Unmarshal(data, &c); err != nil {
			tb.Fatal(err)
		}
		for _, object := range append(c.Revisions, c.KService) {
			var line bytes.Buffer
			if err := json.Compact(&line, object); err != nil {
				tb.Fatal(err)
			}
			objects = append(objects, line.Bytes())
		}
	}
	return objects
}

// typical is an object of about 3 KB, as Flyte and Knative write it.
func typical(kind string) []byte {
	template := `{"metadata":{"annotations":{"autoscaling.knative.dev/max-scale":"3","autoscaling.knative.dev/min-scale":"1"}},"spec":{"containerConcurrency":0,"containers":[{"env":[` +
		strings.Repeat(`{"name":"SOME_VARIABLE","value":"some value"},`, 12) + `{"name":"LAST","value":"x"}],"image":"registry.example.com/team/app@sha256:0123456789abcdef","name":"app","ports":[{"containerPort":8080,"protocol":"TCP"}],"resources":{"limits":{"cpu":"2","memory":"4Gi"}}}],"timeoutSeconds":300}}`
	status := `{"address":{"url":"http://a-p-d.flyte.svc.cluster.local"},"conditions":[` +
		`{"lastTransitionTime":"2026-08-21T10:00:07Z","status":"True","type":"ConfigurationsReady"},` +
		`{"lastTransitionTime":"2026-08-21T10:00:09Z","message":"waiting","reason":"RevisionMissing","status":"Unknown","type":"Ready"},` +
		`{"lastTransitionTime":"2026-08-21T10:00:09Z","status":"True","type":"RoutesReady"}],"latestCreatedRevisionName":"a-p-d-00002","latestReadyRevisionName":"a-p-d-00001","observedGeneration":2,"actualReplicas":2,"traffic":[{"latestRevision":true,"percent":100}],"url":"http://a.example.com"}`
	return []byte(`{"apiVersion":"serving.knative.dev/v1","kind":"` + kind + `","metadata":{"annotations":{"flyte.org/app-id":"p/d/a","flyte.org/spec":"` +
		strings.Repeat("Cg8KDXB5dGhvbg", 20) + `","serving.knative.dev/creator":"system:serviceaccount:flyte:flyte"},"creationTimestamp":"2026-08-21T10:00:00Z","generation":2,` +
		`"labels":{"flyte.org/app-managed":"true","flyte.org/domain":"d","flyte.org/project":"p","team":"blue"},` +
		`"managedFields":[{"apiVersion":"serving.knative.dev/v1","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:annotations":{".":{},"f:flyte.org/app-id":{},"f:flyte.org/spec":{}},"f:labels":{".":{},"f:flyte.org/app-managed":{}}},"f:spec":{".":{},"f:template":{}}},"manager":"flyte","operation":"Update","time":"2026-08-21T10:00:00Z"},` +
		`{"apiVersion":"serving.knative.dev/v1","fieldsType":"FieldsV1","fieldsV1":{"f:status":{".":{},"f:address":{},"f:conditions":{},"f:traffic":{}}},"manager":"controller","operation":"Update","subresource":"status","time":"2026-08-21T10:00:09Z"}],` +
		`"name":"a-p-d","namespace":"flyte","ownerReferences":[{"apiVersion":"serving.knative.dev/v1","blockOwnerDeletion":true,"controller":true,"kind":"Configuration","name":"a-p-d","uid":"8d3f0e7a-1111-4222-8333-000000000001"}],` +
		`"resourceVersion":"4711","uid":"8d3f0e7a-1111-4222-8333-000000000000"},"spec":{"template":` + template + `},"status":` + status + `}`)
}

func event(action string, object []byte) []byte {
	return fmt.Appendf(nil, `{"type":%q,"object":%s}`+"\n", action, object)
}

func listOf(kind string, items ...[]byte) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"serving.knative.dev/v1","items":[%s],"kind":"%sList","metadata":{"continue":"next","remainingItemCount":3,"resourceVersion":"99"}}`+"\n",
		bytes.Join(items, []byte(",")), kind)
}

// trimmed is an object, or a list, as the informer's transform leaves it.
func trimmed(object runtime.Object) runtime.Object {
	if object == nil {
		return nil
	}
	if _, err := meta.ListAccessor(object); err == nil && meta.IsListType(object) {
		_ = meta.EachListItem(object, func(item runtime.Object) error { _, err := kservice.Trim(item); return err })
		return object
	}
	_, _ = kservice.Trim(object)
	return object
}

func difference(got, want runtime.Object) string {
	return cmp.Diff(trimmed(want), trimmed(got), cmpopts.EquateEmpty())
}

// sameEvents decodes a watch with both decoders.
func sameEvents(t *testing.T, n runtime.ClientNegotiator, kind string, body []byte) {
	t.Helper()
	of := func() *events { return newEvents(kind, n, io.NopCloser(bytes.NewReader(body))) }
	got := of()
	want, err := of().clientGo(bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		gotAction, gotObject, gotErr := got.Decode()
		wantAction, wantObject, wantErr := want.Decode()
		if fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
			t.Fatalf("event %d of\n%s\n got error %v\nwant %v", i, body, gotErr, wantErr)
		}
		if gotErr != nil {
			return
		}
		if diff := difference(gotObject, wantObject); gotAction != wantAction || diff != "" {
			t.Fatalf("event %d of\n%s\ngot %s, want %s\n%s", i, body, gotAction, wantAction, diff)
		}
	}
}

// sameList decodes a list with both decoders. What is unusual is left to client-go's.
func sameList(t *testing.T, n runtime.ClientNegotiator, kind string, body []byte) (scanned bool) {
	t.Helper()
	got, err := list(kind, bytes.NewReader(body))
	if err != nil {
		return false
	}
	want, err := clientGoList(n, body)
	if err != nil {
		t.Fatalf("%s\nis scanned, and client-go refuses it: %v", body, err)
	}
	if diff := difference(got, want); diff != "" {
		t.Fatalf("%s\n%s", body, diff)
	}
	return true
}

func clientGoList(n runtime.ClientNegotiator, body []byte) (runtime.Object, error) {
	decoder, err := n.Decoder(runtime.ContentTypeJSON, nil)
	if err != nil {
		return nil, err
	}
	return runtime.Decode(decoder, body)
}

func kindOf(object []byte) string {
	if bytes.Contains(object, []byte(`"kind":"Revision"`)) {
		return "Revision"
	}
	return "Service"
}

func TestCorpus(t *testing.T) {
	n := negotiator(t)
	for _, object := range corpus(t) {
		for _, kind := range kinds {
			for _, action := range []string{"ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR", "OTHER"} {
				sameEvents(t, n, kind, event(action, object))
			}
			sameList(t, n, kind, listOf(kind, object, object))
		}
	}
}

// What API servers write is scanned, and not left to client-go.
func TestScans(t *testing.T) {
	n := negotiator(t)
	for _, kind := range kinds {
		e := newEvents(kind, n, nil)
		if action, object, ok := e.event(event("MODIFIED", typical(kind))); !ok || action != watch.Modified || object == nil {
			t.Errorf("%s: the event is unusual: %v", kind, e.scanner.err)
		}
		if !sameList(t, n, kind, listOf(kind, typical(kind))) {
			t.Errorf("%s: the list is unusual", kind)
		}
		if !sameList(t, n, kind, listOf(kind)) {
			t.Errorf("%s: the empty list is unusual", kind)
		}
	}
}

// odd are bodies of watches of which little is scanned.
func odd() [][]byte {
	one := string(event("ADDED", typical("Service")))
	bodies := [][]byte{
		[]byte(""), []byte("\n\n"), []byte(one + "\n\r\n" + one), []byte(strings.TrimSuffix(one, "\n")), []byte(strings.Replace(one, "\n", "", 1) + one),
		[]byte(one[:200]), []byte(one + one[:200]), []byte(strings.Replace(one, `,"object"`, ",\n\"object\"", 1) + one),
		event("BOOKMARK", []byte(`{"apiVersion":"serving.knative.dev/v1","kind":"Service","metadata":{"resourceVersion":"7","creationTimestamp":null,"annotations":{"k8s.io/initial-events-end":"true"}},"spec":{"template":{}}}`)),
		event("ERROR", []byte(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old","reason":"Expired","code":410}`)),
		[]byte(`{"object":` + string(typical("Service")) + `,"type":"ADDED"}` + "\n"),
		[]byte(`{"type":"ADDED"}` + "\n"), []byte(`{"type":"ADDED","object":null}` + "\n"), []byte("[]\n"), []byte("null\n"), []byte("nonsense\n" + one),
	}
	for _, change := range [][2]string{
		{`"generation":2`, `"generation":2.0`},
		{`"generation":2`, `"generation":"2"`},
		{`"generation":2`, `"generation":99999999999999999999`},
		{`"generation":2`, `"generation":null`},
		{`"name":"a-p-d"`, `"name":"a-p-d","name":"b"`},
		{`"name":"a-p-d"`, `"n\u0061me":"b"`},
		{`"name":"a-p-d"`, `"Name":"b"`},
		{`"name":"a-p-d"`, `"name":"\ud800 \u00e9 \n"`},
		{`"name":"a-p-d"`, "\"name\":\"\xff\""},
		{`"name":"a-p-d"`, "\"name\":\"a\tb\""},
		{`"team":"blue"`, `"team":1`},
		{`"team":"blue"`, `"team":null`},
		{`"team":"blue"`, `"flyte.org/project":"other"`},
		{`"team":"blue"`, `"team":"blue","team":"red"`},
		{`"metadata":{"annotations":{"flyte`, `"Kind":"Other","metadata":{"annotations":{"flyte`},
		{`"metadata":{"annotations":{"flyte`, "\"\u212aind\":\"Other\",\"metadata\":{\"annotations\":{\"flyte"},
		{`"metadata":{"annotations":{"flyte`, `"APIVERSION":3,"metadata":{"annotations":{"flyte`},
		{`"2026-08-21T10:00:00Z","generation"`, `"2026-08-21T10:00:00.123+02:00","generation"`},
		{`"2026-08-21T10:00:00Z","generation"`, `"2026-08-21T1:00:00Z","generation"`},
		{`"2026-08-21T10:00:00Z","generation"`, `"yesterday","generation"`},
		{`"2026-08-21T10:00:00Z","generation"`, `null,"generation"`},
		{`"lastTransitionTime":"2026-08-21T10:00:07Z"`, `"lastTransitionTime":"soon"`},
		{`"lastTransitionTime":"2026-08-21T10:00:07Z"`, `"lastTransitionTime":7`},
		{`"lastTransitionTime":"2026-08-21T10:00:07Z"`, `"lastTransitionTime":"2026-08-21T10:00:07.5-07:00"`},
		{`"conditions":[`, `"conditions":[null,7,`},
		{`"conditions":[`, `"conditions":7,"x":[`},
		{`"actualReplicas":2`, `"actualReplicas":"2"`},
		{`"actualReplicas":2`, `"actualReplicas":4294967296`},
		{`"status":{"address"`, `"status":null,"x":{"address"`},
		{`"status":{"address"`, `"status":{"conditions":[]},"status":{"address"`},
		{`"latestReadyRevisionName":"a-p-d-00001"`, `"latestReadyRevisionName":7`},
		{`"time":"2026-08-21T10:00:09Z"`, `"time":null`},
		{`"time":"2026-08-21T10:00:09Z"`, `"time":7`},
		{`"manager":"controller"`, `"manager":7`},
		{`"controller":true`, `"controller":1`},
		{`"name":"a-p-d","namespace"`, `"finalizers":["a","b"],"deletionGracePeriodSeconds":0,"deletionTimestamp":"2026-08-22T10:00:00Z","generateName":"a-","selfLink":"/x","name":"a-p-d","namespace"`},
		{`"name":"a-p-d","namespace"`, `"finalizers":[1],"name":"a-p-d","namespace"`},
		{`"name":"a-p-d","namespace"`, `"deletionTimestamp":null,"name":"a-p-d","namespace"`},
		{`"spec":{"template"`, `"spec":` + strings.Repeat("[", 9999) + strings.Repeat("]", 9999) + `,"x":{"template"`},
		{`"spec":{"template"`, `"spec":` + strings.Repeat("[", 9997) + strings.Repeat("]", 9997) + `,"x":{"template"`},
		{`"spec":{"template"`, `"spec":` + strings.Repeat("[", 9998) + strings.Repeat("]", 9998) + `,"x":{"template"`},
		{`"kind":"Service"`, `"kind":"Configuration"`},
		{`serving.knative.dev/v1","kind`, `serving.knative.dev/v2","kind`},
		{`"kind":"Service",`, ``},
	} {
		for _, kind := range kinds {
			object := typical(kind)
			changed := bytes.Replace(object, []byte(change[0]), []byte(change[1]), 1)
			bodies = append(bodies, append(event("ADDED", changed), one...))
		}
	}
	return bodies
}

func TestOdd(t *testing.T) {
	n := negotiator(t)
	for _, body := range odd() {
		for _, kind := range kinds {
			sameEvents(t, n, kind, body)
			object := bytes.TrimSuffix(bytes.TrimPrefix(bytes.SplitAfter(body, []byte("\n"))[0], []byte(`{"type":"ADDED","object":`)), []byte("}\n"))
			sameList(t, n, kind, listOf(kind, object))
		}
	}
}

// mutate changes some of the bytes of a document, or puts another value in the place of one.
func mutate(r *rand.Rand, body []byte) []byte {
	body = bytes.Clone(body)
	for range 1 + r.IntN(3) {
		at := r.IntN(len(body))
		switch r.IntN(5) {
		case 0:
			body[at] = "{}[]\",:\\ \n\x80ntf01-e."[r.IntN(19)]
		case 1:
			body = append(body[:at], body[at+1:]...)
		case 2: // a part twice
			end := min(len(body), at+r.IntN(60))
			body = append(body[:end:end], body[at:]...)
		default: // another value
			from := bytes.IndexByte(body[at:], ':')
			if from < 0 {
				continue
			}
			from += at + 1
			to := from
			for to < len(body) && !strings.ContainsRune(",}]", rune(body[to])) {
				to++
			}
			values := []string{"null", "7", `"x"`, "{}", "[]", "true", `[{"a":"b"}]`, `{"a":"b"}`, `"2026-01-02T03:04:05+07:00"`, `""`, "1.5e3"}
			body = append(append(body[:from:from], values[r.IntN(len(values))]...), body[to:]...)
		}
		if len(body) == 0 {
			return []byte(" ")
		}
	}
	return body
}

func TestMutations(t *testing.T) {
	n := negotiator(t)
	objects := corpus(t)
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // reproducible
	for range 2_000 {
		object := objects[r.IntN(len(objects))]
		kind := kindOf(object)
		sameEvents(t, n, kind, append(mutate(r, event("MODIFIED", object)), event("ADDED", object)...))
		sameList(t, n, kind, mutate(r, listOf(kind, object, object)))
	}
}

func FuzzEvent(f *testing.F) {
	for _, object := range corpus(f) {
		f.Add(event("ADDED", object))
	}
	for _, body := range odd() {
		f.Add(body)
	}
	n := negotiator(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, kind := range kinds {
			sameEvents(t, n, kind, body)
		}
	})
}

func FuzzList(f *testing.F) {
	for _, object := range corpus(f) {
		f.Add(listOf(kindOf(object), object))
	}
	n := negotiator(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, kind := range kinds {
			sameList(t, n, kind, body)
		}
	})
}

func BenchmarkEvent(b *testing.B) {
	n := negotiator(b)
	for _, kind := range kinds {
		line := event("MODIFIED", typical(kind))
		b.Run(kind+"/scanner", func(b *testing.B) {
			body := &repeated{line: line}
			e := newEvents(kind, n, body)
			measure(b, len(line), func() error { _, object, err := e.Decode(); trimmed(object); return err })
		})
		b.Run(kind+"/client-go", func(b *testing.B) {
			d, err := newEvents(kind, n, nil).clientGo(&repeated{line: line})
			if err != nil {
				b.Fatal(err)
			}
			measure(b, len(line), func() error { _, object, err := d.Decode(); trimmed(object); return err })
		})
	}
}

func BenchmarkList(b *testing.B) {
	n := negotiator(b)
	for _, kind := range kinds {
		var items [][]byte
		for range 500 {
			items = append(items, typical(kind))
		}
		body := listOf(kind, items...)
		b.Run(kind+"/scanner", func(b *testing.B) {
			measure(b, len(body), func() error { l, err := list(kind, bytes.NewReader(body)); trimmed(l); return err })
		})
		b.Run(kind+"/client-go", func(b *testing.B) {
			measure(b, len(body), func() error { l, err := clientGoList(n, body); trimmed(l); return err })
		})
	}
}

func measure(b *testing.B, size int, do func() error) {
	b.ReportAllocs()
	b.SetBytes(int64(size))
	for b.Loop() {
		if err := do(); err != nil {
			b.Fatal(err)
		}
	}
}

// repeated is a watch that sends one line again and again.
type repeated struct {
	line []byte
	rest []byte
}

func (r *repeated) Close() error { return nil }

func (r *repeated) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		r.rest = r.line
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
