package e2e_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
)

// swallower keeps watch events from a bridge: those of the objects whose name it is given, while it is on.
type swallower struct {
	http.RoundTripper
	on        *atomic.Bool
	name      string
	swallowed *atomic.Int64
}

func (s swallower) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := s.RoundTripper.RoundTrip(r)
	if err == nil && r.URL.Query().Get("watch") != "" {
		resp.Body = &swallowed{ReadCloser: resp.Body, lines: bufio.NewReader(resp.Body), by: s}
	}
	return resp, err
}

// swallowed is the body of a watch, one event a line.
type swallowed struct {
	io.ReadCloser
	lines *bufio.Reader
	by    swallower
	left  []byte
}

func (b *swallowed) Read(p []byte) (int, error) {
	for len(b.left) == 0 {
		line, err := b.lines.ReadBytes('\n')
		if err != nil && len(line) == 0 {
			return 0, err
		}
		if b.by.on.Load() && bytes.Contains(line, []byte(b.by.name)) && !bytes.Contains(line, []byte(`"BOOKMARK"`)) {
			b.by.swallowed.Add(1)
			continue
		}
		b.left = line
	}
	n := copy(p, b.left)
	b.left = b.left[n:]
	return n, nil
}

// A watch event that never arrives is found, also by a bridge whose other events arrive, and the
// informer lists again.
func TestAuditFindsSwallowedEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	svc := w.create(w.app("mute"))
	w.create(w.app("other"))
	var on atomic.Bool
	var count atomic.Int64
	kube := rest.CopyConfig(w.Config)
	kube.QPS = -1
	kube.Wrap(func(rt http.RoundTripper) http.RoundTripper { return swallower{rt, &on, svc.Name, &count} })
	r := w.launch(w.audited(), kube)
	r.waitReady()
	r.completes(2)
	r.foundNothing()
	on.Store(true)
	must[*servingv1.Service](t)(w.Progressing(t.Context(), svc))
	must[*servingv1.Service](t)(w.Progressing(t.Context(), w.create(w.app("third"))))
	want := fmt.Sprintf("Service %s/%s source_behind source", w.namespace, svc.Name)
	eventually(t, "it is found", func() error {
		if found := r.findings(); !slices.Equal(found, []string{want}) {
			return fmt.Errorf("found %q, want %q; swallowed %d", found, want, count.Load())
		}
		return nil
	})
	eventually(t, "the informer lists again", func() error {
		if r.logs.FilterMessage("an informer lists again").Len() == 0 {
			return errNotYet
		}
		return nil
	})
	on.Store(false)
	must[*servingv1.Service](t)(w.Failed(t.Context(), svc, "Broken", "it is"))
	eventually(t, "it is repaired", func() error {
		if r.logs.FilterMessage(auditRepaired).Len() == 0 {
			return errNotYet
		}
		return r.bridge.Ready()
	})
	r.completes(2)
	if found := r.findings(); len(found) != 1 || !strings.HasPrefix(found[0], "Service ") {
		t.Errorf("found %q", found)
	}
	eventually(t, "bucket equals cluster", func() error { return w.bucketDrift(w.config().App, w.events(0)) })
}
