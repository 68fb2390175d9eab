package kservice

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

const (
	// defaultAccount is the service account of a pod that names none.
	defaultAccount = "default"

	runAsField = "app.spec.securityContext.runAs.k8sServiceAccount"

	noOption = "no option allows it"
)

// Fence bounds the objects that an app may refer to. The zero value allows no Secret, no ConfigMap,
// no volume claim, and no service account except "default" and the configured default.
type Fence struct {
	// ServiceAccounts are further service accounts that an app may run as.
	ServiceAccounts []string
	// OwnServiceAccount is the service account of this program. No app may run as it. Empty:
	// this program has none in the namespaces of apps.
	OwnServiceAccount string
	// References are patterns for what an app may refer to; see [CheckReferences].
	References []Reference
}

// fenced checks one app against the fence, and collects the denials.
type fenced struct {
	id     subjects.AppID
	cfg    DeployConfig
	denied *Problems
	// accountField is the field of the app that gives its pods the service account.
	accountField string
}

func (f *fenced) deny(field, value, reason string) {
	f.denied.Add(field, Quote(value)+": "+reason)
}

// account checks the name of a service account.
func (f *fenced) account(field, name string) {
	switch fence := f.cfg.Fence; {
	case name == fence.OwnServiceAccount:
		f.deny(field, name, "the service account of appbridge itself, "+noOption)
	case name == defaultAccount, name == f.cfg.DefaultServiceAccount, slices.Contains(fence.ServiceAccounts, name):
	default:
		f.deny(field, name, "not in --allowed-service-accounts")
	}
}

// reference checks the name of an object of a kind.
func (f *fenced) reference(field, kind, name string) {
	for _, r := range f.cfg.Fence.References {
		if r.matches(kind, name, f.id) {
			return
		}
	}
	f.deny(field, name, fmt.Sprintf("no pattern of --allowed-references matches this %s", kind))
}

// group checks a secret of a group. Flyte's webhook puts the parts of it into paths and into the
// templates of Vault, where "../" or "}}" would lead out of the group.
func (f *fenced) group(field string, secret *appv1.Secret) {
	f.reference(field+".group", kindSecret, secret.GetGroup())
	if strings.ContainsAny(secret.GetGroup(), "\"`{}\\") {
		f.deny(field+".group", secret.GetGroup(), "quotes, braces and backslashes reach beyond the group, "+noOption)
	}
	for _, part := range [][2]string{{".groupVersion", secret.GetGroupVersion()}, {".key", secret.GetKey()}} {
		if name, text := part[0], part[1]; text != "" && len(validation.IsConfigMapKey(text)) > 0 {
			f.deny(field+name, text, "not only letters, digits, -, _ and ., "+noOption)
		}
	}
}
