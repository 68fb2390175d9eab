package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

func TestReasonOf(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	status := func(code int) error { return apierrors.NewGenericServerResponse(code, "get", pods, "x", "", 0, true) }
	soon, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	limiter := flowcontrol.NewTokenBucketRateLimiter(1e-6, 1)
	limiter.Accept()
	for _, test := range []struct {
		name               string
		err                error
		want               Reason
		terminal, retryNow bool
	}{
		{"nothing listens", &url.Error{Op: "Get", URL: "https://k", Err: errors.New("connection refused")}, Unavailable, false, true},
		{"the connection ends", io.ErrUnexpectedEOF, Unavailable, false, true},
		{"a response breaks off", brokenResponse(t), Unavailable, false, true},
		{"out of time", fmt.Errorf("get: %w", context.DeadlineExceeded), Unavailable, false, true},
		{"delayed by the client's rate limit", limiter.Wait(soon), Unavailable, false, true},
		{"none", nil, Other, false, true},
		{"not decoded", errors.New("invalid character"), Other, false, true},
		{"503", apierrors.NewServiceUnavailable("shutting down"), Unavailable, false, true},
		{"500", apierrors.NewInternalError(errors.New("etcd")), Unavailable, false, true},
		{"502", status(http.StatusBadGateway), Unavailable, false, true},
		{"504", apierrors.NewTimeoutError("slow", 1), Unavailable, false, false},
		{"429", apierrors.NewTooManyRequests("slow down", 1), Unavailable, false, false},
		{"401", apierrors.NewUnauthorized("no"), Unauthorized, true, false},
		{"403", fmt.Errorf("list: %w", apierrors.NewForbidden(pods, "x", errors.New("no"))), Forbidden, true, false},
		{"404", apierrors.NewNotFound(pods, "x"), Missing, true, false},
		{"405", apierrors.NewMethodNotSupported(pods, "list"), Missing, false, false},
		{"409", apierrors.NewConflict(pods, "x", errors.New("changed")), Conflict, false, false},
		{"exists", apierrors.NewAlreadyExists(pods, "x"), Conflict, false, false},
		{"400", apierrors.NewBadRequest("no"), Invalid, false, false},
		{"413", apierrors.NewRequestEntityTooLargeError("no"), Invalid, false, false},
		{"422", apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "x", nil), Invalid, false, false},
		{"410", apierrors.NewResourceExpired("too old"), Other, false, false},
		{"a missing right", Explain(apierrors.NewForbidden(pods, "x", nil), "get on pods"), Other, true, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := ReasonOf(test.err); got != test.want {
				t.Errorf("got reason %d, want %d", got, test.want)
			}
			if got := Terminal(test.err); got != test.terminal {
				t.Errorf("got terminal %t, want %t", got, test.terminal)
			}
			if got := RetryNow(test.err); got != test.retryNow {
				t.Errorf("got retry %t, want %t", got, test.retryNow)
			}
		})
	}
}

// brokenResponse is client-go's error of a response that ends in the middle, as at the kill of an API
// server.
func brokenResponse(t *testing.T) error {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `{"kind":`)
	}))
	defer server.Close()
	kubernetes, err := corev1client.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = kubernetes.Pods("flyte").Get(t.Context(), "x", metav1.GetOptions{}); err == nil {
		t.Fatal("half a response is no error")
	}
	return err
}

func TestLacksRight(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	rbac := errors.New(`User "reader" cannot get resource "pods/log" in API group "" in the namespace "flyte"`)
	for _, test := range []struct {
		name string
		err  error
		want bool
	}{
		{"RBAC", fmt.Errorf("open the log: %w", apierrors.NewForbidden(pods, "x", rbac)), true},
		{"RBAC, another verb", apierrors.NewForbidden(pods, "x", errors.New(`User "reader" cannot list resource "pods"`)), false},
		{"admission", apierrors.NewForbidden(pods, "x", errors.New("exceeded quota: pods")), false},
		{"a kubelet", apierrors.NewGenericServerResponse(http.StatusForbidden, "get", pods, "x", "Forbidden (user=kube-apiserver, verb=get, resource=nodes, subresource=proxy)", 0, true), false},
		{"another status", rbac, false},
		{"none", nil, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := LacksRight(test.err, "get"); got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
		})
	}
}
