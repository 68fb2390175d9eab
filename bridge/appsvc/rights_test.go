package appsvc_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/bridge/appsvc"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// pod makes a pod of an app's first Revision, which nobody runs.
func (s *site) pod(id subjects.AppID, name string) error {
	labels := map[string]string{"serving.knative.dev/service": kservice.Name(id), "serving.knative.dev/revision": kservice.Name(id) + "-00001"}
	return s.Client.Create(s.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name, Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}},
	})
}

// ready makes an app that is there serve, by a Revision of its own.
func (s *site) ready(id subjects.AppID) error {
	svc := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: kservice.Name(id)}}
	_, err := s.Ready(s.t.Context(), svc, "", 1)
	return err
}

// writes does each thing that changes apps, as often as it takes, and is what
// does not work. Each way takes objects of its own: another may have done a part.
func (s *site) writes(nc *nats.Conn, name string) map[string]error {
	failed := map[string]error{}
	try := func(what string, op subjects.APIOp, id subjects.AppID, body proto.Message, want subjects.Outcome) {
		a, err := s.well(nc, op, id, body)
		if err == nil && a.outcome != want {
			err = fmt.Errorf("%s %s: got %s, want %s", op, id, a.outcome, want)
		}
		failed[what] = err
	}
	// there is an app that serves, made by an administrator.
	there := func(suffix string) subjects.AppID {
		s.t.Helper()
		id := s.id(name + "-" + suffix)
		if _, err := s.Create(s.t.Context(), s.app(id, 1)); err != nil {
			s.t.Fatal(err)
		}
		mustDo(s.t, s.ready(id), s.pod(id, id.Name+"-pod"))
		return id
	}
	id := s.id(name + "-new")
	try("deploy a new app", subjects.APIDeploy, id, wanted(s.app(id, 1)), subjects.OutcomeCreated)
	id = there("changed")
	try("deploy it again", subjects.APIDeploy, id, wanted(s.app(id, 2)), subjects.OutcomeUpdated)
	id = there("replica")
	try("delete a replica", subjects.APIDeleteReplica, id, &appv1.ReplicaIdentifier{Name: id.Name + "-pod"}, subjects.OutcomeDeleted)
	id = there("stopped")
	try("stop", subjects.APIStop, id, nil, subjects.OutcomeStopped)
	id = there("deleted")
	try("delete", subjects.APIDelete, id, nil, subjects.OutcomeDeleted)
	return failed
}

func joined(failed map[string]error) error {
	var errs []error
	for what, err := range failed {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	return errors.Join(errs...)
}

// With the rights of the chart's defaults all but writes works, with those of config.enable-writes
// these, too.
func TestChart(t *testing.T) {
	t.Parallel()
	s := newSite(t, cluster.Get(t), testenv.DefaultNamespace, "")
	s.install(chartDefault)
	account := s.serviceAccount("appbridge")
	s.replica(siteConfig{name: "one", kube: account, bridge: func(c *bridge.Config) { c.LeaseNamespace = chartNamespace }})
	nc := s.dial()

	id := s.id("rights")
	if _, err := s.Create(t.Context(), s.app(id, 1)); err != nil {
		t.Fatal(err)
	}
	mustDo(t, s.pod(id, "rights-pod"))
	events, err := nc.SubscribeSync(s.names.Events())
	if err != nil {
		t.Fatal(err)
	}
	mustDo(t, nc.Flush(), s.ready(id))
	if msg, err := events.NextMsg(patience); err != nil {
		t.Fatalf("no event: %v", err)
	} else if got, _, err := s.names.ParseEvent(msg.Subject); err != nil || got != id {
		t.Errorf("the event is of %v, %v, want %v", got, err, id)
	}
	soon(t, "the replicas", func() error {
		a, err := s.well(nc, subjects.APIReplicas, id, nil)
		if err != nil {
			return err
		}
		list := &appv1.ReplicaList{}
		if err := proto.Unmarshal(a.body, list); err != nil {
			return err
		}
		if n := len(list.GetItems()); n != 1 || list.GetItems()[0].GetMetadata().GetId().GetName() != "rights-pod" {
			return fmt.Errorf("got %v", list)
		}
		return nil
	})
	for _, op := range []subjects.APIOp{subjects.APIGet, subjects.APIIngress} {
		if _, err := s.well(nc, op, id, nil); err != nil {
			t.Error(err)
		}
	}
	list, err := s.names.APIList("", "")
	if err != nil {
		t.Fatal(err)
	}
	soon(t, "the list", func() error {
		a, err := s.ask(t.Context(), nc, list, nil)
		if err != nil || a.err() != nil {
			return errors.Join(err, a.err())
		}
		page := &appv1.ListResponse{}
		if err := proto.Unmarshal(a.body, page); err != nil {
			return err
		}
		if n := len(page.GetApps()); n != 1 {
			return fmt.Errorf("%d apps", n)
		}
		return nil
	})

	// get services comes with logs, so a write gets as far as what it changes.
	lacks := map[string]string{
		"deploy a new app": "create on services.serving.knative.dev",
		"deploy it again":  "update on services.serving.knative.dev",
		"stop":             "patch on services.serving.knative.dev",
		"delete":           "delete on services.serving.knative.dev",
		"delete a replica": "delete on pods",
	}
	for what, err := range s.writes(nc, "base") {
		want := fmt.Sprintf(": 500 Internal: kubernetes: appbridge lacks the right %s in namespace flyte", lacks[what])
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", what, err, want)
		}
	}
	s.install(chartWrites)
	n := 0
	soon(t, "the writes", func() error {
		n++
		return joined(s.writes(nc, "overlay-"+strconv.Itoa(n)))
	})
}

