package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// bookmarkInterval is that of kube-apiserver.
const bookmarkInterval = time.Minute

// stub answers as an API server with many apps in one namespace. It keeps a few numbers an app and
// makes the bytes as they are read, so that it costs a small part of what its clients do.
type stub struct {
	apps      int
	revisions bool
	templates templates
	encoder   runtime.Encoder // protobuf

	mu      sync.Mutex
	changes []state       // of Services; the version of changes[i] is start()+i+1
	latest  []state       // of the Services, by app
	changed chan struct{} // closed at the next change
}

func newStub(apps int, revisions bool) (*stub, error) {
	if apps < 1 || apps > maxApps {
		return nil, fmt.Errorf("%d apps: want 1 to %d", apps, maxApps)
	}
	t, err := newTemplates(revisions)
	if err != nil {
		return nil, fmt.Errorf("make the objects: %w", err)
	}
	scheme := runtime.NewScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		return nil, err
	}
	s := &stub{
		apps: apps, revisions: revisions, templates: t, encoder: protobuf.NewSerializer(scheme, scheme),
		latest: make([]state, apps), changed: make(chan struct{}),
	}
	for i := range s.latest {
		s.latest[i] = state{app: i, version: firstVersion + 2*uint64(i) + 2}
	}
	return s, nil
}

// start is the version before the first change.
func (s *stub) start() uint64 { return firstVersion + 2*uint64(s.apps) }

// change changes so many Services, each as often as the others.
func (s *stub) change(count int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range count {
		n := len(s.changes)
		app := &s.latest[n*7919%s.apps] // a prime: neighbours are not changed one after the other
		*app = state{app: app.app, changes: app.changes + 1, version: s.start() + uint64(n) + 1}
		s.changes = append(s.changes, *app)
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// since returns the changes after the first n, and a channel that is closed at the next one.
func (s *stub) since(n int) ([]state, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changes[n:], s.changed
}

// snapshot is the state of all Services, and how many changes it has.
func (s *stub) snapshot(from, limit int) (objects []state, changes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from = min(from, s.apps)
	return append(objects, s.latest[from:min(from+limit, s.apps)]...), len(s.changes)
}

// kind is one of the two resources that the stub has.
type kind struct {
	name    string
	objects func(from, limit int) ([]state, int)
	of      func(state) *template
}

func (s *stub) kinds() map[string]kind {
	return map[string]kind{
		"services": {"Service", s.snapshot, s.templates.service},
		"revisions": {"Revision", func(from, limit int) (objects []state, changes int) {
			_, changes = s.snapshot(0, 0)
			if !s.revisions {
				return nil, changes
			}
			for i := min(from, s.apps); i < min(from+limit, s.apps); i++ {
				objects = append(objects, state{app: i, version: firstVersion + 2*uint64(i) + 1})
			}
			return objects, changes
		}, func(state) *template { return s.templates.revision }},
	}
}

func (s *stub) handler() http.Handler {
	mux := http.NewServeMux()
	for resource, k := range s.kinds() {
		mux.HandleFunc("GET /apis/serving.knative.dev/v1/namespaces/"+testenv.DefaultNamespace+"/"+resource, func(w http.ResponseWriter, r *http.Request) {
			switch q := r.URL.Query(); {
			case q.Get("watch") == "true" || q.Get("watch") == "1":
				s.watch(w, r, k)
			case strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList"):
				s.listMetadata(w, r, k)
			default:
				s.list(w, r, k)
			}
		})
	}
	mux.HandleFunc("GET /api/v1/namespaces/{name}", func(w http.ResponseWriter, r *http.Request) {
		s.write(w, r, &metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"},
			ObjectMeta: metav1.ObjectMeta{Name: r.PathValue("name"), UID: "00000000-0000-4000-9000-000000000000", ResourceVersion: "1"},
		})
	})
	mux.HandleFunc("POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusCreated, map[string]any{"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "status": map[string]any{"allowed": true}})
	})
	mux.HandleFunc("POST /bench/changes", s.serveChanges)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusNotFound, metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound, Message: "the stub does not have " + r.URL.Path,
		})
	})
	return mux
}

