package kservice

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
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

// Config configures the public addresses of apps. With the zero value they have none.
type Config struct {
	BaseDomain string // follows the name of an app in its host name; empty: no public address
	Scheme     string // of the public address, "https" when empty
	Port       int32  // of the public address, 0 for none
}

// PublicURL is the address of an app, from its id and not from its status:
// scheme://name.base-domain[:port]. Empty without a base domain.
func PublicURL(id subjects.AppID, cfg Config) string {
	if cfg.BaseDomain == "" {
		return ""
	}
	// ToLower also replaces invalid UTF-8 at the end of a cut name.
	url := cmp.Or(cfg.Scheme, "https") + "://" + strings.ToLower(Name(id)+"."+cfg.BaseDomain)
	if cfg.Port != 0 {
		url += ":" + strconv.Itoa(int(cfg.Port))
	}
	return url
}

func ingress(id subjects.AppID, cfg Config) *appv1.Ingress {
	url := PublicURL(id, cfg)
	if url == "" {
		return nil
	}
	return &appv1.Ingress{PublicUrl: url}
}