// granted are the rules of a Role or ClusterRole of a variant of the chart.
func granted(t *testing.T, variant, name string) []rbacv1.PolicyRule {
	t.Helper()
	for part := range strings.SplitSeq(rendered(t, variant), "\n---\n") {
		role := &rbacv1.Role{}
		mustDo(t, yaml.UnmarshalStrict([]byte(part), &map[string]any{}), yaml.Unmarshal([]byte(part), role))
		if strings.HasSuffix(role.Kind, "Role") && role.Name == name {
			return role.Rules
		}
	}
	t.Fatalf("the variant %q has no role %s", variant, name)
	return nil
}

// The Role for logs is the one that docs/logs.md explains.
func TestLogsRoleIsDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "logs.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n```yaml\napiVersion: rbac.authorization.k8s.io/v1")
	block, _, found := strings.Cut(rest, "\n```")
	if !found {
		t.Fatal("docs/logs.md has no Role")
	}
	role := &rbacv1.Role{}
	mustDo(t, yaml.Unmarshal([]byte("apiVersion: rbac.authorization.k8s.io/v1"+block), role))
	if got, want := granted(t, chartDefault, role.Name), role.Rules; !reflect.DeepEqual(got, want) {
		t.Errorf("the chart has\n%v\ndocs/logs.md has\n%v", got, want)
	}
}

// grant gives a user rights in a namespace, in all of them when it is empty.
func (s *site) grant(user, namespace string, rules []rbacv1.PolicyRule) {
	s.t.Helper()
	meta := metav1.ObjectMeta{Namespace: namespace, GenerateName: user + "-"}
	subject := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}}
	ref := func(kind, name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	}
	create := func(o client.Object) { s.t.Helper(); mustDo(s.t, s.Client.Create(s.t.Context(), o)) }
	if namespace == "" {
		role := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}
		create(role)
		create(&rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref("ClusterRole", role.Name), Subjects: subject})
		return
	}
	role := &rbacv1.Role{ObjectMeta: meta, Rules: rules}
	create(role)
	create(&rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref("Role", role.Name), Subjects: subject})
}

// writer is an app service that may do in Kubernetes what the rules say, beside a
// bridge that lacks nothing.
func (s *site) writer(cluster *siteReplica, user string, change func(*appsvc.Config)) *nats.Conn {
	s.t.Helper()
	kube, err := s.User(user)
	if err != nil {
		s.t.Fatal(err)
	}
	cfg := s.serviceConfig()
	cfg.Prefix = user // which sets it apart from other services on this server
	if change != nil {
		change(&cfg)
	}
	s.serve(cfg, cluster.bridge, kube, s.dial())
	return s.dial()
}

