package kservice

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/appbridge/appbridge/subjects"
)

const (
	// maxNameBytes is the maximum length of a DNS label.
	maxNameBytes = 63
	// cutNameBytes leaves room for a hyphen and the digits of the hash.
	cutNameBytes  = 54
	nameHashBytes = 4
)

// Name is the name of the Knative Service of an app: name-project-domain in lower case. A name of
// more than 63 bytes is cut and gets a hash of the id. Different ids may have the same name. The
// cut may split a character, so the name may be invalid UTF-8, and invalid in Kubernetes.
func Name(id subjects.AppID) string {
	raw := strings.ToLower(id.Name + "-" + id.Project + "-" + id.Domain)
	if len(raw) <= maxNameBytes {
		return raw
	}
	sum := sha256.Sum256([]byte(id.String()))
	return raw[:cutNameBytes] + "-" + hex.EncodeToString(sum[:nameHashBytes])
}
