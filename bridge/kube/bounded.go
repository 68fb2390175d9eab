package kube

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// Bounded returns a copy of cfg whose requests end with their context, whatever the layers below do.
// client-go runs a credential plugin under a lock and without the context of the request
// (kubernetes #108849): a plugin that hangs blocks all requests of the program for good. Here one
// request at a time gets its credentials. If the plugin hangs, that one call stays blocked until the
// plugin returns. All other requests wait for it with their own context, and fail at once after it
// has been blocked for [Timeout].
//
// The copy has no client-side rate limit: the API server has its own. Its credentials and its TLS
// settings are in its Transport: they cannot be changed any more.
func Bounded(cfg *rest.Config) (*rest.Config, error) {
	source := "the source of the credentials of --kubeconfig"
	if cfg.ExecProvider != nil {
		source = "the credential plugin " + filepath.Base(cfg.ExecProvider.Command) + " of --kubeconfig"
	}
	b := &bounded{errHangs: &HangsError{source}, turn: make(chan struct{}, 1)}
	inner := rest.CopyConfig(cfg)
	// client-go puts a plugin around this wrapper: a request that arrives has its credentials.
	inner.Wrap(func(rt http.RoundTripper) http.RoundTripper { return &authenticated{b, rt} })
	var err error
	if b.next, err = rest.TransportFor(inner); err != nil {
		return nil, err
	}
	// TLS settings decide about the scheme of an address without one.
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, err
	}
	outer := rest.CopyConfig(cfg)
	outer.Host = base.String()
	outer.Username, outer.Password, outer.BearerToken, outer.BearerTokenFile = "", "", "", ""
	outer.Impersonate = rest.ImpersonationConfig{}
	outer.AuthProvider, outer.AuthConfigPersister, outer.ExecProvider = nil, nil, nil
	outer.TLSClientConfig = rest.TLSClientConfig{}
	outer.WrapTransport, outer.Proxy, outer.Dial = nil, nil, nil
	outer.QPS, outer.RateLimiter = -1, nil
	outer.Transport = b
	return outer, nil
}

// HangsError is the error of a request that got no credentials in time.
type HangsError struct{ source string }

func (e *HangsError) Error() string { return e.source + " does not answer" }

// bounded is the outermost transport.
type bounded struct {
	next     http.RoundTripper // adds the credentials
	errHangs *HangsError       // of a request without credentials

	turn  chan struct{} // holds a value while a request gets its credentials
	mu    sync.Mutex
	since time.Time // when that request began to; zero while none does
}

// RoundTrip implements http.RoundTripper.
func (b *bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	t := &turn{of: b, passed: make(chan struct{})}
	if err := t.take(ctx); err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	type result struct {
		resp *http.Response
		err  error
	}
	done, left := make(chan result), make(chan struct{})
	defer close(left)
	// Not waited for if it is blocked: nothing can end it.
	go func() {
		resp, err := b.next.RoundTrip(req.Clone(context.WithValue(ctx, turnKey{}, t)))
		t.release()
		select {
		case done <- result{resp, err}:
		case <-left:
			if err == nil {
				_ = resp.Body.Close()
			}
		}
	}()
	limit := time.NewTimer(Timeout)
	defer limit.Stop()
	select {
	case r := <-done:
		return r.resp, r.err
	case <-t.passed:
	case <-ctx.Done():
		return nil, b.ended(ctx)
	case <-limit.C:
		return nil, b.errHangs
	}
	select {
	case r := <-done:
		return r.resp, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// WrappedRoundTripper returns the transport with the credentials.
func (b *bounded) WrappedRoundTripper() http.RoundTripper { return b.next }

// ended is the error of a request whose context ended before it had its credentials.
func (b *bounded) ended(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && b.hanging(slowPlugin) {
		return b.errHangs
	}
	return context.Cause(ctx)
}

// slowPlugin is how long a request gets its credentials before those that end meanwhile say so. Before
// that they may have waited for each other.
const slowPlugin = time.Second

// hanging reports whether a request has been getting its credentials for longer than a limit.
func (b *bounded) hanging(limit time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.since.IsZero() && time.Since(b.since) > limit
}

// note notes when a request begins to get its credentials; the zero time: that it has them.
func (b *bounded) note(since time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.since = since
}

// turn is the right of one request to get its credentials. The goroutine of the request uses it.
type turn struct {
	of     *bounded
	held   bool
	once   sync.Once
	passed chan struct{} // closed once the request has its credentials
}

type turnKey struct{}

// take waits for the right, for Timeout at most.
func (t *turn) take(ctx context.Context) error {
	b := t.of
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if b.hanging(Timeout) {
		return b.errHangs
	}
	limit := time.NewTimer(Timeout)
	defer limit.Stop()
	select {
	case b.turn <- struct{}{}:
		t.held = true
		b.note(time.Now())
		return nil
	case <-ctx.Done():
		return b.ended(ctx)
	case <-limit.C:
		return b.errHangs
	}
}

func (t *turn) release() {
	if t.held {
		t.held = false
		t.of.note(time.Time{})
		<-t.of.turn
	}
	t.once.Do(func() { close(t.passed) })
}

// authenticated is the transport of requests that have their credentials. After a 401 response
// client-go gets other ones.
type authenticated struct {
	of   *bounded
	next http.RoundTripper
}

func (a *authenticated) RoundTrip(req *http.Request) (*http.Response, error) {
	t, ok := req.Context().Value(turnKey{}).(*turn)
	if !ok { // a request of client-go's own, such as one for a token
		return a.next.RoundTrip(req)
	}
	t.release()
	resp, err := a.next.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusUnauthorized {
		if err := t.take(req.Context()); err != nil {
			_ = resp.Body.Close()
			return nil, err
		}
	}
	return resp, err
}

// WrappedRoundTripper returns the transport without credentials.
func (a *authenticated) WrappedRoundTripper() http.RoundTripper { return a.next }
