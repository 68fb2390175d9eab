package e2e_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// labelServiceUID is what Knative labels a pod with.
const labelServiceUID = "serving.knative.dev/serviceUID"

// Two projects on one server, each with the rights that the docs give a tenant, try to reach
// each other by every request, option and body. NATS or appbridge refuses each try, or it
// concerns the own project alone. The test prints the table of tries and answers.
func TestTenants(t *testing.T) {
	t.Parallel()
	shop, bank := &tenantOf{project: "shop"}, &tenantOf{project: "bank"}
	url := tenantServer(t, shop, bank)
	as := func(user string) string { return strings.Replace(url, "//", "//"+user+":"+user+"@", 1) }
	w := ownWorld(t, testenv.Options{}, as("admin"), "--enable-writes", "--base-domain", "apps.example.com")
	for _, pair := range [][2]*tenantOf{{shop, bank}, {bank, shop}} {
		pair[0].prepare(t, w, as(pair[0].project), pair[1].project)
	}
	for _, pair := range [][2]*tenantOf{{shop, bank}, {bank, shop}} {
		t.Run(pair[0].project+" against "+pair[1].project, func(t *testing.T) { pair[0].attack(t, w, pair[1]) })
	}
}

// tenantServer runs a NATS server with users that have the documented rights, and with one
// who may do everything, admin.
func tenantServer(t *testing.T, tenants ...*tenantOf) string {
	t.Helper()
	publish, subscribe := documentedRights(t)
	users := []string{"{ user: admin, password: admin }"}
	for _, tenant := range tenants {
		of := func(rights []string) string {
			quoted := make([]string, len(rights))
			for i, right := range rights {
				quoted[i] = fmt.Sprintf("%q", strings.ReplaceAll(right, ".shop", "."+tenant.project))
			}
			return strings.Join(quoted, ", ")
		}
		users = append(users, fmt.Sprintf("{ user: %s, password: %s, permissions: { publish: [%s], subscribe: [%s] } }", tenant.project, tenant.project, of(publish), of(subscribe)))
	}
	config := fmt.Sprintf("jetstream { store_dir: %q }\naccounts { platform { jetstream: enabled, users: [\n%s\n] } }\n", t.TempDir(), strings.Join(users, "\n"))
	return suite.NATSConfigured(t, config).ClientURL()
}

// documentedRights are those of a tenant of the project shop: of docs/apps.md, of docs/logs.md,
// with inboxes of its own, and of docs/consuming.md for events.
func documentedRights(t *testing.T) (publish, subscribe []string) {
	t.Helper()
	root := filepath.Join("..", "..", "..")
	find := func(page, form string) string {
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`(?s)` + strings.ReplaceAll(form, " ", `\s+`)).FindSubmatch(text)
		if found == nil {
			t.Fatalf("%s has nothing of the form %s", page, form)
		}
		return string(found[1])
	}
	for _, quoted := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(find("docs/apps.md", "A tenant of the project `shop` publishes to (.*?) and subscribes"), -1) {
		publish = append(publish, quoted[1])
	}
	list := func(text string) []string {
		return strings.Split(strings.NewReplacer(`"`, "", " ", "", "\n", "").Replace(text), ",")
	}
	subscribe = list(find("docs/logs.md", `user: shop,[^}]*?subscribe: \[(.*?)\]`))
	publish = append(publish, list(find("docs/logs.md", `user: shop,[^}]*?publish: \[(.*?)\]`))...)
	own := find("docs/logs.md", `inboxes of their own: .subscribe: \["(_INBOX\.shop\.>)"`)
	subscribe[slices.Index(subscribe, "_INBOX.>")] = own
	subscribe = append(subscribe, strings.Replace(find("docs/consuming.md", "NATS permissions alone isolate a tenant: `([^`]+)`"), "<project>", "shop", 1))
	t.Logf("a tenant publishes to %q and subscribes to %q", publish, subscribe)
	return publish, subscribe
}

// tenantOf is a project with its user of NATS and what it has in the cluster.
type tenantOf struct {
	project string
	nc      *nats.Conn
	app     testenv.App // with a secret in its spec and its log
	// What the other project can deploy has the same Knative Service's name as folded, and had
	// that of gone, whose pod is draining.
	folded, gone subjects.AppID
	pod, drain   *testenv.Pod
	stream       string // id of one that is open
	lines        chan *nats.Msg
	versions     map[string]string // of its Knative Services

	controls int // publishes that were certainly refused

	mu      sync.Mutex
	refused []string // by the server
}

