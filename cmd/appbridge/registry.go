package main

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// scopedRegistry registers the metrics of what may be made again: unregister removes them. Safe for
// concurrent use.
type scopedRegistry struct {
	prometheus.Registerer

	mu   sync.Mutex
	made []prometheus.Collector
}

// Register implements prometheus.Registerer.
func (r *scopedRegistry) Register(c prometheus.Collector) error {
	if err := r.Registerer.Register(c); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.made = append(r.made, c)
	return nil
}

// MustRegister implements prometheus.Registerer.
func (r *scopedRegistry) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

func (r *scopedRegistry) unregister() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.made {
		r.Unregister(c)
	}
	r.made = nil
}
