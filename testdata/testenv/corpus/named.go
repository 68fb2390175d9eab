package corpus

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/appbridge/appbridge/bridge/kservice"
)

// Named is what the JSON form of an app names beyond itself: service accounts, and references
// as kind/name. It reads the text as it is, without the types of Kubernetes, so that it agrees
// with package kservice only where both are right.
type Named struct {
	Accounts   []string
	References []string
}

// referenceKinds are the fields under which an object has the name of another one.
var referenceKinds = map[string]string{
	"secretKeyRef": "secret", "secretRef": "secret", "secret": "secret", "imagePullSecrets": "secret",
	"configMapKeyRef": "configmap", "configMapRef": "configmap", "configMap": "configmap",
	"persistentVolumeClaim": "persistentvolumeclaim",
}

// Names reads what the app of a step names, nothing when the step has none.
func (s DeployStep) Names(tb testing.TB) Named {
	tb.Helper()
	var named Named
	if len(s.RawApp) > 0 {
		var app any
		if err := json.Unmarshal(s.RawApp, &app); err != nil {
			tb.Fatalf("read the app: %v", err)
		}
		named.read("", app)
	}
	return named
}

func (n *Named) read(under string, value any) {
	switch v := value.(type) {
	case []any:
		for _, item := range v {
			n.read(under, item)
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			text, _ := v[key].(string)
			switch kind := referenceKinds[under]; {
			case text == "":
				n.read(key, v[key])
			case slices.Contains([]string{"k8sServiceAccount", "serviceAccountName", "serviceAccount"}, key):
				n.Accounts = append(n.Accounts, text)
			case under == "secrets" && key == "group":
				n.References = append(n.References, "secret/"+text)
			case kind != "" && slices.Contains([]string{"name", "secretName", "claimName"}, key):
				n.References = append(n.References, kind+"/"+text)
			}
		}
	}
}

// None reports whether the app names nothing that needs an option. An app may name the default
// service accounts.
func (n Named) None(cfg kservice.DeployConfig) bool {
	return len(n.References) == 0 && !slices.ContainsFunc(n.Accounts, func(account string) bool {
		return account != "default" && account != cfg.DefaultServiceAccount
	})
}

// Policy allows what the app names, and nothing else.
func (n Named) Policy(tb testing.TB) kservice.Policy {
	tb.Helper()
	policy := kservice.Policy{ServiceAccounts: n.Accounts}
	for _, text := range n.References {
		reference, err := kservice.ParseReference(text)
		if err != nil {
			tb.Fatal(err)
		}
		policy.References = append(policy.References, reference)
	}
	return policy
}

// Names reads what the apps of all steps name.
func (c DeployCase) Names(tb testing.TB) Named {
	tb.Helper()
	var all Named
	for _, step := range c.Steps {
		named := step.Names(tb)
		all.Accounts = append(all.Accounts, named.Accounts...)
		all.References = append(all.References, named.References...)
	}
	return all
}
