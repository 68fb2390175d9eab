package appsvc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A connection may break before the answer or in the middle of it: both are tried again.
func TestKubernetesIsAway(t *testing.T) {
	t.Parallel()
	reset := &net.OpError{Op: "read", Err: syscall.ECONNRESET}
	status := func(code int32) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code}}
	}
	for _, test := range []struct {
		name string
		err  error
		want bool
	}{
		{"before the answer", &url.Error{Op: "Get", URL: "https://kubernetes", Err: reset}, true},
		{"within the answer", fmt.Errorf("read the answer: %w", reset), true},
		{"an answer that is cut off", io.ErrUnexpectedEOF, true},
		{"no answer in time", context.DeadlineExceeded, true},
		{"an API server that is overloaded", status(http.StatusTooManyRequests), true},
		{"an API server that fails", status(http.StatusInternalServerError), true},
		{"a refusal", status(http.StatusForbidden), false},
		{"an error of our own", errors.New("no object"), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := (&kubeError{err: test.err}).unavailable(); got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
		})
	}
}