// serveChanges changes Services: count of them, rate a second or (0) all at once.
func (s *stub) serveChanges(w http.ResponseWriter, r *http.Request) {
	count, err := strconv.Atoi(r.FormValue("count"))
	rate, rateErr := strconv.Atoi(r.FormValue("rate"))
	if err = errors.Join(err, rateErr); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if rate == 0 {
		s.change(count)
		return
	}
	ticker := time.NewTicker(time.Second / time.Duration(rate))
	defer ticker.Stop()
	for range count {
		select {
		case <-ticker.C:
			s.change(1)
		case <-r.Context().Done():
			return
		}
	}
}

// page is the part of the objects that a list requests. A continue token is the number of the first object.
func page(r *http.Request) (from, limit int, name string) {
	q := r.URL.Query()
	from, _ = strconv.Atoi(q.Get("continue")) // "": the first
	limit, err := strconv.Atoi(q.Get("limit"))
	if err != nil || limit == 0 {
		limit = maxApps
	}
	return from, limit, strings.TrimPrefix(q.Get("fieldSelector"), "metadata.name=")
}

// selected are the objects of a page, and the token of the next one.
func (s *stub) selected(r *http.Request, k kind) (objects []state, version, next string) {
	from, limit, name := page(r)
	if name != "" {
		from, limit = 0, maxApps
	}
	objects, changes := k.objects(from, limit)
	if from+limit < s.apps && len(objects) > 0 {
		next = strconv.Itoa(from + limit)
	}
	if name != "" {
		all := objects
		objects = nil
		for _, o := range all {
			if m := k.of(o).metadata(o); m.Name == name {
				objects = append(objects, o)
			}
		}
	}
	return objects, strconv.FormatUint(s.start()+uint64(changes), 10), next
}

// list answers with full objects, the keys in the order of custom resources.
func (s *stub) list(w http.ResponseWriter, r *http.Request, k kind) {
	objects, version, next := s.selected(r, k)
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	buf := []byte(`{"apiVersion":"` + servingv1.SchemeGroupVersion.String() + `","items":[`)
	for i, o := range objects {
		if i > 0 {
			buf = append(buf, ',')
		}
		if buf = k.of(o).append(buf, o); len(buf) > flushBytes {
			if _, err := w.Write(buf); err != nil {
				return
			}
			buf = buf[:0]
		}
	}
	buf = fmt.Appendf(buf, `],"kind":"%sList","metadata":{"continue":%q,"resourceVersion":%q}}`, k.name, next, version)
	_, _ = w.Write(buf) // the client may be gone
}

// listMetadata answers with the metadata of objects.
func (s *stub) listMetadata(w http.ResponseWriter, r *http.Request, k kind) {
	objects, version, next := s.selected(r, k)
	list := &metav1.PartialObjectMetadataList{
		TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"},
		ListMeta: metav1.ListMeta{ResourceVersion: version, Continue: next},
	}
	for _, o := range objects {
		list.Items = append(list.Items, k.of(o).metadata(o))
	}
	s.write(w, r, list)
}

// write answers in the form that the client prefers.
func (s *stub) write(w http.ResponseWriter, r *http.Request, object runtime.Object) {
	if !strings.HasPrefix(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
		writeJSON(w, http.StatusOK, object)
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	_ = s.encoder.Encode(object, w) // the client may be gone
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}

// runStub serves at address until ctx is done.
func runStub(ctx context.Context, address string, apps int, revisions bool) error {
	s, err := newStub(apps, revisions)
	if err != nil {
		return err
	}
	return serveHTTP(ctx, address, s.handler())
}

// serveHTTP serves at an address of the loopback interface until ctx is done.
func serveHTTP(ctx context.Context, address string, handler http.Handler) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
