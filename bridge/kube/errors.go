package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// Reason is the meaning of an error of a request to Kubernetes.
type Reason int

// The reasons. An error has one of them.
const (
	Other        Reason = iota
	Unavailable         // there was no response, or Kubernetes cannot serve the request for now
	Unauthorized        // the credentials are not accepted
	Forbidden           // RBAC, admission or a kubelet refuses the request
	Missing             // there is no such object, or no such resource
	Conflict            // the object exists, or was changed by another client
	Invalid             // the request itself is refused
)

// ReasonOf returns the reason of an error.
func ReasonOf(err error) Reason {
	switch {
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		return Invalid
	case apierrors.IsUnauthorized(err):
		return Unauthorized
	case apierrors.IsForbidden(err):
		return Forbidden
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return Conflict
	case apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err):
		return Missing
	case unavailable(err):
		return Unavailable
	}
	return Other
}

// Errors of client-go that have no type.
const (
	// rateLimited is in the error of a request that the client's own rate limit would delay beyond
	// the deadline.
	rateLimited = "would exceed context deadline"
	// brokenBody is in the error of a response that breaks off. What it wraps depends on the protocol.
	brokenBody = "error when reading response body"
)

func unavailable(err error) bool {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		code := status.Status().Code
		return code >= http.StatusInternalServerError || code == http.StatusTooManyRequests
	}
	// The connection may break before the response, or in the middle of it.
	return errors.As(err, new(*url.Error)) || errors.As(err, new(*net.OpError)) || utilnet.IsProbableEOF(err) ||
		utilnet.IsHTTP2ConnectionLost(err) || errors.Is(err, context.DeadlineExceeded) ||
		err != nil && (strings.Contains(err.Error(), rateLimited) || strings.Contains(err.Error(), brokenBody))
}

// LacksRight reports whether the API server refused a request because this program lacks the right to
// a verb. Admission refuses objects with the same status, such as one beyond a quota. A kubelet does
// so when it refuses a log to the API server.
func LacksRight(err error, verb string) bool {
	return ReasonOf(err) == Forbidden && strings.Contains(err.Error(), " cannot "+verb+" resource ")
}

// Responded reports whether an error is a response of the API server.
func Responded(err error) bool {
	return errors.As(err, new(apierrors.APIStatus))
}

// RetryNow reports whether a list or a watch failed for want of a running API server. Of other
// errors, such as 429 and 504, client-go's reflector decides how and when it continues.
func RetryNow(err error) bool {
	if apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		return false
	}
	return !Responded(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsServerTimeout(err) || apierrors.IsInternalError(err)
}

// Terminal reports whether an error lasts until an operator fixes it. An API server that has just
// started returns some of these errors for a moment.
func Terminal(err error) bool {
	reason := ReasonOf(err)
	return reason == Unauthorized || reason == Forbidden || apierrors.IsNotFound(err) ||
		meta.IsNoMatchError(err) || errors.As(err, new(*DeniedError))
}

// DeniedError names what Kubernetes does not allow.
type DeniedError struct{ Text string }

func (e *DeniedError) Error() string { return e.Text }

// Right is what a request takes to be allowed: a verb on a resource in a namespace, or in all.
type Right struct{ Verb, Resource, Namespace string }

func (r Right) String() string {
	return r.Verb + " on " + r.Resource + " in " + NamespaceText(r.Namespace)
}

// NamespaceText is a namespace in a message; empty stands for all.
func NamespaceText(namespace string) string {
	if namespace == metav1.NamespaceAll {
		return "all namespaces"
	}
	return "namespace " + namespace
}

// Lacks is the error of a bridge without a right that it needs.
func Lacks(right string) error {
	return &DeniedError{fmt.Sprintf("kubernetes forbids what appbridge needs, %s: grant it by RBAC", right)}
}

// Explain wraps an error of a request of the bridge, which takes a right.
func Explain(err error, right string) error {
	switch ReasonOf(err) {
	case Unauthorized:
		return fmt.Errorf("kubernetes does not accept the credentials of --kubeconfig: %w", err)
	case Forbidden:
		return Lacks(right)
	default:
		return fmt.Errorf("kubernetes is not reachable: %w", err)
	}
}

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
