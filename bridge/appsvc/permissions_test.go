package appsvc_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/bridge/appsvc"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// right is what a user of NATS may do.
type right struct {
	subscribe bool
	subject   string
}

func (r right) String() string {
	if r.subscribe {
		return "subscribe " + r.subject
	}
	return "publish " + r.subject
}

// serviceRights are what the app service needs with the default names, beside what
// the bridge and the logs need. The table in docs/apps.md has the same.
func serviceRights() []right {
	return []right{
		{true, "flyte.apps.api.>"}, // requests
		{true, "$SRV.>"},           // what `nats micro` asks
		{true, "_INBOX.>"},         // whether a requester still listens
		{false, "_INBOX.>"},        // answers to requests
		{false, "_R_.>"},           // answers to requests from other accounts
	}
}

// tenantRights are all that somebody needs for the apps of the project shop.
func tenantRights() []right {
	return []right{
		{false, "flyte.apps.api.*.shop.>"},
		{false, "flyte.apps.api.list.shop"},
		{true, "_INBOX.>"},
	}
}

// permitted runs a JetStream server with one account that has the given users and
// "admin", and another one whose user "guest" may ask for app operations.
func permitted(t *testing.T, users map[string][]right) *server.Server {
	t.Helper()
	text := &strings.Builder{}
	fmt.Fprintf(text, "jetstream { store_dir: %q }\naccounts {\n  platform { jetstream: enabled, exports: [ { service: \"flyte.apps.api.>\" } ], users: [\n", t.TempDir())
	fmt.Fprintln(text, `    { user: admin, password: admin }`)
	for name, rights := range users {
		lists := map[bool][]string{}
		for _, r := range rights {
			lists[r.subscribe] = append(lists[r.subscribe], strconv.Quote(r.subject))
		}
		fmt.Fprintf(text, "    { user: %q, password: %q, permissions: { subscribe: [%s], publish: [%s] } }\n",
			name, name, strings.Join(lists[true], ", "), strings.Join(lists[false], ", "))
	}
	fmt.Fprintln(text, "  ] }\n  guests { users: [ { user: guest, password: guest } ], imports: [ { service: { account: platform, subject: \"flyte.apps.api.>\" } } ] }\n}")
	return suite.NATSConfigured(t, text.String())
}

// violations are what the server did not let a user do.
type violations struct {
	mu  sync.Mutex
	all []string
}

func (v *violations) option() nats.Option {
	return nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) {
			v.mu.Lock()
			defer v.mu.Unlock()
			v.all = append(v.all, strings.ToLower(err.Error()))
		}
	})
}

// of tells whether something was refused below a subject, which may end in ">".
func (v *violations) of(r right) bool {
	verb := "publish to"
	if r.subscribe {
		verb = "subscription to"
	}
	want := strings.ToLower(fmt.Sprintf("permissions violation for %s %q", verb, strings.TrimSuffix(r.subject, ">")))
	want = strings.TrimSuffix(want, `"`)
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.ContainsFunc(v.all, func(text string) bool { return strings.Contains(text, want) })
}

func (v *violations) clear() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all = nil
}

func (v *violations) String() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return strings.Join(v.all, "; ")
}

// user connects as one, whose violations are noted.
func (s *site) user(name string) (*nats.Conn, *violations) {
	s.t.Helper()
	v := &violations{}
	return s.dial(nats.UserInfo(name, name), v.option()), v
}

// A tenant who may do what subjects/doc.go says can do everything in the own project,
// and nothing in another. That it is the server who refuses is told by its own error.
func TestTenant(t *testing.T) {
	t.Parallel()
	nats := permitted(t, map[string][]right{"shop": tenantRights()})
	s := newSite(t, cluster.Get(t), "", nats.ClientURL())
	s.replica(siteConfig{user: asAdmin(), apps: asAdmin()})
	nc, refused := s.user("shop")
	id := s.id("storefront")
	mustDo(t, s.operate(nc, id))
	if got := refused.String(); got != "" {
		t.Errorf("in the own project the server refused %s", got)
	}

	admin, _ := s.user("admin")
	other := subjects.AppID{Project: "other", Domain: id.Domain, Name: id.Name}
	first, err := s.well(admin, subjects.APIDeploy, other, wanted(s.app(other, 1)))
	if err != nil {
		t.Fatal(err)
	}
	var foreign []string
	for _, op := range operations() {
		subject, err := s.names.API(op, other)
		mustDo(t, err)
		foreign = append(foreign, subject)
	}
	for _, of := range [][2]string{{"", ""}, {"other", ""}, {"other", id.Domain}, {"shopping", ""}} {
		subject, err := s.names.APIList(of[0], of[1])
		mustDo(t, err)
		foreign = append(foreign, subject)
	}
	for _, subject := range foreign {
		refused.clear()
		ctx, cancel := context.WithCancel(t.Context())
		answered := make(chan error, 1)
		go func() {
			_, err := s.ask(ctx, nc, subject, nil)
			answered <- err
		}()
		soon(t, "the server refuses "+subject, func() error {
			if !refused.of(right{subject: subject}) {
				return fmt.Errorf("it refuses %q", refused)
			}
			return nil
		})
		cancel()
		if err := <-answered; err == nil {
			t.Errorf("%s: it was answered", subject)
		}
	}
	// Nor can a tenant answer requests, or read those of others.
	for _, subject := range []string{"flyte.apps.api.>", "flyte.apps.api.deploy.shop.>"} {
		if _, err := nc.SubscribeSync(subject); err != nil {
			t.Fatal(err)
		}
		soon(t, "the server refuses to let "+subject+" be heard", func() error {
			if !refused.of(right{subscribe: true, subject: subject}) {
				return fmt.Errorf("it refuses %q", refused)
			}
			return nil
		})
	}
	a, err := s.well(admin, subjects.APIDeploy, other, wanted(s.app(other, 1)))
	if err != nil || a.outcome != subjects.OutcomeUnchanged || a.version != first.version {
		t.Errorf("the other project's app: %v, %v, want it unchanged at %s", a, err, first.version)
	}
}

