package subjects

import (
	"cmp"
	"fmt"
	"strconv"
)

// Code is the reason for the error of a request: a decimal number in the header
// Nats-Service-Error-Code. The text for people is in Nats-Service-Error and in the body. The zero
// value is not a code.
type Code int

// The codes of the log service and of the app operations.
const (
	CodeInvalidArgument    Code = 400 // the request is invalid. It will fail again.
	CodePermissionDenied   Code = 403 // an option does not allow the request
	CodeNotFound           Code = 404 // there is no such app, replica or container
	CodeFailedPrecondition Code = 409 // the state of the app does not allow the request
	CodeResourceExhausted  Code = 429 // a limit of the service is reached. Try again later.
	CodeInternal           Code = 500 // a fault of the service
	CodeUnavailable        Code = 502 // Kubernetes did not answer, or the service is shutting down. Try again later.
	CodeDeadlineExceeded   Code = 504 // the request took too long
)

var codeNames = map[Code]string{
	CodeInvalidArgument:    "InvalidArgument",
	CodePermissionDenied:   "PermissionDenied",
	CodeNotFound:           "NotFound",
	CodeFailedPrecondition: "FailedPrecondition",
	CodeResourceExhausted:  "ResourceExhausted",
	CodeInternal:           "Internal",
	CodeUnavailable:        "Unavailable",
	CodeDeadlineExceeded:   "DeadlineExceeded",
}

// String is the name of the code, "NotFound" for 404, or "Code(418)" for a number that is none.
func (c Code) String() string {
	return cmp.Or(codeNames[c], "Code("+strconv.Itoa(int(c))+")")
}

// HeaderValue is the code as it stands in the header, "404" for CodeNotFound.
func (c Code) HeaderValue() string { return strconv.Itoa(int(c)) }

// ParseCode is the inverse of Code.HeaderValue for the codes above; anything
// else gives an error that wraps ErrMalformed.
func ParseCode(s string) (Code, error) {
	for c := range codeNames {
		if c.HeaderValue() == s {
			return c, nil
		}
	}
	return 0, fmt.Errorf("parse service error code %s: %w", quote(s), ErrMalformed)
}
