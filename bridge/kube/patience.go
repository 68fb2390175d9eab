package kube

import (
	"time"

	"github.com/cenkalti/backoff/v4"
)

// terminalAfter is how long a terminal error (a refused identity, a missing CRD) is tried again: an
// API server that has just started returns some of them for a moment.
const terminalAfter = 5 * time.Second

// Patience bounds the tries of a request with terminal errors. The zero value is ready for use.
type Patience struct {
	since time.Time // of the first terminal error in a row
}

// Check returns err, permanent once terminal errors have lasted for five seconds.
func (p *Patience) Check(err error) error {
	if !Terminal(err) {
		p.since = time.Time{}
		return err
	}
	if p.since.IsZero() {
		p.since = time.Now()
	}
	if time.Since(p.since) < terminalAfter {
		return err
	}
	return backoff.Permanent(err)
}
