package rbac_test

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// Placeholders of a rendered chart. Each case replaces them with names of its own.
const (
	placeRelease = "placeholder-release"
	placeOwn     = "placeholder-own" // the namespace of the release
	placeApps    = "placeholder-apps"
	placeMore    = "placeholder-more" // another namespace of apps
)

// chart is the folder of the chart, seen from the root of the repository.
const chart = "deploy/chart/appbridge"

// render returns the chart's manifests, with the values of files and with some values set.
func render(t *testing.T, values []string, files ...string) string {
	t.Helper()
	root := filepath.Join("..", "..")
	args := []string{"template", placeRelease, chart, "--namespace", placeOwn}
	for _, file := range files {
		args = append(args, "--values", file)
	}
	for _, value := range values {
		args = append(args, "--set", value)
	}
	cmd := exec.CommandContext(t.Context(), suite.Tool(t, root, "helm"), args...)
	cmd.Dir = root
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		t.Fatalf("%s: %v\n%s", cmd, err, exit.Stderr)
	} else if err != nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	return string(out)
}

// objects are the service account, nil without one, the roles and the bindings of rendered
// manifests.
func objects(t *testing.T, manifests string) (
	account *corev1.ServiceAccount, roles, bindings []client.Object,
) {
	t.Helper()
	documents := yaml.NewYAMLReader(bufioReader(manifests))
	for {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		var kind struct{ Kind string }
		if err := yaml.Unmarshal(text, &kind); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		var object client.Object
		switch kind.Kind {
		case "ServiceAccount":
			if account != nil {
				t.Fatalf("the chart has two service accounts, %s and the one of\n%s", account.Name, text)
			}
			account = &corev1.ServiceAccount{}
			object = account
		case "Role":
			object = &rbacv1.Role{}
			roles = append(roles, object)
		case "ClusterRole":
			object = &rbacv1.ClusterRole{}
			roles = append(roles, object)
		case "RoleBinding":
			object = &rbacv1.RoleBinding{}
			bindings = append(bindings, object)
		case "ClusterRoleBinding":
			object = &rbacv1.ClusterRoleBinding{}
			bindings = append(bindings, object)
		default:
			continue
		}
		if err := yaml.UnmarshalStrict(text, object); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
	}
	return account, roles, bindings
}

func bufioReader(text string) *bufio.Reader { return bufio.NewReader(strings.NewReader(text)) }

// right is what one verb of one rule allows.
type right struct {
	verb, resource string // with the API group: services.serving.knative.dev
	name           string // of the object; empty: all
	namespace      string // of the Role; empty: a ClusterRole's
}

func (r right) String() string {
	text := r.verb + " " + r.resource
	if r.name != "" {
		text += "/" + r.name
	}
	if r.namespace != "" {
		text += " in " + r.namespace
	}
	return text
}

// rule is the rule that allows just this.
func (r right) rule() rbacv1.PolicyRule {
	resource, group, _ := strings.Cut(r.resource, ".")
	rule := rbacv1.PolicyRule{
		Verbs: []string{r.verb}, APIGroups: []string{group}, Resources: []string{resource},
	}
	if r.name != "" {
		rule.ResourceNames = []string{r.name}
	}
	return rule
}

// rulesOf are the rules of a Role or ClusterRole, which can be changed.
func rulesOf(role client.Object) *[]rbacv1.PolicyRule {
	switch r := role.(type) {
	case *rbacv1.Role:
		return &r.Rules
	case *rbacv1.ClusterRole:
		return &r.Rules
	}
	panic(fmt.Sprintf("no role: %T", role))
}

// single are the rights of a role.
func single(t *testing.T, role client.Object) (rights []right) {
	t.Helper()
	if r, ok := role.(*rbacv1.ClusterRole); ok && r.AggregationRule != nil {
		t.Fatalf("ClusterRole %s takes rules of others", r.Name)
	}
	for _, rule := range *rulesOf(role) {
		if len(rule.NonResourceURLs) > 0 {
			t.Fatalf("%s: the rule for %q is none of a resource", role.GetName(), rule.NonResourceURLs)
		}
		names := rule.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				if group != "" {
					resource += "." + group
				}
				for _, verb := range rule.Verbs {
					for _, name := range names {
						rights = append(rights, right{verb, resource, name, role.GetNamespace()})
					}
				}
			}
		}
	}
	return rights
}

// granted are the rights of all roles, each once.
func granted(t *testing.T, roles []client.Object) []right {
	t.Helper()
	var all []right
	for _, role := range roles {
		all = append(all, single(t, role)...)
	}
	slices.SortFunc(all, func(a, b right) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.resource, b.resource),
			cmp.Compare(a.verb, b.verb), cmp.Compare(a.name, b.name))
	})
	return slices.Compact(all)
}

// remove takes a right from every role: rights add up, and two roles may give the same one.
func remove(t *testing.T, roles []client.Object, lacks right) {
	t.Helper()
	removed := 0
	for _, role := range roles {
		var kept []rbacv1.PolicyRule
		for _, r := range single(t, role) {
			if r == lacks {
				removed++
				continue
			}
			kept = append(kept, r.rule())
		}
		*rulesOf(role) = kept
	}
	if removed == 0 {
		t.Fatalf("no role has the right %s", lacks)
	}
}