// secret is what nobody else may read.
func (t *tenantOf) secret() string { return "secret-of-" + t.project }

func (t *tenantOf) id(domain, name string) subjects.AppID {
	return subjects.AppID{Project: t.project, Domain: domain, Name: name}
}

// twin is the app of this project whose Knative Service has the name of the other's app.
func (t *tenantOf) twin(of subjects.AppID) subjects.AppID {
	name, rest, _ := strings.Cut(kservice.Name(of), "-"+t.project+"-")
	return t.id(rest, name)
}

// prepare creates what the project has.
func (o *tenantOf) prepare(t *testing.T, w *world, url, other string) {
	t.Helper()
	var err error
	o.nc, err = nats.Connect(url, nats.Timeout(patience), nats.CustomInboxPrefix("_INBOX."+o.project), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.refused = append(o.refused, strings.ToLower(err.Error()))
		}
	}))
	must(t, err)
	t.Cleanup(o.nc.Close)
	o.app = testenv.App{Project: o.project, Domain: "production", Name: "vault", Env: map[string]string{"SECRET": o.secret()}}
	o.folded, o.gone = o.id("dev", "x-"+other+"-y"), o.id("dev", "z-"+other+"-y")
	o.versions = map[string]string{}
	create := func(id subjects.AppID, app testenv.App) (*servingv1.Service, *testenv.Pod) {
		svc, err := w.Create(t.Context(), app)
		must(t, err)
		o.versions[svc.Name] = svc.ResourceVersion
		pod, err := w.Kubelet.RunPod(t.Context(), testenv.PodOptions{
			Name: svc.Name + "-00001-pod", Service: svc.Name, Revision: svc.Name + "-00001",
			Labels: map[string]string{labelServiceUID: string(svc.UID)},
		})
		must(t, err)
		pod.Write(o.secret() + " in the log of " + id.String())
		return svc, pod
	}
	_, o.pod = create(o.app.ID(), o.app)
	for _, id := range []subjects.AppID{o.folded, o.gone} {
		svc, pod := create(id, testenv.App{Project: id.Project, Domain: id.Domain, Name: id.Name, Env: map[string]string{"SECRET": o.secret()}})
		if id == o.gone {
			must(t, w.Delete(t.Context(), svc))
			delete(o.versions, svc.Name)
			o.drain = pod
		}
	}
	// One that is nobody's: neither an app's id nor the label of managed ones.
	plain := testenv.App{
		Project: o.project, Domain: "production", Name: "plain", Labels: map[string]string{kservice.LabelManaged: "", kservice.LabelProject: "", kservice.LabelDomain: ""},
		Annotations: map[string]string{"flyte.org/app-id": ""},
	}
	svc, err := w.Create(t.Context(), plain)
	must(t, err)
	o.versions[svc.Name] = svc.ResourceVersion
	for _, id := range []subjects.AppID{o.app.ID(), o.folded} {
		logs := subject(names(t).Logs(subjects.LogGet, id))
		eventually(t, id.String()+" can be read", func() error {
			for _, subject := range []string{subjectOf(t, subjects.APIGet, id), logs} {
				if a, err := asks(t.Context(), o.nc, subject, ""); err != nil || !strings.Contains(a.body, o.secret()) {
					return fmt.Errorf("got %q, %w", a.body, err)
				}
			}
			return nil
		})
	}
	// The deleted app is gone for appbridge, too.
	eventually(t, o.gone.String()+" is gone", func() error {
		if a, err := asks(t.Context(), o.nc, subjectOf(t, subjects.APIGet, o.gone), ""); err != nil || !strings.HasPrefix(a.refused(), subjects.CodeNotFound.HeaderValue()) {
			return fmt.Errorf("got %q, %w", a.body, err)
		}
		return nil
	})
	o.lines = make(chan *nats.Msg, 1000)
	inbox := o.nc.NewInbox()
	_, err = o.nc.ChanSubscribe(inbox, o.lines)
	must(t, err)
	must(t, o.nc.PublishRequest(subject(names(t).Logs(subjects.LogTail, o.app.ID())), inbox, []byte(`{"follow": true}`)))
	o.stream = o.line(t, o.secret()).Header.Get(subjects.HeaderLogStream)
}

