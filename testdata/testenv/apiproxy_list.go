package testenv

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ListGate keeps back the list of a resource ("services", "revisions" or "pods") until it returns or
// the context ends. It is called twice: before the request goes to the API server, and before the
// answer, or the bookmark that ends a list by watch, goes to the client.
type ListGate func(ctx context.Context, resource string, answered bool)

// GateLists has the lists of informers pass a gate. Lists of metadata pass without.
func (p *APIProxy) GateLists(gate ListGate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gate = gate
}

// ExpireWatches ends the open watches of informers as an API server does that has forgotten their
// version: with 410 Gone. Their clients have to list.
func (p *APIProxy) ExpireWatches() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.streams {
		s.expired = true
		s.end()
	}
}

// listed is the resource that a request lists whole, as an informer does.
func listed(r *http.Request) (resource string, ok bool) {
	query := r.URL.Query()
	resource = path.Base(r.URL.Path)
	lists := r.Method == http.MethodGet && slices.Contains([]string{"services", "revisions", "pods"}, resource) &&
		(!isWatchRequest(r) || query.Get("sendInitialEvents") == "true")
	return resource, lists && !strings.Contains(r.Header.Get("Accept"), "as=")
}

// pass waits at the gate.
func (p *APIProxy) pass(r *http.Request, resource string, answered bool) {
	p.mu.Lock()
	gate := p.gate
	p.mu.Unlock()
	if gate != nil {
		gate(r.Context(), resource, answered)
	}
}

// expire ends a watch that has expired.
func (p *APIProxy) expire(w http.ResponseWriter, s *apiStream) {
	p.mu.Lock()
	expired := s.expired
	p.mu.Unlock()
	if !expired {
		return
	}
	status, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old resource version",
	})
	if err == nil {
		_ = send(w, fmt.Appendf(nil, `{"type":"ERROR","object":%s}`, status)) // a client that is gone lists as well
	}
}
