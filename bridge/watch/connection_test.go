package watch

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// ask makes a request and returns what ends its answer.
func ask(t *testing.T, ctx context.Context, tr http.RoundTripper, url string) (end func() error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := tr.RoundTrip(req) //nolint:bodyclose // the caller's to close: how long it stays open matters
	if err != nil {
		return func() error { return nil }
	}
	return resp.Body.Close
}

// A watch is missing from its first request on, while it is refused, and again when it ends.
func TestWatchIsMissing(t *testing.T) {
	seen := NewConnection(NewGroup(Limits{}, zap.NewNop()), zap.NewNop(), NewMetrics(prometheus.NewRegistry()))
	status := http.StatusServiceUnavailable
	tr := transport{roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: status, Body: http.NoBody}, nil
	}), seen}
	const list, open = "http://kubernetes/services", "http://kubernetes/services?watch=true"
	check := func(when, want string) {
		t.Helper()
		if what, _, _ := seen.Trouble(); what != want {
			t.Errorf("%s: got %q, want %q", when, what, want)
		}
	}
	const missing = "there has been no watch on Kubernetes"
	ask(t, t.Context(), tr, list)
	check("after a list", "")
	ask(t, t.Context(), tr, open)
	check("after a watch that was refused", missing)
	status = http.StatusOK
	end := ask(t, t.Context(), tr, open)
	check("with a watch", "")
	if err := end(); err != nil {
		t.Fatal(err)
	}
	check("after the watch", missing)
}

// An API server that does not respond within our own deadlines is unavailable. The outcome of a
// request that was given up is unknown.
func TestHangingAPIServerIsUnavailable(t *testing.T) {
	tr := transport{roundTripper(func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}), NewConnection(NewGroup(Limits{}, zap.NewNop()), zap.NewNop(), NewMetrics(prometheus.NewRegistry()))}
	given, cancel := context.WithCancel(t.Context())
	cancel()
	ask(t, given, tr, "http://kubernetes/services")
	if what, _, _ := tr.conn.Trouble(); what != "" {
		t.Errorf("after a request that was given up: %s", what)
	}
	timed, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	ask(t, timed, tr, "http://kubernetes/services")
	if what, _, _ := tr.conn.Trouble(); what != "Kubernetes has not answered" {
		t.Errorf("after a request without an answer: %q", what)
	}
}
