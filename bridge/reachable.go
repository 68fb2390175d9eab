package bridge

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"go.uber.org/zap"
)

// reachability watches the requests to the API server. client-go tries again
// by itself when it is away and tells nobody.
type reachability struct {
	log     *zap.Logger
	metrics *metrics

	mu   sync.Mutex
	away bool
}

// transport is one HTTP transport whose outcomes a reachability hears of:
// each client makes its own.
type transport struct {
	http.RoundTripper
	seen *reachability
}

func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(req)
	if err == nil || (req.Context().Err() == nil && !errors.Is(err, context.Canceled)) {
		t.seen.note(err) // else it was given up on, which says nothing
	}
	return resp, err
}

func (r *reachability) note(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		if r.away {
			r.log.Info("Kubernetes answers again")
		}
		r.away = false
		r.metrics.kubeReachable.Set(1)
		return
	}
	if !r.away {
		r.log.Warn("Kubernetes is away; its changes are seen once it is back", zap.Error(err))
	}
	r.away = true
	r.metrics.kubeErrors.Inc()
	r.metrics.kubeReachable.Set(0)
}
