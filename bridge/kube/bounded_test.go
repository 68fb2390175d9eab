package kube

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// plugin is a credential plugin that hangs while a file exists.
type plugin struct {
	t    testing.TB
	path string
}

// newPlugin makes a plugin whose token is valid for one request, or for long.
func newPlugin(t testing.TB, long bool) *plugin {
	t.Helper()
	p := &plugin{t, filepath.Join(t.TempDir(), "plugin")}
	expires := ""
	if !long {
		expires = `"expirationTimestamp":"2020-01-01T00:00:00Z",`
	}
	p.write("", `#!/bin/sh
echo call >> "$0.calls"
while [ -e "$0.hang" ]; do sleep 0.05; done
echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{`+expires+`"token":"secret"}}'
`)
	t.Cleanup(p.resume)
	return p
}

func (p *plugin) write(suffix, content string) {
	p.t.Helper()
	if err := os.WriteFile(p.path+suffix, []byte(content), 0o700); err != nil {
		p.t.Fatal(err)
	}
}

func (p *plugin) hang() { p.write(".hang", "") }

func (p *plugin) resume() {
	if err := os.Remove(p.path + ".hang"); err != nil && !errors.Is(err, os.ErrNotExist) {
		p.t.Error(err)
	}
}

func (p *plugin) calls() int {
	text, err := os.ReadFile(p.path + ".calls")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		p.t.Fatal(err)
	}
	return bytes.Count(text, []byte("\n"))
}

// pods is a client of a server, with the plugin's credentials.
func (p *plugin) pods(server *httptest.Server) corev1client.PodInterface {
	p.t.Helper()
	cfg, err := Bounded(&rest.Config{
		Host: strings.TrimPrefix(server.URL, "https://"), // the scheme follows from the TLS settings
		TLSClientConfig: rest.TLSClientConfig{
			CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
		},
		ExecProvider: &clientcmdapi.ExecConfig{
			Command: p.path, APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
		},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	client, err := corev1client.NewForConfig(cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	return client.Pods("flyte")
}

// get is a request that may take the given time.
func get(t testing.TB, pods corev1client.PodInterface, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	_, err := pods.Get(ctx, "one", metav1.GetOptions{})
	return err
}

func answer(w http.ResponseWriter, r *http.Request, code int) {
	if r.Header.Get("Authorization") != "Bearer secret" {
		code = http.StatusForbidden
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = fmt.Fprint(w, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"one"}}`)
}

// checkHanging checks that many requests end with their context while the plugin hangs, and that one
// call of it is left behind.
func checkHanging(t *testing.T, p *plugin, pods corev1client.PodInterface) {
	t.Helper()
	called, goroutines := p.calls(), runtime.NumGoroutine()
	p.hang()
	var requests sync.WaitGroup
	for range 50 {
		requests.Go(func() {
			err := get(t, pods, 2*slowPlugin)
			if hangs, ok := errors.AsType[*HangsError](err); !ok || hangs.Error() != "the credential plugin plugin of --kubeconfig does not answer" {
				t.Errorf("got %v", err)
			}
			if got := ReasonOf(err); got != Unavailable {
				t.Errorf("got reason %d", got)
			}
		})
	}
	requests.Wait()
	if got := p.calls() - called; got != 1 {
		t.Errorf("the plugin was called %d times", got)
	}
	// The request, the process, and its pipes.
	suite.Eventually(t, suite.Patience, "one call is left behind", func() error {
		if got := runtime.NumGoroutine() - goroutines; got > 5 {
			return fmt.Errorf("%d goroutines more", got)
		}
		return nil
	})
	p.resume()
	suite.Eventually(t, suite.Patience, "the plugin answers again", func() error { return get(t, pods, suite.Patience) })
}

func TestHangingPlugin(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(w, r, http.StatusOK) }))
	defer server.Close()
	p := newPlugin(t, false)
	pods := p.pods(server)
	if err := get(t, pods, suite.Patience); err != nil {
		t.Fatal(err)
	}
	checkHanging(t, p, pods)
}

// A server that refuses the credentials makes client-go call the plugin after the response.
func TestHangingPluginAfterRefusal(t *testing.T) {
	var refuses atomic.Bool
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refuses.Load() {
			answer(w, r, http.StatusUnauthorized)
			return
		}
		answer(w, r, http.StatusOK)
	}))
	defer server.Close()
	p := newPlugin(t, true)
	pods := p.pods(server)
	if err := get(t, pods, suite.Patience); err != nil {
		t.Fatal(err)
	}
	refuses.Store(true)
	if err := get(t, pods, suite.Patience); !apierrors.IsUnauthorized(err) {
		t.Fatalf("got %v", err)
	}
	p.hang()
	if err := get(t, pods, 300*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	refuses.Store(false)
	p.resume()
	suite.Eventually(t, suite.Patience, "the plugin answers again", func() error { return get(t, pods, suite.Patience) })
}

// A request that is cancelled ends at once, also one that the server does not answer.
func TestCancelledRequest(t *testing.T) {
	arrived, over := make(chan struct{}), make(chan struct{})
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(arrived)
		<-over
	}))
	defer server.Close()
	defer close(over)
	pods := newPlugin(t, true).pods(server)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	if _, err := pods.Get(ctx, "one", metav1.GetOptions{}); !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "plugin") {
		t.Errorf("got %v", err)
	}
}
