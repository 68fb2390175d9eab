package pods_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/logsvc/pods"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// follow reads an app of one replica, and one more that comes, and is what does
// not work within that time.
func (a *app) follow(t *testing.T, k *pods.Source, wait time.Duration) error {
	t.Helper()
	q := all(a)
	q.Follow = logsvc.FollowAlways
	found, err := k.Open(t.Context(), q)
	if err != nil {
		return err
	}
	found.Close()
	r := read(t, k, q)
	reads := func(replica string) error {
		deadline := time.After(wait)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			r.mu.Lock()
			n := len(r.lines[replica])
			r.mu.Unlock()
			if n > 0 {
				return nil
			}
			select {
			case <-tick.C:
			case <-deadline:
				return fmt.Errorf("nothing comes of %s", replica)
			case err := <-r.done:
				r.done <- err
				return err
			}
		}
	}
	if err := reads(found.Replicas()[0]); err != nil {
		return err
	}
	late := a.run("00002")
	late.Write("late")
	err = reads(late.Name())
	return errors.Join(err, late.Delete(t.Context()))
}

// The Role of docs/logs.md is enough to read and to follow, and no right in it is
// one too many.
func TestDocumentedRole(t *testing.T) {
	role := &rbacv1.Role{}
	if err := yaml.Unmarshal([]byte(suite.Block(t, filepath.Join("..", "..", "docs", "logs.md"), "apiVersion: rbac.authorization.k8s.io/v1")), role); err != nil {
		t.Fatal(err)
	}
	p := newPlace(t)
	a := p.newApp("storefront")
	a.run("00001").Write("one")
	// users are those who lack one right each.
	users := map[string]*pods.Source{}
	user := func(name string, rules []rbacv1.PolicyRule) *pods.Source {
		t.Helper()
		meta := metav1.ObjectMeta{Namespace: p.namespace, Name: fmt.Sprintf("%s-%s", p.namespace, strings.NewReplacer(" ", "-", "/", "-").Replace(name))}
		subject := rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: meta.Name}
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name}
		config, err := p.User(meta.Name)
		if err := errors.Join(err, p.Client.Create(t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: rules}),
			p.Client.Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: []rbacv1.Subject{subject}})); err != nil {
			t.Fatal(err)
		}
		users[name] = p.kubernetes(func(c *pods.Config) { c.REST = config })
		return users[name]
	}
	for i, rule := range role.Rules {
		for j, verb := range rule.Verbs {
			rules := role.DeepCopy().Rules
			if rules[i].Verbs = slices.Delete(rules[i].Verbs, j, j+1); len(rules[i].Verbs) == 0 {
				rules = slices.Delete(rules, i, i+1)
			}
			if verb != "watch" { // without it changes are noticed as well, later
				user(verb+" "+rule.Resources[0], rules)
			}
		}
	}
	lacking := users
	users = map[string]*pods.Source{}
	// The API server learns of a right some time after it was given; when it
	// knows of the last ones it knows of all before.
	everything := user("everything", role.Rules)
	soon(t, "the Role as it is documented", func() error { return a.follow(t, everything, 10*time.Second) })
	for right, k := range lacking {
		t.Run("not "+right, func(t *testing.T) {
			verb, resource, _ := strings.Cut(right, " ")
			if resource == "services" {
				resource += ".serving.knative.dev"
			}
			want, wait := fmt.Sprintf("lacks the right %s on %s in namespace %s", verb, resource, p.namespace), suite.Patience
			if right == "get services" {
				want, wait = "nothing comes of ", 3*time.Second // a new replica, whose app could not be looked at again
			}
			if err := a.follow(t, k, wait); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
	if got, want := len(lacking), 5; got != want {
		t.Errorf("%d rights are documented, want %d", got, want)
	}
}
