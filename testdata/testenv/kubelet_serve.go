package testenv

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// keptRequests bounds what Pod.Requests remembers.
const keptRequests = 4096

// follower is one open request. The pod guards what is not atomic and changes.
type follower struct {
	follow, previous, timestamps bool

	since time.Time
	tail  int64 // negative: all
	limit int64 // bytes still to be sent; negative: any number
	sent  atomic.Int64
	end   func() // the request ends at once

	number   int    // among those of the pod
	request  string // such as "app?follow=true&tailLines=5"
	instance *instance
	path     string                 // of the log's file
	trapLine atomic.Pointer[string] // the line in which it is cut
	atEnd    atomic.Bool            // the reader has come to the end of the file, and notices changes

	// Of a log in memory alone.
	memory *memoryLog
	oldest int64 // nanoseconds
	file   *logFile
	chunk  int // where in the file it reads on
	record int
	left   int      // records to read; negative: any number
	trap   *logFile // file and index of the record in which it is cut
	trapAt int

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
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	f, err := k.newFollower(r.URL.Query(), cancel)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	name := r.PathValue("container")
	f.request = name + "?" + r.URL.RawQuery
	p.admit(f)
	defer p.dismiss(f)
	h, err := k.hinder(r.Context(), p)
	if err != nil {
		return // nobody is there for an answer
	}
	if h.refuse != 0 {
		http.Error(w, refusal(h.refuse), h.refuse)
		return
	}
	if status, err := p.begin(f, name); err != nil {
		http.Error(w, err.Error(), status)
		return
	}
	if f.memory != nil {
		w.Header().Set("Content-Type", "text/plain")
		p.send(ctx, w, f, h)
	} else {
		p.read(ctx, w, f, h)
	}
}

// newFollower reads a request's parameters, of which the API server sends no
// other and none that is wrong.
func (k *Kubelet) newFollower(query url.Values, end func()) (*follower, error) {
	f := &follower{
		follow:     query.Get("follow") == "true",
		previous:   query.Get("previous") == "true",
		timestamps: query.Get("timestamps") == "true",
		oldest:     math.MinInt64, tail: -1, limit: -1, left: -1,
		end: end,
	}
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
		f.since = k.now().Add(-time.Duration(seconds) * time.Second)
	}
	if query.Has("sinceTime") {
		since, err := time.Parse(time.RFC3339, query.Get("sinceTime"))
		if err != nil {
			return nil, fmt.Errorf("sinceTime: %w", err)
		}
		f.since = since
	}
	if !f.since.IsZero() {
		f.oldest = f.since.UnixNano()
	}
	return f, nil
}

func (p *Pod) admit(f *follower) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[f] = struct{}{}
	p.latest = f
	p.admitted++
	f.number = p.admitted
	p.report(f, RequestOpened)
	if len(p.requests) == keptRequests {
		p.requests = slices.Delete(p.requests, 0, 1)
	}
	p.requests = append(p.requests, f.request)
}

func (p *Pod) dismiss(f *follower) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, f)
	p.report(f, RequestEnded)
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
	var inMemory bool
	if f.memory, inMemory = f.instance.log.(*memoryLog); !inMemory {
		f.path = f.instance.log.(*diskLog).path
		return 0, nil
	}
	f.file = f.memory.file
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
