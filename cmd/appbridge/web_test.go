package main

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
)

func TestHandler(t *testing.T) {
	tests := []struct {
		name, method, path string
		ready              error
		status             int
		body               string
	}{
		{"alive", http.MethodGet, "/healthz", errors.New("no"), 200, "ok\n"},
		{"ready", http.MethodGet, "/readyz", nil, 200, "ok\n"},
		{"not ready", http.MethodGet, "/readyz", errors.New("informer not synced"), 503, "informer not synced\n"},
		{"unknown path", http.MethodGet, "/", nil, 404, "404 page not found\n"},
		{"write", http.MethodPost, "/readyz", nil, 405, "Method Not Allowed\n"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			handler := newHandler(prometheus.NewRegistry(), func() error { return test.ready }, zap.NewNop())
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), test.method, test.path, nil))
			if got, want := recorder.Code, test.status; got != want {
				t.Errorf("got status %d, want %d", got, want)
			}
			if got, want := recorder.Body.String(), test.body; got != want {
				t.Errorf("got body %q, want %q", got, want)
			}
		})
	}
}

func TestMetrics(t *testing.T) {
	reg := newRegistry()
	own := prometheus.NewCounter(prometheus.CounterOpts{Name: "test_total", Help: "A metric of somebody else."})
	reg.MustRegister(own)
	own.Inc()
	recorder := httptest.NewRecorder()
	newHandler(reg, func() error { return nil }, zap.NewNop()).ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if got, want := recorder.Code, 200; got != want {
		t.Errorf("got status %d, want %d", got, want)
	}
	build := currentBuild()
	for _, want := range []string{
		`appbridge_build_info{commit="` + build.Commit + `",go_version="` + build.Go + `",version="` + build.Version + `"} 1` + "\n",
		"\ntest_total 1\n", "\ngo_goroutines ", "\nprocess_start_time_seconds ",
	} {
		if got := "\n" + recorder.Body.String(); !strings.Contains(got, want) {
			t.Errorf("want %q in\n%s", want, got)
		}
	}
}

func TestWebStartsAndStops(t *testing.T) {
	log := zaptest.NewLogger(t)
	site, err := startWeb(t.Context(), "127.0.0.1:0", http.NotFoundHandler(), log)
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + site.addr.String()
	if got, want := statusOf(t, url), 404; got != want {
		t.Errorf("got status %d, want %d", got, want)
	}
	if _, err := startWeb(t.Context(), site.addr.String(), nil, log); err == nil || err.Error() != "http-listen "+site.addr.String()+": bind: address already in use; choose another with --http-listen" {
		t.Errorf("got %v, want one line that names the address", err)
	}
	site.stop()
	if got := statusOf(t, url); got != 0 {
		t.Errorf("got status %d after the stop, want no answer", got)
	}
}

// statusOf is the status of a GET, 0 when nobody answers.
func statusOf(t *testing.T, url string) int {
	t.Helper()
	status, _ := get(t, url)
	return status
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return 0, ""
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(data)
}
