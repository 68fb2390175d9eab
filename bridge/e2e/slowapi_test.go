package e2e_test

import (
	"net/http"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// A bridge starts also where each answer of the API server takes two seconds.
func TestStartWithSlowAPIServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	kube := rest.CopyConfig(w.Config)
	kube.QPS = -1
	kube.Wrap(func(rt http.RoundTripper) http.RoundTripper { return slow{rt, 2 * time.Second} })
	r := w.launch(w.elected("me"), kube)
	r.waitReady()
	w.create(w.app("one"))
	w.waitFor(0, "created one")
}
