package decoder

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/bridge/kservice"
)

// listWatch lists and watches Services through a server of handler.
func listWatch(t *testing.T, handler http.HandlerFunc) (list func(context.Context) (runtime.Object, error), watching func() watch.Interface) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	scheme := runtime.NewScheme()
	if err := kservice.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	client, err := NewClient(&rest.Config{Host: server.URL}, scheme)
	if err != nil {
		t.Fatal(err)
	}
	lw := client.ListWatch("Service", "services", metav1.NamespaceAll, labels.Everything())
	list = func(ctx context.Context) (runtime.Object, error) {
		return lw.ListWithContext(ctx, metav1.ListOptions{})
	}
	watching = func() watch.Interface {
		t.Helper()
		w, err := lw.WatchWithContext(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Stop)
		return w
	}
	return list, watching
}

// A list whose connection is cut, wherever that is, is an error and not a shorter list.
func TestListCut(t *testing.T) {
	body := listOf("Service", typical("Service"), typical("Service"))
	for _, at := range []int{0, 1, 60, 1000, len(body) / 2, len(body) - 200, len(body) - 2} {
		for _, length := range []bool{true, false} {
			list, _ := listWatch(t, func(w http.ResponseWriter, _ *http.Request) {
				if length {
					w.Header().Set("Content-Length", strconv.Itoa(len(body)))
				}
				_, _ = w.Write(body[:at])
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			})
			if got, err := list(t.Context()); err == nil {
				t.Errorf("cut at %d, with a length: %t: %d items", at, length, len(got.(*kservice.ServiceList).Items))
			}
		}
	}
}

// The same holds where nothing but the document shows that it is not whole.
func TestListEndsEarly(t *testing.T) {
	body := listOf("Service", typical("Service"), typical("Service"))
	for _, at := range []int{0, 1, 60, 1000, len(body) / 2, len(body) - 200, len(body) - 2} {
		list, _ := listWatch(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(body[:at])
		})
		if got, err := list(t.Context()); err == nil {
			t.Errorf("ends at %d: %#v", at, got)
		}
	}
}

// A list with an unusual item is not requested once more.
func TestListWithUnusualItem(t *testing.T) {
	odd := []byte(strings.Replace(string(typical("Service")), `"conditions":[`, `"conditions":[null,7,`, 1))
	var requests atomic.Int32
	list, _ := listWatch(t, func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		_, _ = w.Write(listOf("Service", typical("Service"), odd, typical("Service")))
	})
	got, err := list(t.Context())
	if err != nil || len(got.(*kservice.ServiceList).Items) != 3 || requests.Load() != 1 {
		t.Errorf("got %v (%v) after %d requests", got, err, requests.Load())
	}
}

// A watch whose last line is cut ends without that event. An error event ends it with its status.
func TestWatchEnds(t *testing.T) {
	one := event("ADDED", typical("Service"))
	for name, c := range map[string]struct {
		last []byte
		want []watch.EventType
	}{
		"cut":                {one[:len(one)/2], []watch.EventType{watch.Added}},
		"cut before its end": {one[:len(one)-3], []watch.EventType{watch.Added}},
		"expired": {
			event("ERROR", []byte(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old","reason":"Expired","code":410}`)),
			[]watch.EventType{watch.Added, watch.Error},
		},
	} {
		_, watching := listWatch(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(append(bytes.Clone(one), c.last...))
		})
		var got []watch.EventType
		for event := range watching().ResultChan() {
			got = append(got, event.Type)
			if status, ok := event.Object.(*metav1.Status); ok && status.Code != http.StatusGone {
				t.Errorf("%s: the status is %v", name, status)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// What was decoded shares no memory with what the next event is read into.
func TestEventsShareNothing(t *testing.T) {
	n := negotiator(t)
	first := typical("Service")
	second := []byte(strings.NewReplacer("a-p-d", "b-q-e", "p/d/a", "q/e/b", "4711", "5822", "8d3f0e7a", "9e4a1f8b", "waiting", "passing").Replace(string(first)))
	body := append(event("ADDED", first), event("MODIFIED", second)...)
	long := []byte(strings.Replace(string(event("ADDED", first)), `"team":"blue"`, `"team":"`+strings.Repeat("x", 40<<10)+`"`, 1))
	body = append(append(body, long...), event("MODIFIED", second)...)
	e := newEvents("Service", n, io.NopCloser(strings.NewReader(string(body))))
	var kept []runtime.Object
	for {
		_, object, err := e.Decode()
		if err != nil {
			break
		}
		kept = append(kept, object)
	}
	if len(kept) != 4 {
		t.Fatalf("%d events", len(kept))
	}
	reader, err := e.clientGo(bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i, object := range kept {
		_, want, err := reader.Decode()
		if err != nil {
			t.Fatal(err)
		}
		if diff := difference(object, want); diff != "" {
			t.Errorf("object %d: %s", i, diff)
		}
	}
}

// A cancelled list ends with an error while the body stands still.
func TestListCancelled(t *testing.T) {
	body := listOf("Service", typical("Service"))
	began, end := make(chan struct{}), make(chan struct{})
	list, _ := listWatch(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(body[:500])
		_ = http.NewResponseController(w).Flush()
		close(began)
		<-r.Context().Done()
		close(end)
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-began; cancel() }()
	if got, err := list(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v (%v)", got, err)
	}
	<-end
}
