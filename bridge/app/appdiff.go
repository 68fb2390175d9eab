package app

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/subjects"
)

// WeakerEncoding is the encoding in which two Apps can be compared: JSON keeps no unknown fields.
func WeakerEncoding(a, b string) string {
	if a == subjects.ContentTypeJSON || b == subjects.ContentTypeJSON {
		return subjects.ContentTypeJSON
	}
	return subjects.ContentTypeProtobuf
}

// Differences names the parts in which two Apps of the same version differ.
func Differences(encoded, other Encoded) string {
	a, errA := encoded.App()
	b, errB := other.App()
	if err := errors.Join(errA, errB); err != nil {
		return err.Error()
	}
	var parts []string
	note := func(part string, same bool) {
		if !same {
			parts = append(parts, part)
		}
	}
	x, y := a.GetStatus(), b.GetStatus()
	if m, n := x.GetCurrentReplicas(), y.GetCurrentReplicas(); m != n {
		parts = append(parts, fmt.Sprintf("replicas (%d, %d)", m, n))
	}
	if m, n := x.GetIngress().GetPublicUrl(), y.GetIngress().GetPublicUrl(); m != n {
		parts = append(parts, fmt.Sprintf("URL (%q, %q)", m, n))
	}
	note("metadata", proto.Equal(a.GetMetadata(), b.GetMetadata()))
	note("spec", proto.Equal(a.GetSpec(), b.GetSpec()))
	if x, y = proto.CloneOf(x), proto.CloneOf(y); x != nil && y != nil {
		x.CurrentReplicas, y.CurrentReplicas, x.Ingress, y.Ingress = 0, 0, nil, nil
		note("status", proto.Equal(x, y))
	} else {
		note("status", x == nil && y == nil)
	}
	if len(parts) == 0 {
		return "fields that are not known here"
	}
	return strings.Join(parts, ", ")
}
