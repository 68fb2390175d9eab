package bridge

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/app/encodertest"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge/audit"
	"github.com/appbridge/appbridge/bridge/kservice"
	kubeapi "github.com/appbridge/appbridge/bridge/kube"
	"github.com/appbridge/appbridge/bridge/watch"
)

// lister answers lists of metadata as an API server does.
type lister struct {
	mu      sync.Mutex
	version int
	items   map[string][]metav1.PartialObjectMetadata // by resource
	json    bool
	bodies  map[string][]byte // answers that are made already
	asked   func()            // is called at each request, if set
	refused string            // the namespace that is forbidden
}

func newLister(t testing.TB) (*lister, *watch.Cluster) {
	t.Helper()
	l := &lister{items: map[string][]metav1.PartialObjectMetadata{}, version: 5000}
	server := httptest.NewServer(l)
	t.Cleanup(server.Close)
	scheme, mapper, err := watch.Kinds()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(&rest.Config{Host: server.URL, QPS: -1}, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		t.Fatal(err)
	}
	return l, &watch.Cluster{Namespaces: []string{"flyte"}, Client: c, Watches: watch.NewGroup(watch.Limits{}, zap.NewNop()), Log: zap.NewNop()}
}

func (l *lister) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	resource := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	query := r.URL.Query()
	if l.refused != "" && strings.Contains(r.URL.Path, "/namespaces/"+l.refused+"/") {
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`))
		return
	}
	at, _ := strconv.Atoi(query.Get("continue"))
	limit, _ := strconv.Atoi(query.Get("limit"))
	body := l.bodies[resource+query.Get("continue")]
	if body == nil {
		items := l.items[resource]
		if _, name, one := strings.Cut(query.Get("fieldSelector"), "metadata.name="); one {
			items = slices.DeleteFunc(slices.Clone(items), func(o metav1.PartialObjectMetadata) bool { return o.Name != name })
		}
		list := &metav1.PartialObjectMetadataList{
			TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: "meta.k8s.io/v1"},
			ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(l.version)},
			Items:    items[at:min(at+limit, len(items))],
		}
		if at+limit < len(items) {
			list.Continue = strconv.Itoa(at + limit)
		}
		body = l.encode(list)
		if l.bodies != nil {
			l.bodies[resource+query.Get("continue")] = body
		}
	}
	if l.asked != nil {
		l.asked()
	}
	w.Header().Set("Content-Type", l.contentType())
	_, _ = w.Write(body)
}

func (l *lister) contentType() string {
	if l.json {
		return runtime.ContentTypeJSON
	}
	return runtime.ContentTypeProtobuf
}

func (l *lister) encode(list *metav1.PartialObjectMetadataList) []byte {
	if l.json {
		body, err := json.Marshal(list)
		if err != nil {
			panic(err)
		}
		return body
	}
	raw, err := list.Marshal()
	if err != nil {
		panic(err)
	}
	envelope := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: list.APIVersion, Kind: list.Kind}, Raw: raw}
	body, err := envelope.Marshal()
	if err != nil {
		panic(err)
	}
	return append([]byte("k8s\x00"), body...)
}

// has makes the API server have an object.
func (l *lister) has(kind string, meta metav1.ObjectMeta) {
	l.mu.Lock()
	defer l.mu.Unlock()
	resource := strings.ToLower(kind) + "s"
	l.items[resource] = append(l.lacks(resource, meta.Name), metav1.PartialObjectMetadata{ObjectMeta: meta})
}

// lacks are the objects without one. mu must be held.
func (l *lister) lacks(resource, name string) []metav1.PartialObjectMetadata {
	return slices.DeleteFunc(l.items[resource], func(o metav1.PartialObjectMetadata) bool { return o.Name == name })
}

// Pages are read the same as protobuf and as JSON.
func TestListPage(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		t.Run(fmt.Sprint("json ", asJSON), func(t *testing.T) {
			l, k := newLister(t)
			l.json = asJSON
			const n = 2*kubeapi.PageSize + 7
			for i := range n {
				l.has(watch.KindService, metav1.ObjectMeta{
					Name: fmt.Sprint("app-", i), Namespace: "flyte", UID: types.UID(fmt.Sprint("u-", i)), ResourceVersion: fmt.Sprint(100 + i), Generation: 7,
					Labels: map[string]string{"a": "b"}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "x", FieldsV1: metav1.NewFieldsV1("{}")}},
				})
			}
			seen := 0
			if err := k.Pages(t.Context(), watch.KindService, "flyte", func(p watch.Listing) error {
				for key, item := range p.Items {
					n, _ := strings.CutPrefix(key.Name, "app-")
					i, _ := strconv.Atoi(n)
					if want := (watch.Listed{UID: types.UID("u-" + n), ResourceVersion: strconv.Itoa(100 + i)}); item != want || key.Namespace != "flyte" {
						t.Fatalf("%s: got %+v, want %+v", key, item, want)
					}
				}
				seen += len(p.Items)
				if p.Version != "5000" {
					t.Errorf("version %q", p.Version)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if seen != n {
				t.Errorf("%d objects, want %d", seen, n)
			}
			p, err := k.Object(t.Context(), watch.KindService, types.NamespacedName{Namespace: "flyte", Name: "app-3"})
			if err != nil || len(p.Items) != 1 || p.Items[types.NamespacedName{Namespace: "flyte", Name: "app-3"}].UID != "u-3" {
				t.Errorf("%+v, %v", p, err)
			}
		})
	}
}

// What the informers did not show is found, and nothing that they are about to show.
func TestAuditSource(t *testing.T) {
	for _, test := range []struct {
		name string
		do   func(l *lister, b *Bridge)
		want string // in the detail; empty: nothing is found
	}{
		{"right", func(*lister, *Bridge) {}, ""},
		{"newer than the list", func(_ *lister, b *Bridge) { b.source.Services().OnUpdate(nil, serviceAt("one", "u1", "5001")) }, ""},
		{
			"an update is missing", func(l *lister, _ *Bridge) { l.has(watch.KindService, serviceAt("one", "u1", "200").ObjectMeta) },
			"the cluster has version 200 of uid u1, the informers show version 100 of uid u1",
		},
		{
			"an object is missing", func(l *lister, _ *Bridge) { l.has(watch.KindService, serviceAt("two", "u2", "200").ObjectMeta) },
			"the cluster has version 200 of uid u2, the informers do not show it",
		},
		{
			"a delete is missing", func(l *lister, _ *Bridge) { l.items["services"] = nil },
			"the cluster does not have it, the informers show version 100 of uid u1",
		},
		{
			"another object is missing", func(l *lister, _ *Bridge) { l.has(watch.KindService, serviceAt("one", "u9", "200").ObjectMeta) },
			"the cluster has version 200 of uid u9, the informers show version 100 of uid u1",
		},
		{"a Revision's update is missing", func(l *lister, _ *Bridge) {
			l.has(watch.KindRevision, metav1.ObjectMeta{Name: "rev-1", Namespace: "flyte", ResourceVersion: "200"})
		}, "the cluster has version 200 of uid , the informers show version 99 of uid "},
		{"Kubernetes is disconnected", func(l *lister, b *Bridge) {
			l.has(watch.KindService, serviceAt("one", "u1", "200").ObjectMeta)
			b.conn.Note(errors.New("connection refused"))
		}, ""},
		{"the list is older than what was shown", func(l *lister, b *Bridge) {
			b.source.Services().OnUpdate(nil, serviceAt("one", "u1", "6000"))
			l.has(watch.KindService, serviceAt("two", "u2", "200").ObjectMeta)
		}, ""},
		{"the list is older than what an informer listed", func(l *lister, b *Bridge) {
			b.source.Shown.Listed(watch.KindService, "6000") // without "two", which was deleted
			l.has(watch.KindService, serviceAt("two", "u2", "200").ObjectMeta)
		}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, k := newLister(t)
			l.has(watch.KindRevision, testRevision("99", 2).ObjectMeta)
			l.has(watch.KindService, serviceAt("one", "u1", "100").ObjectMeta)
			m := testMetrics()
			b := &Bridge{source: watch.NewSource(zap.NewNop(), encodertest.Keeper, m.reject), conn: watch.NewConnection(watch.NewGroup(watch.Limits{}, zap.NewNop()), zap.NewNop(), watch.NewMetrics(prometheus.NewRegistry()))}
			b.source.Revisions().OnAdd(testRevision("99", 2), false)
			b.source.Services().OnAdd(serviceAt("one", "u1", "100"), false)
			test.do(l, b)
			a := b.newSourceAudit(k)
			a.Wait = 20 * time.Millisecond
			suspects, err := a.Screen(t.Context(), &audit.Pace{})
			if err != nil {
				t.Fatal(err)
			}
			looked, err := a.Look(t.Context(), suspects)
			if err != nil {
				t.Fatal(err)
			}
			switch found := looked.Findings; {
			case test.want == "" && len(found) > 0:
				t.Errorf("found %+v", found)
			case test.want != "" && (len(found) != 1 || found[0].Detail != test.want):
				t.Errorf("found %+v, want %q", found, test.want)
			}
		})
	}
}

// A delete that the watch swallowed is found while other objects change all the time.
func TestAuditSourceUnderLoad(t *testing.T) {
	l, k := newLister(t)
	m := testMetrics()
	b := &Bridge{source: watch.NewSource(zap.NewNop(), encodertest.Keeper, m.reject), conn: watch.NewConnection(watch.NewGroup(watch.Limits{}, zap.NewNop()), zap.NewNop(), watch.NewMetrics(prometheus.NewRegistry()))}
	b.source.Services().OnAdd(serviceAt("one", "u1", "100"), false)
	a := b.newSourceAudit(k)
	a.Wait = 20 * time.Millisecond
	l.asked = func() {
		l.version += 100
		b.source.Services().OnUpdate(nil, serviceAt("other", "u2", strconv.Itoa(l.version-50)))
	}
	look := func() string {
		t.Helper()
		looked, err := a.Look(t.Context(), []string{"Service flyte/one"})
		if err != nil || len(looked.Findings) != 1 {
			t.Fatalf("got %+v, %v", looked, err)
		}
		return looked.Findings[0].Same
	}
	if first, second := look(), look(); first != second {
		t.Errorf("the looks do not agree: %q, %q", first, second)
	}
}

// A namespace that must not be read any more, and has no watch, hides no fault of another one.
func TestAuditSourceOfSeveralNamespaces(t *testing.T) {
	l, k := newLister(t)
	k.Namespaces, l.refused = []string{"other", "flyte"}, "other"
	l.has(watch.KindService, serviceAt("one", "u1", "200").ObjectMeta)
	m := testMetrics()
	b := &Bridge{source: watch.NewSource(zap.NewNop(), encodertest.Keeper, m.reject), conn: watch.NewConnection(watch.NewGroup(watch.Limits{}, zap.NewNop()), zap.NewNop(), watch.NewMetrics(prometheus.NewRegistry()))}
	k.Watches = b.conn.Watches
	b.source.Services().OnAdd(serviceAt("one", "u1", "100"), false)
	b.conn.Requested("/prefix/apis/serving.knative.dev/v1/namespaces/other/services")
	a := b.newSourceAudit(k)
	a.Wait = 20 * time.Millisecond
	suspects, err := a.Screen(t.Context(), &audit.Pace{})
	if !apierrors.IsForbidden(err) || !slices.Equal(suspects, []string{"Service flyte/one"}) {
		t.Errorf("got %v and %v", suspects, err)
	}
	looked, err := a.Look(t.Context(), []string{"Service other/two", "Service flyte/one"})
	if err != nil || len(looked.Findings) != 1 || looked.Findings[0].Subject() != "Service flyte/one" || !looked.Changing["Service other/two"] {
		t.Errorf("got %+v, %v", looked, err)
	}
	// Not while the very informer has no watch.
	b.conn.Requested("/prefix/apis/serving.knative.dev/v1/namespaces/flyte/services")
	if looked, err = a.Look(t.Context(), []string{"Service flyte/one"}); err != nil || len(looked.Findings) != 0 {
		t.Errorf("got %+v, %v without a watch", looked, err)
	}
}

// serviceAt is a version of a Knative Service.
func serviceAt(name, uid, version string) *kservice.Service {
	svc := apptest.Service(uid, version, "True")
	svc.Name = name
	svc.Annotations[kservice.AnnotationAppID] = "p/d/" + name
	return svc
}
