package main

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/appbridge/appbridge/cmd/appbridge/config"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
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
			handler := newHandler(prometheus.NewRegistry(), func() error { return test.ready }, false, zap.NewNop())
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
	newHandler(reg, func() error { return nil }, false, zap.NewNop()).ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
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

func TestProfiles(t *testing.T) {
	if config.Default(config.Serve).Pprof {
		t.Error("profiles are on by default")
	}
	for _, on := range []bool{false, true} {
		for path, served := range map[string]bool{
			"/debug/pprof/": true, "/debug/pprof/heap?debug=1": true, "/debug/pprof/symbol": true,
			"/debug/pprof/cmdline": false, // it may have passwords
		} {
			recorder := httptest.NewRecorder()
			newHandler(prometheus.NewRegistry(), func() error { return nil }, on, zap.NewNop()).ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
			if got, want := recorder.Code == http.StatusOK, on && served; got != want {
				t.Errorf("profiles %t: %s is served: %t, want %t", on, path, got, want)
			}
		}
	}
}

func TestWebStartsAndStops(t *testing.T) {
	log := zaptest.NewLogger(t)
	site, err := startWeb(t.Context(), "127.0.0.1:0", http.NotFoundHandler(), defaultWebTimeouts(), log)
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + site.addr.String()
	if got, want := statusOf(t, url), 404; got != want {
		t.Errorf("got status %d, want %d", got, want)
	}
	if _, err := startWeb(t.Context(), site.addr.String(), nil, defaultWebTimeouts(), log); err == nil || err.Error() != "http-listen "+site.addr.String()+": bind: address already in use; choose another with --http-listen" {
		t.Errorf("got %v, want one line that names the address", err)
	}
	site.stop()
	if got := statusOf(t, url); got != 0 {
		t.Errorf("got status %d after the stop, want no answer", got)
	}
}

// A client that sends its request too slowly, reads its answer too slowly, or sends nothing,
// loses its connection; one that sends too long a header is refused.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	const short, long = 50 * time.Millisecond, time.Hour
	wrote := make(chan error, 1)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/large" {
			return
		}
		block := make([]byte, 1<<20)
		for {
			if _, err := w.Write(block); err != nil {
				wrote <- err
				return
			}
		}
	})
	const get = "GET / HTTP/1.1\r\nHost: x\r\n"
	for _, test := range []struct {
		name     string
		timeouts webTimeouts
		send     string
		want     string // how the answer begins; empty: there is none
	}{
		{"nothing", webTimeouts{read: short, write: long, idle: long}, "", ""},
		{"half a header", webTimeouts{read: short, write: long, idle: long}, get, ""},
		{"no second request", webTimeouts{read: long, write: long, idle: short}, get + "\r\n", "HTTP/1.1 200 "},
		{"a long header", webTimeouts{read: long, write: long, idle: long}, get + "X: " + strings.Repeat("x", 64<<10) + "\r\n\r\n", "HTTP/1.1 431 "},
	} {
		t.Run(test.name, func(t *testing.T) {
			conn := slowClient(t, handler, test.timeouts, test.send)
			got, err := io.ReadAll(conn) // until the server closes
			if err != nil && !errors.Is(err, syscall.ECONNRESET) {
				t.Fatalf("the connection stays open: %v", err)
			}
			if !strings.HasPrefix(string(got), test.want) || test.want == "" && len(got) > 0 {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
	t.Run("half a body", func(t *testing.T) {
		// The header has to arrive in the same time.
		for read := short; ; read *= 2 {
			conn := slowClient(t, handler, webTimeouts{read: read, write: long, idle: long}, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1")
			got, err := io.ReadAll(conn)
			if err != nil && !errors.Is(err, syscall.ECONNRESET) {
				t.Fatalf("the connection stays open: %v", err)
			}
			if strings.HasPrefix(string(got), "HTTP/1.1 200 ") {
				return
			}
			if len(got) > 0 || read > time.Minute {
				t.Fatalf("got %q", got)
			}
		}
	})
	t.Run("no reading", func(t *testing.T) {
		slowClient(t, handler, webTimeouts{read: long, write: short, idle: long}, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
		select {
		case err := <-wrote:
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the answer ended with %v, want its deadline", err)
			}
		case <-time.After(suite.Patience):
			t.Error("the answer waits for its reader")
		}
	})
}

// slowClient is a connection to a server on which something was sent.
func slowClient(t *testing.T, handler http.Handler, timeouts webTimeouts, send string) net.Conn {
	t.Helper()
	site, err := startWeb(t.Context(), "127.0.0.1:0", handler, timeouts, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(site.stop)
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", site.addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(suite.Patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, send); err != nil {
		t.Fatal(err)
	}
	return conn
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
