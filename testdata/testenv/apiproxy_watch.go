package testenv

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// apiStream is one watch that goes through an APIProxy. Its fields are guarded
// by the proxy's mu.
type apiStream struct {
	frozen  bool
	initial bool   // the end of the list that it began with has not come
	expired bool   // it ends with 410 Gone
	end     func() // ends the request
}

// watchFrame is one event of a watch, with what the switches look at.
type watchFrame struct {
	Type   string `json:"type"`
	Object struct {
		Kind     string `json:"kind"`
		Metadata struct {
			Name            string            `json:"name"`
			Namespace       string            `json:"namespace"`
			UID             string            `json:"uid"`
			ResourceVersion string            `json:"resourceVersion"`
			Annotations     map[string]string `json:"annotations"`
		} `json:"metadata"`
	} `json:"object"`
}

func (f *watchFrame) endsList() bool {
	return f.Type == "BOOKMARK" && f.Object.Metadata.Annotations[metav1.InitialEventsAnnotationKey] == "true"
}

// watch passes a watch on, event by event, as JSON.
func (p *APIProxy) watch(w http.ResponseWriter, r *http.Request) {
	begins := r.URL.Query().Get("sendInitialEvents") == "true"
	ctx, end := context.WithCancel(r.Context())
	defer end()
	stream := &apiStream{initial: begins, end: end}
	if p.watchStale(w, r, stream) {
		return
	}
	out := r.Clone(ctx)
	out.RequestURI = ""
	out.URL.Scheme, out.URL.Host, out.Host = p.target.Scheme, p.target.Host, p.target.Host
	out.Header.Del("Accept-Encoding")
	out.Header.Del("Connection")
	out.Header.Set("Accept", onlyJSON(r.Header.Get("Accept")))
	resp, err := p.RoundTrip(out)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
	if resp.StatusCode != http.StatusOK {
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
		return
	}
	p.enter(stream)
	defer p.leave(stream)
	accept(w)
	frames := json.NewDecoder(resp.Body)
	for {
		var raw json.RawMessage
		if err := frames.Decode(&raw); err != nil {
			p.hold(r, stream)
			p.expire(w, stream)
			return
		}
		frame := &watchFrame{}
		if err := json.Unmarshal(raw, frame); err != nil {
			panic(fmt.Sprintf("an event of a watch: %v", err)) // ends the connection
		}
		if p.keeps(stream, frame) {
			continue
		}
		if resource, lists := listed(r); lists && frame.endsList() {
			p.pass(r, resource, true)
		}
		if err := send(w, raw); err != nil {
			return
		}
	}
}

// onlyJSON takes other encodings out of an Accept header.
func onlyJSON(accept string) string {
	var kept []string
	for part := range strings.SplitSeq(accept, ",") {
		if strings.HasPrefix(strings.TrimSpace(part), "application/json") {
			kept = append(kept, part)
		}
	}
	if len(kept) == 0 {
		return "application/json"
	}
	return strings.Join(kept, ",")
}

// accept answers a watch, before its first event.
func accept(w http.ResponseWriter) {
	w.WriteHeader(http.StatusOK)
	flush(w)
}

func flush(w http.ResponseWriter) {
	_ = http.NewResponseController(w).Flush() // a client that is gone shows at the next write
}

func send(w http.ResponseWriter, frame []byte) error {
	if _, err := w.Write(append(frame, '\n')); err != nil {
		return err
	}
	flush(w)
	return nil
}

func (p *APIProxy) enter(s *apiStream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.frozen = s.frozen || p.freeze
	p.streams[s] = struct{}{}
}

func (p *APIProxy) leave(s *apiStream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.streams, s)
}

// hold keeps a frozen watch open that the API server has ended, until its client
// closes it.
func (p *APIProxy) hold(r *http.Request, s *apiStream) {
	p.mu.Lock()
	frozen := s.frozen
	p.mu.Unlock()
	if frozen {
		<-r.Context().Done()
	}
}

// keeps reports whether an event does not reach the client.
func (p *APIProxy) keeps(s *apiStream, f *watchFrame) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.frozen {
		return true
	}
	if f.endsList() {
		if s.initial && p.dropEnd {
			return true
		}
		s.initial = false
		return false
	}
	// Without the end of the list, additions may still be part of it.
	listed := s.initial && f.Type == "ADDED"
	if p.swallow == nil || p.swallow.left == 0 || listed || f.Type == "BOOKMARK" || f.Type == "ERROR" ||
		!p.swallow.match(f.Object.Kind, f.Object.Metadata.Name, f.Type) {
		return false
	}
	p.swallow.left--
	m := f.Object.Metadata
	p.swallowed = append(p.swallowed, SwallowedEvent{
		Kind: f.Object.Kind, Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, Type: f.Type,
	})
	return true
}
