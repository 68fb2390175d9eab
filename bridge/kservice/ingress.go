package kservice

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// Config configures the public addresses of apps. With the zero value they have none.
type Config struct {
	// BaseDomain follows the name of an app in its host name. Empty: apps have no public address.
	BaseDomain string
	// Scheme of the public address, "https" when empty.
	Scheme string
	// Port of the public address. 0: the address has no port.
	Port int32
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