func asAdmin() nats.Option { return nats.UserInfo("admin", "admin") }

func operations() []subjects.APIOp {
	return []subjects.APIOp{
		subjects.APIDeploy, subjects.APIGet, subjects.APIReplicas, subjects.APIIngress,
		subjects.APIDeleteReplica, subjects.APIStop, subjects.APIDelete,
	}
}

// operate asks for each operation on an app that is not there, and for the lists that
// it is in, and is what does not work.
func (s *site) operate(nc *nats.Conn, id subjects.AppID) error {
	var errs []error
	for _, op := range operations() {
		var body proto.Message
		switch op {
		case subjects.APIDeploy:
			body = wanted(s.app(id, 1))
		case subjects.APIDeleteReplica:
			body = &appv1.ReplicaIdentifier{Name: "none"}
		}
		a, err := s.well(nc, op, id, body)
		for deadline := time.Now().Add(patience); a != nil && a.code == subjects.CodeNotFound && time.Now().Before(deadline); {
			a, err = s.well(nc, op, id, body) // the cache has yet to show it
		}
		errs = append(errs, err)
	}
	for _, domain := range []string{"", id.Domain} {
		subject, err := s.names.APIList(id.Project, domain)
		if err != nil {
			return err
		}
		a, err := s.ask(s.t.Context(), nc, subject, nil)
		if err == nil {
			err = a.err()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// attempt runs the app service as a user and uses all of it: requests from the same
// and from another account, and `nats micro`, each of which may take a quarter of wait. It returns
// what the server refused, and what does not work. It waits until the server has refused what the
// user lacks: an operation that does not need it may be answered before.
func (s *site) attempt(cache appsvc.Cache, user string, lacks *right, wait time.Duration) (*violations, error) {
	s.t.Helper()
	nc, refused := s.user(user)
	service, err := appsvc.New(s.serviceConfig(), cache, s.Config, nc, zap.NewNop(), prometheus.NewRegistry())
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	go func() { done <- service.Run(ctx) }()
	admin, _ := s.user("admin")
	guest, _ := s.user("guest")
	list, err := s.names.APIList("", "")
	if err != nil {
		s.t.Fatal(err)
	}
	asked := func(nc *nats.Conn, subject string) (*siteAnswer, error) {
		ctx, cancel := context.WithTimeout(ctx, wait/4)
		defer cancel()
		a, err := s.ask(ctx, nc, subject, nil)
		if err != nil {
			return nil, err
		}
		return a, a.err()
	}
	deadline := time.Now().Add(patience)
	check := func() error {
		var errs []error
		for who, nc := range map[string]*nats.Conn{"here": admin, "from another account": guest} {
			if _, err := asked(nc, list); err != nil {
				errs = append(errs, fmt.Errorf("list %s: %w", who, err))
			}
		}
		if _, err := admin.Request("$SRV.PING."+appsvc.ServiceName, nil, wait/4); err != nil {
			errs = append(errs, fmt.Errorf("ping: %w", err))
		}
		return errors.Join(errs...)
	}
	pending := func(err error) bool {
		if lacks != nil {
			return !refused.of(*lacks)
		}
		return err != nil
	}
	for err = check(); pending(err) && time.Now().Before(deadline); err = check() {
		<-time.After(10 * time.Millisecond)
	}
	cancel()
	if ended := <-done; ended != nil {
		err = errors.Join(err, fmt.Errorf("the service ended: %w", ended))
	}
	nc.Close()
	return refused, err
}

// The rights of serviceRights are enough, and without any one of them the server
// refuses something that the service does.
func TestServiceRights(t *testing.T) {
	t.Parallel()
	users := map[string][]right{"all": serviceRights()}
	for i := range serviceRights() {
		users["without-"+strconv.Itoa(i)] = slices.Delete(serviceRights(), i, i+1)
	}
	nats := permitted(t, users)
	s := newSite(t, cluster.Get(t), "", nats.ClientURL())
	shared := s.replica(siteConfig{alone: true, user: asAdmin(), apps: asAdmin()})
	if _, err := s.Create(t.Context(), s.app(s.id("one"), 1)); err != nil {
		t.Fatal(err)
	}
	refused, err := s.attempt(shared.bridge, "all", nil, patience)
	if err != nil || refused.String() != "" {
		t.Fatalf("with all rights: %v; the server refused %q", err, refused)
	}
	for i, lacks := range serviceRights() {
		refused, err := s.attempt(shared.bridge, "without-"+strconv.Itoa(i), &lacks, 2*time.Second)
		if !refused.of(lacks) {
			t.Errorf("without %s the server refused %q", lacks, refused)
		}
		if probes := (right{true, "_INBOX.>"}); err == nil && lacks != probes {
			t.Errorf("without %s all works", lacks)
		}
		t.Logf("without %s: %v", lacks, err)
	}
}
