package testenv

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// obstacle is what stands between requests and their answers: those for all pods of a [Kubelet], or for
// one [Pod].
type obstacle struct {
	guard sync.Mutex
	faults
}

// faults are the settings of an obstacle.
type faults struct {
	hung    chan struct{} // closed when requests no longer hang; nil: they do not
	silent  chan struct{} // closed when answers go on; nil: they do
	refuse  int           // HTTP status; 0: none
	delay   time.Duration
	pause   time.Duration
	records int // after which an answer ends; 0: it does not
}

func (o *obstacle) look() faults {
	o.guard.Lock()
	defer o.guard.Unlock()
	return o.faults
}

// hindrance is what has become of the obstacles of a request.
type hindrance struct {
	silent  <-chan struct{}
	refuse  int
	pause   time.Duration
	records int
}

// toggle makes a channel, or closes it.
func toggle(c *chan struct{}, on bool) {
	switch {
	case on && *c == nil:
		*c = make(chan struct{})
	case !on && *c != nil:
		close(*c)
		*c = nil
	}
}

// Hang has new requests wait before anything of their answer is sent, until it
// is taken back; those that wait are then served. Open follows are not touched.
func (o *obstacle) Hang(on bool) {
	o.guard.Lock()
	defer o.guard.Unlock()
	toggle(&o.hung, on)
}

// Silence has new requests wait after the header of their answer, before the
// first byte of the log, until it is taken back.
func (o *obstacle) Silence(on bool) {
	o.guard.Lock()
	defer o.guard.Unlock()
	toggle(&o.silent, on)
}

// Slow has new requests wait so long before anything of their answer is sent,
// and before each record of the log. Zero: not at all.
func (o *obstacle) Slow(first, each time.Duration) {
	o.guard.Lock()
	defer o.guard.Unlock()
	o.delay, o.pause = first, each
}

// Refuse answers new requests with an HTTP status, until it is taken back with 0.
func (o *obstacle) Refuse(status int) {
	o.guard.Lock()
	defer o.guard.Unlock()
	o.refuse = status
}

// RefuseConnections ends all requests, and refuses new connections until it is
// taken back. The API server finds the node at another port then.
func (k *Kubelet) RefuseConnections(ctx context.Context, on bool) error {
	err := k.stop()
	if err == nil && !on {
		err = k.serve(ctx)
	}
	if err != nil {
		return fmt.Errorf("kubelet %s: %w", k.name, err)
	}
	return nil
}

// EndAfter ends new requests for the pod's logs after so many records, until it
// is taken back with 0. It does nothing to a log in memory.
func (p *Pod) EndAfter(records int) {
	p.guard.Lock()
	defer p.guard.Unlock()
	p.records = records
}

// refusal is what a kubelet says with a status.
func refusal(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "Unauthorized"
	case http.StatusForbidden:
		return "Forbidden (user=kube-apiserver-kubelet-client, verb=get, resource=nodes, subresource(s)=[proxy])"
	default:
		return "refused"
	}
}

// hinder has a request wait for as long as requests hang or are slow, and returns what else is in its
// way. A pod's own obstacle goes second. The error is the context's.
func (k *Kubelet) hinder(ctx context.Context, p *Pod) (hindrance, error) {
	var delayed time.Duration
	for {
		all, own := k.look(), p.look()
		hung := all.hung
		if hung == nil {
			hung = own.hung
		}
		delay := max(all.delay, own.delay)
		switch {
		case hung != nil:
			select {
			case <-hung:
			case <-ctx.Done():
				return hindrance{}, ctx.Err()
			}
		case delay > delayed:
			if err := Pause(ctx, delay-delayed); err != nil {
				return hindrance{}, err
			}
			delayed = delay
		default:
			h := hindrance{refuse: all.refuse, silent: all.silent, pause: max(all.pause, own.pause), records: own.records}
			if h.refuse == 0 {
				h.refuse = own.refuse
			}
			if h.silent == nil {
				h.silent = own.silent
			}
			return h, nil
		}
	}
}

// pass waits until answers go on, and reports whether they do.
func (h hindrance) pass(ctx context.Context) bool {
	if h.silent == nil {
		return true
	}
	select {
	case <-h.silent:
		return true
	case <-ctx.Done():
		return false
	}
}
