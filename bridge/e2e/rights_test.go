package e2e_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/configtest"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// rights is a world whose server reads the rights of the bridge's user from its file. The test
// itself has every right.
type rights struct {
	*world
	file *suite.ReloadableNATS
}

// every is the permissions of a user who may do everything.
const everyRight = `publish: ">", subscribe: ">"`

func newRights(t *testing.T) *rights {
	t.Helper()
	r := &rights{world: newNamespace(t)}
	r.file = suite.NATSReloadable(t, r.settings(everyRight, ""))
	r.server = r.file.Server
	r.connect()
	return r
}

func (r *rights) settings(permissions, more string) string {
	return fmt.Sprintf(`
jetstream { store_dir: %q }
authorization {
  timeout: 300
  users: [
    {user: test, password: test}
    {user: bridge, password: bridge, permissions: {%s}}
  ]
}
no_auth_user: test
%s
`, r.dir, permissions, more)
}

// grant reloads the server with other permissions of the bridge's user.
func (r *rights) grant(permissions string) {
	r.t.Helper()
	r.file.Reload(r.t, r.settings(permissions, ""))
}

// launch starts a bridge on a connection as the program makes it.
func (r *rights) launch(cfg bridge.Config) *running {
	r.t.Helper()
	password := r.t.TempDir()
	configtest.ReplaceFiles(r.t, password, map[string]string{"password": "bridge"})
	return r.launchOn(func(log *zap.Logger) *nats.Conn {
		conn := must[*natsconn.Conn](r.t)(natsconn.Connect(context.WithoutCancel(r.t.Context()), natsconn.Config{
			URLs: []string{r.server.ClientURL()}, User: "bridge", PasswordFile: password + "/password",
		}, "appbridge test", log, nats.ReconnectWait(50*time.Millisecond), nats.ReconnectJitter(0, 0)))
		r.t.Cleanup(func() { conn.Close(false) })
		return conn.NATS
	}, cfg, nil)
}

// A right to JetStream's API that is taken away: no look at stream and bucket succeeds, and the
// bridge is not ready, with the denied subject as the reason. Given back, everything goes on. The
// rounds of the audit, which are interrupted meanwhile, are a warning.
func TestStorageCannotBeChecked(t *testing.T) {
	t.Parallel()
	w := newRights(t)
	r := w.launch(w.audited())
	r.waitReady()
	svc := w.create(w.app("one"))
	w.waitFor(0, "created one")
	r.completes(1)

	w.grant(`publish: {allow: ">", deny: "$JS.API.>"}, subscribe: ">"`)
	r.notReady("stream and bucket have not been checked for", "Permissions Violation", "$JS.API.STREAM.INFO")
	const interrupted = "the rounds of the audit are interrupted again and again"
	eventually(t, "the audit warns", func() error {
		if n := r.logs.FilterMessage(interrupted).FilterLevelExact(zap.WarnLevel).Len(); n != 1 {
			return fmt.Errorf("%d warnings", n)
		}
		return nil
	})
	must[*servingv1.Service](t)(w.Progressing(t.Context(), svc))
	w.grant(everyRight)
	r.waitReady()
	w.waitFor(0, "created one", "updated one")
	r.completes(1)
	r.foundNothing()
	if n := r.logs.FilterMessage(interrupted).Len(); n != 1 {
		t.Errorf("%d warnings of one streak", n)
	}
}

// The right to the client's inbox is taken away by a reload and given back: no request has an answer
// meanwhile, which readiness reports. Then the bridge goes on by itself.
func TestInboxRightGivenBack(t *testing.T) {
	t.Parallel()
	w := newRights(t)
	r := w.launch(w.audited())
	r.waitReady()
	svc := w.create(w.app("one"))
	w.waitFor(0, "created one")
	w.grant(`publish: ">", subscribe: {allow: ">", deny: "_INBOX.>"}`)
	svc = must[*servingv1.Service](t)(w.Progressing(t.Context(), svc))
	r.notReady("stream and bucket have not been checked for", `Permissions Violation for Subscription to "_INBOX.`)
	w.grant(everyRight)
	r.waitReady()
	must[*servingv1.Service](t)(w.Failed(t.Context(), svc, "Broken", "it is"))
	eventually(t, "the last state is published", func() error {
		events := w.events(1)
		if n := len(events); n == 0 || n > 2 || events[n-1].header(subjects.HeaderAppStatus) != "FAILED" {
			return fmt.Errorf("%v", events)
		}
		return nil
	})
	w.converged(w.events(0))
	r.completes(1)
	r.foundNothing()
}
