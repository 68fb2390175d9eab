package testenv

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// keptRequests bounds what Pod.Requests remembers.
const keptRequests = 4096

// follower is one open request. The pod guards what is not atomic and changes.
type follower struct {
	follow, previous, timestamps bool

	since int64 // nanoseconds
	tail  int64 // negative: all
	limit int64 // bytes still to be sent; negative: any number
	sent  atomic.Int64
	ended chan struct{} // closed: a follow ends at once
	end   func()

	instance *instance
	file     *logFile
	chunk    int // where in the file it reads on
	record   int
	left     int      // records to read; negative: any number
	trap     *logFile // file and index of the record in which it is cut
	trapAt   int

	begun bool // something was sent; the request's own
	text  []byte
}

// serveLogs answers the request for a container's log that the API server
// makes of one for the subresource log of a pod.
func (k *Kubelet) serveLogs(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	k.followers++
	p := k.pods[types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("pod")}]
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		k.followers--
		k.mu.Unlock()
	}()
	if p == nil {
		http.Error(w, fmt.Sprintf("pod %q does not exist", r.PathValue("pod")), http.StatusNotFound)
		return
	}
	f, err := newFollower(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	name := r.PathValue("container")
	p.admit(f, name+"?"+r.URL.RawQuery)
	defer p.dismiss(f)
	status, err := k.hinder(r.Context(), p)
	if err != nil {
		return // nobody is there for an answer
	}
	if status != 0 {
		http.Error(w, "refused", status)
		return
	}
	if status, err := p.begin(f, name); err != nil {
		http.Error(w, err.Error(), status)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	p.send(r.Context(), w, f)
}

// newFollower reads a request's parameters, of which the API server sends no
// other and none that is wrong.
func newFollower(query url.Values) (*follower, error) {
	f := &follower{
		follow:     query.Get("follow") == "true",
		previous:   query.Get("previous") == "true",
		timestamps: query.Get("timestamps") == "true",
		since:      math.MinInt64, tail: -1, limit: -1, left: -1,
		ended: make(chan struct{}),
	}
	f.end = sync.OnceFunc(func() { close(f.ended) })
	var seconds int64 = -1
	for name, into := range map[string]*int64{"tailLines": &f.tail, "limitBytes": &f.limit, "sinceSeconds": &seconds} {
		if !query.Has(name) {
			continue
		}
		value, err := strconv.ParseInt(query.Get(name), 10, 64)
		if err != nil || value < 0 {
			return nil, fmt.Errorf("%s: not a count: %q", name, query.Get(name))
		}
		*into = value
	}
	if seconds >= 0 {
		f.since = time.Now().Add(-time.Duration(seconds) * time.Second).UnixNano()
	}
	if query.Has("sinceTime") {
		since, err := time.Parse(time.RFC3339, query.Get("sinceTime"))
		if err != nil {
			return nil, fmt.Errorf("sinceTime: %w", err)
		}
		f.since = since.Unix() * int64(time.Second) // it has whole seconds
	}
	return f, nil
}

func (p *Pod) admit(f *follower, request string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[f] = struct{}{}
	p.latest = f
	if len(p.requests) == keptRequests {
		p.requests = slices.Delete(p.requests, 0, 1)
	}
	p.requests = append(p.requests, request)
}

func (p *Pod) dismiss(f *follower) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, f)
}

// hinder has a request wait for as long as requests hang, and tells with what
// status it is refused, if it is. The error is the context's.
func (k *Kubelet) hinder(ctx context.Context, p *Pod) (int, error) {
	for {
		k.mu.Lock()
		hung, refuse := k.hung, k.refuse
		k.mu.Unlock()
		p.mu.Lock()
		if hung == nil {
			hung = p.hung
		}
		if refuse == 0 {
			refuse = p.refuse
		}
		p.mu.Unlock()
		if hung == nil {
			return refuse, nil
		}
		select {
		case <-hung:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// begin finds the log that a kubelet would choose, and the place in it.
func (p *Pod) begin(f *follower, name string) (status int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.containerOf(name)
	if c == nil {
		return http.StatusNotFound, fmt.Errorf("container %q not found in pod %q", name, p.key.Name)
	}
	switch {
	case f.previous && c.waiting != "":
		f.instance = c.current // what has ended last is the one before the next
	case f.previous:
		f.instance = c.previous
	default:
		f.instance = c.current
	}
	if f.instance == nil && f.previous {
		return http.StatusBadRequest, fmt.Errorf("previous terminated container %q in pod %q not found", name, p.key.Name)
	}
	if f.instance == nil {
		return http.StatusBadRequest, fmt.Errorf("container %q in pod %q is waiting to start: %s", name, p.key.Name, c.waiting)
	}
	f.file = f.instance.file
	if f.tail >= 0 {
		n := int(min(f.tail, int64(f.file.len())))
		f.seek(f.file.len() - n)
		if !f.follow {
			f.left = n
		}
	}
	return 0, nil
}

// seek goes to the record of that index.
func (f *follower) seek(index int) {
	for f.chunk = len(f.file.chunks) - 1; f.chunk > 0 && f.file.chunks[f.chunk].first > index; f.chunk-- {
	}
	f.chunk = max(f.chunk, 0)
	if len(f.file.chunks) > 0 {
		f.record = index - f.file.chunks[f.chunk].first
	}
}
