package main

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
)

// flushBytes is how much is written at one time.
const flushBytes = 64 << 10

// watcher writes the events of one watch.
type watcher struct {
	w   http.ResponseWriter
	k   kind
	buf []byte
}

func (w *watcher) event(typ string, o state) error {
	w.buf = append(w.buf, `{"type":"`...)
	w.buf = append(w.buf, typ...)
	w.buf = append(w.buf, `","object":`...)
	w.buf = w.k.of(o).append(w.buf, o)
	w.buf = append(w.buf, "}\n"...)
	if len(w.buf) < flushBytes {
		return nil
	}
	return w.flush()
}

func (w *watcher) bookmark(version uint64, annotations string) error {
	w.buf = fmt.Appendf(w.buf, `{"type":"BOOKMARK","object":{"apiVersion":%q,"kind":%q,"metadata":{%s"creationTimestamp":null,"resourceVersion":"%d"}}}`+"\n",
		servingv1.SchemeGroupVersion.String(), w.k.name, annotations, version)
	return w.flush()
}

// flush waits while the client does not read.
func (w *watcher) flush() error {
	_, err := w.w.Write(w.buf)
	w.buf = w.buf[:0]
	if err == nil {
		err = http.NewResponseController(w.w).Flush()
	}
	return err
}

// watch sends what exists if that is asked for, then each change as fast as the client reads.
func (s *stub) watch(w http.ResponseWriter, r *http.Request, k kind) {
	q := r.URL.Query()
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	to := &watcher{w: w, k: k}
	version, _ := strconv.ParseUint(q.Get("resourceVersion"), 10, 64) // "": from now on
	done := int(max(version, s.start()) - s.start())
	if q.Get("sendInitialEvents") == "true" || version == 0 {
		var objects []state
		objects, done = k.objects(0, maxApps)
		for _, o := range objects {
			if to.event("ADDED", o) != nil {
				return
			}
		}
		if to.bookmark(s.start()+uint64(done), `"annotations":{"`+metav1.InitialEventsAnnotationKey+`":"true"},`) != nil {
			return
		}
	} else if to.flush() != nil { // the header
		return
	}
	bookmarks := time.NewTicker(bookmarkInterval)
	defer bookmarks.Stop()
	for {
		changes, more := s.since(done)
		done += len(changes)
		if k.name == "Service" {
			for _, o := range changes {
				if to.event("MODIFIED", o) != nil {
					return
				}
			}
			if len(to.buf) > 0 && to.flush() != nil {
				return
			}
		}
		select {
		case <-more:
		case <-bookmarks.C:
			if to.bookmark(s.start()+uint64(done), "") != nil {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}