// Of the rights for writes none is one too many: without it the operation that needs it
// fails and names it, and all others work.
func TestNoRightTooMany(t *testing.T) {
	t.Parallel()
	s := newSite(t, cluster.Get(t), "", "")
	shared := s.replica(siteConfig{})
	rules := granted(t, chartWrites, "appbridge-writes")
	lacking := map[string]string{} // right → user
	for i, rule := range rules {
		if len(rule.Resources) != 1 || len(rule.APIGroups) != 1 {
			t.Fatalf("%v: want one resource to a rule", rule)
		}
		for j, verb := range rule.Verbs {
			rest := append([]rbacv1.PolicyRule(nil), rules...)
			rest[i].Verbs = slices.Delete(slices.Clone(rule.Verbs), j, j+1)
			if len(rest[i].Verbs) == 0 {
				rest = slices.Delete(rest, i, i+1)
			}
			user := fmt.Sprintf("%s-%d-%d", s.namespace, i, j)
			s.grant(user, s.namespace, rest)
			resource := rule.Resources[0]
			if rule.APIGroups[0] != "" {
				resource += "." + rule.APIGroups[0]
			}
			lacking[verb+" on "+resource] = user
		}
	}
	// The API server learns of rights in the order in which they were given: when it
	// knows of the last ones, it knows of all before.
	all := s.namespace + "-all"
	s.grant(all, s.namespace, rules)
	nc, n := s.writer(shared, all, nil), 0
	soon(t, "all rights", func() error {
		n++
		return joined(s.as(all).writes(nc, "all-"+strconv.Itoa(n)))
	})
	needs := map[string][]string{
		"get on services.serving.knative.dev":     {"deploy a new app", "deploy it again", "stop", "delete", "delete a replica"},
		"create on services.serving.knative.dev":  {"deploy a new app"},
		"update on services.serving.knative.dev":  {"deploy it again"},
		"patch on services.serving.knative.dev":   {"stop"},
		"delete on services.serving.knative.dev":  {"delete"},
		"get on revisions.serving.knative.dev":    {"stop"},
		"delete on revisions.serving.knative.dev": {"stop"},
		"get on pods":    {"delete a replica"},
		"delete on pods": {"delete a replica"},
	}
	if got, want := len(lacking), len(needs); got != want {
		t.Errorf("there are %d rights, want %d", got, want)
	}
	for right, user := range lacking {
		nc := s.writer(shared, user, nil)
		for what, err := range s.as(user).writes(nc, strings.ReplaceAll(user, s.namespace, "lacks")) {
			if !slices.Contains(needs[right], what) {
				if err != nil {
					t.Errorf("without %s: %s: %v", right, what, err)
				}
				continue
			}
			want := fmt.Sprintf("appbridge lacks the right %s in namespace %s", right, s.namespace)
			if err == nil || !strings.HasSuffix(err.Error(), want) {
				t.Errorf("without %s: %s: got %v, want %q", right, what, err, want)
			}
		}
	}
}

// The right to make namespaces is needed where the one for apps is missing, and only
// helps when the other rights are given for all.
func TestMissingNamespace(t *testing.T) {
	t.Parallel()
	s := newSite(t, cluster.Get(t), "", "")
	shared := s.replica(siteConfig{bridge: func(c *bridge.Config) { c.Namespaces = nil }})
	missing := s.namespace + "-missing"
	into := func(c *appsvc.Config) { c.Namespaces, c.Deploy.Namespace = nil, missing }
	writes := granted(t, chartWrites, "appbridge-writes")
	id := s.id("first")
	deploy := func(user string, nc *nats.Conn) error {
		_, err := s.as(user).well(nc, subjects.APIDeploy, id, wanted(s.app(id, 1)))
		return err
	}

	user := s.namespace + "-maker"
	nc := s.writer(shared, user, into)
	s.grant(user, "", writes)
	soon(t, "the right that lacks is named", func() error {
		if err := deploy(user, nc); err == nil || !strings.HasSuffix(err.Error(), ": 500 Internal: kubernetes: appbridge lacks the right create on namespaces") {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
	if err := s.Client.Get(t.Context(), client.ObjectKey{Name: missing}, &corev1.Namespace{}); !apierrors.IsNotFound(err) {
		t.Errorf("the namespace: %v", err)
	}
	s.grant(user, "", granted(t, chartAllNamespaces, "appbridge-namespaces"))
	soon(t, "the namespace is made", func() error { return deploy(user, nc) })
	if err := s.Client.Get(t.Context(), client.ObjectKey{Namespace: missing, Name: kservice.Name(id)}, &servingv1.Service{}); err != nil {
		t.Error(err)
	}
}
