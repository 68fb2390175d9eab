package testenv

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
)

const servingPath = "/apis/serving.knative.dev/v1/"

// staleCache is what the watch cache of an API server holds that has lost its
// connection to etcd: per resource, everything as it was at one version.
type staleCache struct {
	lists map[string]*staleList // by resource: services, revisions
}

type staleList struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Items []json.RawMessage `json:"items"`
}

// ServeStale has the Knative kinds served as by an API server whose watch cache
// stands still at this moment. Lists and gets at resourceVersion 0 show what there
// was; at a later version they are refused ("Too large resource version").
// Consistent ones (resourceVersion unset) are answered from etcd. Watches are
// accepted and show nothing that is newer; one that begins with a consistent
// list never ends it. Those that are open, and those made until Heal, stay mute.
func (p *APIProxy) ServeStale(ctx context.Context) error {
	stale := &staleCache{lists: map[string]*staleList{}}
	for _, resource := range []string{"services", "revisions"} {
		var list *staleList
		err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, serverTimeout, true, func(ctx context.Context) (done bool, err error) {
			list, done, err = p.listAll(ctx, resource)
			return done, err
		})
		if err != nil {
			return fmt.Errorf("record %s: %w", resource, err)
		}
		stale.lists[resource] = list
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stale = stale
	p.freezeOpen()
	return nil
}

// listAll lists a resource; done is false while its storage comes up.
func (p *APIProxy) listAll(ctx context.Context, resource string) (list *staleList, done bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.target.JoinPath(servingPath, resource).String(), nil)
	if err != nil {
		return nil, false, err
	}
	resp, err := p.admin.RoundTrip(req)
	if err != nil {
		return nil, false, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return nil, false, err
	case resp.StatusCode == http.StatusTooManyRequests:
		return nil, false, nil
	case resp.StatusCode != http.StatusOK:
		return nil, false, fmt.Errorf("%s: %s", resp.Status, text)
	}
	list = &staleList{}
	return list, true, json.Unmarshal(text, list)
}

// staleTarget is what a request on a Knative kind reads.
type staleTarget struct {
	list            *staleList
	namespace, name string
}

// staleTarget is false for a request on anything else, and while nothing is stale.
func (p *APIProxy) staleTarget(r *http.Request) (t staleTarget, ok bool) {
	p.mu.Lock()
	stale := p.stale
	p.mu.Unlock()
	path, found := strings.CutPrefix(r.URL.Path, servingPath)
	if stale == nil || !found || r.Method != http.MethodGet {
		return t, false
	}
	parts := strings.Split(path, "/")
	if parts[0] == "namespaces" && len(parts) > 2 {
		t.namespace = parts[1]
		parts = parts[2:]
	}
	if len(parts) > 2 {
		return t, false
	}
	if len(parts) == 2 {
		t.name = parts[1]
	}
	t.list = stale.lists[parts[0]]
	return t, t.list != nil
}

// answerStale answers a list or a get that the watch cache would answer.
func (p *APIProxy) answerStale(w http.ResponseWriter, r *http.Request) bool {
	version := r.URL.Query().Get("resourceVersion")
	t, ok := p.staleTarget(r)
	if !ok || version == "" {
		return false
	}
	if t.tooLarge(version) {
		refuse(w, http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "Too large resource version", metav1.CauseTypeResourceVersionTooLarge)
		return true
	}
	items, err := t.items(r)
	if err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error(), "")
		return true
	}
	switch {
	case t.name == "":
		list := *t.list
		list.Items = items
		answer(w, http.StatusOK, list)
	case len(items) == 0:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, t.name+" not found", "")
	default:
		answer(w, http.StatusOK, items[0])
	}
	return true
}

// watchStale accepts a watch that the watch cache would answer, and shows what
// it has.
func (p *APIProxy) watchStale(w http.ResponseWriter, r *http.Request, s *apiStream) bool {
	t, ok := p.staleTarget(r)
	if !ok {
		return false
	}
	version := r.URL.Query().Get("resourceVersion")
	if version != "" && t.tooLarge(version) {
		refuse(w, http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "Too large resource version", metav1.CauseTypeResourceVersionTooLarge)
		return true
	}
	s.frozen = true
	p.enter(s)
	defer p.leave(s)
	w.Header().Set("Content-Type", "application/json")
	accept(w)
	if s.initial && version != "" {
		items, err := t.items(r)
		if err != nil {
			return true
		}
		for _, item := range items {
			if send(w, fmt.Appendf(nil, `{"type":"ADDED","object":%s}`, item)) != nil {
				return true
			}
		}
		if send(w, fmt.Appendf(nil, `{"type":"BOOKMARK","object":{"apiVersion":%q,"kind":%q,"metadata":{"resourceVersion":%q,"annotations":{%q:"true"}}}}`,
			t.list.APIVersion, strings.TrimSuffix(t.list.Kind, "List"), t.list.Metadata.ResourceVersion, metav1.InitialEventsAnnotationKey)) != nil {
			return true
		}
	}
	<-r.Context().Done()
	return true
}

func (t staleTarget) tooLarge(version string) bool {
	if version == "0" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(version, t.list.Metadata.ResourceVersion)
	return err == nil && order > 0
}

// items are the recorded objects that a request selects.
func (t staleTarget) items(r *http.Request) ([]json.RawMessage, error) {
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		return nil, err
	}
	found := []json.RawMessage{}
	for _, item := range t.list.Items {
		var object struct {
			Metadata struct {
				Name, Namespace string
				Labels          labels.Set
			}
		}
		if err := json.Unmarshal(item, &object); err != nil {
			return nil, err
		}
		m := object.Metadata
		if (t.namespace == "" || m.Namespace == t.namespace) && (t.name == "" || m.Name == t.name) && selector.Matches(m.Labels) {
			found = append(found, item)
		}
	}
	return found, nil
}

func answer(w http.ResponseWriter, code int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(text)
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string, cause metav1.CauseType) {
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	}
	if cause != "" {
		status.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: cause, Message: message}}}
	}
	answer(w, code, status)
}