// line waits for a line in the open stream.
func (o *tenantOf) line(t *testing.T, text string) *nats.Msg {
	t.Helper()
	for deadline := time.After(patience); ; {
		select {
		case msg := <-o.lines:
			if strings.Contains(string(msg.Data), text) {
				return msg
			}
		case <-deadline:
			t.Fatalf("%s reads no line %q in its own log", o.project, text)
		}
	}
}

// attack makes every try and checks what came of it.
func (o *tenantOf) attack(t *testing.T, w *world, victim *tenantOf) {
	stolen := listenIn(t, w, victim)
	table := &bytes.Buffer{}
	rows := tabwriter.NewWriter(table, 0, 0, 2, ' ', 0)
	count := map[string]int{}
	fmt.Fprintln(rows, "try\tanswer\tsubject\tbody")
	for _, try := range tries(t, o, victim) {
		got := o.try(t, try, victim)
		count[try.what+"\t"+strings.TrimSpace(string(try.want))]++
		fmt.Fprintf(rows, "%s\t%.110s\t%s\t%s\n", try.what, got, try.shownSubject(), try.shownBody())
		if !strings.HasPrefix(got, string(try.want)) {
			t.Errorf("%s: %s %s: got %s, want %s", try.what, try.shownSubject(), try.shownBody(), got, try.want)
		}
	}
	fmt.Fprintln(rows, "\ntry\tanswer wanted\ttries")
	for _, line := range slices.Sorted(maps.Keys(count)) {
		fmt.Fprintf(rows, "%s\t%d\n", line, count[line])
	}
	must(t, rows.Flush())
	t.Logf("%s against %s:\n%s", o.project, victim.project, table)
	victim.unharmed(t, w)
	// Whatever the bridge was to write elsewhere would have come by now: each endpoint has
	// answered later requests.
	for _, text := range stolen() {
		t.Errorf("written into a subject of %s: %s", victim.project, text)
	}
}

// unharmed checks that the project has what it had.
func (o *tenantOf) unharmed(t *testing.T, w *world) {
	t.Helper()
	for name, version := range o.versions {
		svc := &servingv1.Service{}
		err := w.Client.Get(t.Context(), types.NamespacedName{Namespace: testenv.DefaultNamespace, Name: name}, svc)
		if err != nil || svc.ResourceVersion != version {
			t.Errorf("the Knative Service %s of %s was changed: %v, %v", name, o.project, svc.Annotations, err)
		}
	}
	for _, pod := range []*testenv.Pod{o.pod, o.drain} {
		object := &corev1.Pod{}
		err := w.Client.Get(t.Context(), types.NamespacedName{Namespace: pod.Namespace(), Name: pod.Name()}, object)
		if err != nil || object.DeletionTimestamp != nil {
			t.Errorf("the pod %s of %s was deleted: %v", pod.Name(), o.project, err)
		}
	}
	text := "still read after the tries at " + metav1.Now().Format(time.RFC3339Nano)
	o.pod.Write(text)
	o.line(t, text)
}

// listenIn hears what is written into subjects that only a trick of the other project reaches.
func listenIn(t *testing.T, w *world, victim *tenantOf) func() []string {
	t.Helper()
	var mu sync.Mutex
	var heard []string
	admin := w.connect(t)
	// Only these: who listens to everything hides that nobody else does.
	for _, subject := range append(foreignReplies(t, victim), victim.inbox()) {
		_, err := admin.Subscribe(subject, func(msg *nats.Msg) {
			// An inbox may be named by anybody. What is written there has to be harmless.
			if subject != victim.inbox() || victim.leaks(string(msg.Data)) {
				mu.Lock()
				defer mu.Unlock()
				heard = append(heard, fmt.Sprintf("%s: %.200q", subject, msg.Data))
			}
		})
		must(t, err)
	}
	must(t, admin.Flush())
	return func() []string {
		must(t, admin.Flush())
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(heard)
	}
}

// leaks reports whether a text has something of the project.
func (o *tenantOf) leaks(text string) bool {
	for _, sign := range []string{o.secret(), fmt.Sprintf(`"project":%q`, o.project), o.pod.Name(), o.drain.Name()} {
		if strings.Contains(text, sign) {
			return true
		}
	}
	return false
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
