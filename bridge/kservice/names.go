package kservice

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/appbridge/appbridge/subjects"
)

const (
	// maxNameBytes is what a DNS label may be long.
	maxNameBytes = 63
	// cutNameBytes leaves room for a hyphen and the digits of the hash.
	cutNameBytes  = 54
	nameHashBytes = 4
)

// Name is the name of the Knative Service of an app: name-project-domain in
// lower case, cut and completed by a hash of the id as written when it is over
// 63 bytes. Different ids may have the same name. The cut may split a character,
// so the name need not be UTF-8, nor one that Kubernetes accepts.
func Name(id subjects.AppID) string {
	raw := strings.ToLower(id.Name + "-" + id.Project + "-" + id.Domain)
	if len(raw) <= maxNameBytes {
		return raw
	}
	sum := sha256.Sum256([]byte(id.String()))
	return raw[:cutNameBytes] + "-" + hex.EncodeToString(sum[:nameHashBytes])
}
