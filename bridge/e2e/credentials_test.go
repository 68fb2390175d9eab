package e2e_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
)

// newest is appbridge as it is, built by the first test that needs it.
var newest struct {
	once sync.Once
	program
	err error
}

func (w *world) built() program {
	w.t.Helper()
	newest.once.Do(func() {
		newest.program = program{name: "built", path: filepath.Join(must[string](w.t)(w.Dir("built")), "appbridge"), status: true}
		newest.err = kubesuite.Build(w.t.Context(), newest.path)
	})
	if newest.err != nil {
		w.t.Fatal(newest.err)
	}
	return newest.program
}

// plugin is a credential plugin in a kubeconfig. Its tokens, of a service account with all rights,
// last for three seconds.
type plugin struct {
	t                       *testing.T
	path, kubeconfig, token string
}

const pluginScript = `#!/bin/sh
while [ -e "$0.hang" ]; do sleep 0.1; done
printf '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"expirationTimestamp":"%s","token":"%s"}}' \
  "$(date -u -d '+3 seconds' +%Y-%m-%dT%H:%M:%SZ)" "$(cat "$0.token")"
`

func (w *world) newPlugin() *plugin {
	w.t.Helper()
	ctx := w.t.Context()
	meta := metav1.ObjectMeta{Namespace: w.namespace, Name: "plugin"}
	account := &corev1.ServiceAccount{ObjectMeta: meta}
	must[any](w.t)(nil, w.Client.Create(ctx, account))
	must[any](w.t)(nil, w.Client.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: w.namespace + "-plugin"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: meta.Namespace, Name: meta.Name}},
	}))
	request := &authenticationv1.TokenRequest{}
	must[any](w.t)(nil, w.Client.SubResource("token").Create(ctx, account, request))
	p := &plugin{t: w.t, path: filepath.Join(w.t.TempDir(), "plugin"), token: request.Status.Token}
	p.kubeconfig = p.path + ".kubeconfig"
	p.write("", pluginScript)
	p.accept(true)
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: w.Config.Host, CertificateAuthorityData: w.Config.CAData}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
		Command: p.path, APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
	}}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	must[any](w.t)(nil, clientcmd.WriteToFile(*config, p.kubeconfig))
	w.t.Cleanup(p.resume)
	return p
}

func (p *plugin) write(suffix, content string) {
	p.t.Helper()
	must[any](p.t)(nil, os.WriteFile(p.path+suffix, []byte(content), 0o700))
}

// accept has the plugin return tokens that the API server accepts, or others.
func (p *plugin) accept(yes bool) {
	p.t.Helper()
	if yes {
		p.write(".token", p.token)
	} else {
		p.write(".token", "nobody")
	}
}

func (p *plugin) hang() { p.write(".hang", "") }

func (p *plugin) resume() {
	if err := os.Remove(p.path + ".hang"); err != nil && !errors.Is(err, os.ErrNotExist) {
		p.t.Error(err)
	}
}

// options are those of a replica with the plugin's credentials.
func (p *plugin) options(w *world, more ...string) []string {
	return append([]string{
		"--kubeconfig", p.kubeconfig, "--cluster-name", "test", "--base-domain", "apps.example.com",
		"--namespaces", w.namespace, "--nats-url", w.server.ClientURL(),
	}, more...)
}

// waitUnready waits until a replica is not ready for a reason that has all the texts.
func waitUnready(t *testing.T, r *replica, texts ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("not ready: %q", texts), func() error {
		body, status, err := r.Get(t.Context(), "/readyz")
		if err != nil {
			return err
		}
		for _, text := range texts {
			if status == http.StatusOK || !strings.Contains(body, text) {
				return fmt.Errorf("got %d %s", status, body)
			}
		}
		return nil
	})
}

func waitReady(t *testing.T, r *replica) {
	t.Helper()
	eventually(t, "ready again", func() error {
		body, status, err := r.Get(t.Context(), "/readyz")
		if err == nil && status != http.StatusOK {
			err = errors.New(body)
		}
		return err
	})
}

// stops checks that a replica ends after SIGTERM, long before it would be killed, and cleanly.
func stops(t *testing.T, r *replica) {
	t.Helper()
	must[any](t)(nil, r.Signal(syscall.SIGTERM))
	select {
	case <-r.Done():
	case <-time.After(time.Minute):
		t.Fatal("it does not end after SIGTERM")
	}
	if err := r.Exit(); err != nil {
		t.Errorf("got %v", err)
	}
}

// A credential plugin that hangs: the leader steps down before another replica leads, names the
// plugin, is a standby again once the plugin returns, and ends with SIGTERM while it hangs.
func TestHangingCredentialPlugin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p, program := w.newPlugin(), w.built()
	elected := []string{"--leader-elect", "--lease-namespace", w.namespace, "--max-delay", "3s"}
	first := w.serve(program, p.options(w, elected...)...)
	w.waitLeads(first)
	second := w.serve(program, append(w.options(w.server.ClientURL()), elected...)...)
	w.create(w.app("before"))
	w.waitFor(0, "created before")

	p.hang()
	eventually(t, "the second leads", func() error {
		// In this order: the first has to step down before the second leads.
		if second.Metric(t, "appbridge_leader") != 1 {
			return errors.New("it does not")
		}
		if first.Metric(t, "appbridge_leader") != 0 {
			return fmt.Errorf("%w: so does the first", errFatal)
		}
		return nil
	})
	if body, status, err := first.Get(t.Context(), "/readyz"); err != nil || status == http.StatusOK {
		t.Errorf("the first is ready: %s, %v", body, err)
	}
	waitUnready(t, first, "waiting for the Lease", "the credential plugin plugin of --kubeconfig does not answer")
	w.create(w.app("meanwhile"))
	w.waitFor(0, "created before", "created meanwhile")

	p.resume()
	waitReady(t, first)
	p.hang()
	waitUnready(t, first, "the credential plugin plugin of --kubeconfig does not answer")
	stops(t, first)
}

// Without election, and with the log service and app operations in use.
func TestHangingCredentialPluginOfOneReplica(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.newPlugin()
	r := w.serve(w.built(), p.options(w, "--max-delay", "3s")...)
	w.create(w.app("one"))
	w.waitFor(0, "created one")
	p.hang()
	waitUnready(t, r, "Kubernetes has not answered for", "the credential plugin plugin of --kubeconfig does not answer")
	names := must[subjects.Subjects](t)(subjects.New(subjects.DefaultPrefix))
	id := subjects.AppID{Project: "vision", Domain: "development", Name: "one"}
	subject := must[string](t)(names.Logs(subjects.LogGet, id))
	for range 10 {
		reply := must[*nats.Msg](t)(w.nc.Request(subject, nil, patience))
		if text := reply.Header.Get(micro.ErrorHeader); !strings.Contains(text, "plugin of --kubeconfig does not answer") {
			t.Errorf("a request for a log is answered with %q", text)
		}
	}
	p.resume()
	waitReady(t, r)
	w.create(w.app("two"))
	w.waitFor(0, "created one", "created two")
	p.hang()
	waitUnready(t, r, "the credential plugin plugin of --kubeconfig does not answer")
	stops(t, r)
}

// blockedWrites blocks the writes of Leases, whatever becomes of their context.
type blockedWrites struct {
	http.RoundTripper
	mu    sync.Mutex
	until chan struct{} // nil while nothing is blocked
}

func (b *blockedWrites) block(until chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.until = until
}

func (b *blockedWrites) RoundTrip(r *http.Request) (*http.Response, error) {
	b.mu.Lock()
	until := b.until
	b.mu.Unlock()
	if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/leases/") && until != nil {
		<-until
		_, _ = io.Copy(io.Discard, r.Body)
		_ = r.Body.Close()
		return nil, errors.New("this write was blocked")
	}
	return b.RoundTripper.RoundTrip(r)
}

// A holder that cannot renew its Lease does not lead once the Lease has expired, whether or not
// another replica takes it, and although the Lease still has its name.
func TestExpiredRenewal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	writes := &blockedWrites{}
	kube := rest.CopyConfig(w.Config)
	kube.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		writes.RoundTripper = rt
		return writes
	})
	first := w.launch(w.elected("first"), kube)
	first.waitReady()
	w.create(w.app("one"))
	w.waitFor(0, "created one")

	until := make(chan struct{})
	defer sync.OnceFunc(func() { close(until) })()
	writes.block(until)
	eventually(t, "the holder does not lead", func() error {
		if got := first.metric("appbridge_leader"); got != 0 {
			return fmt.Errorf("leader %v", got)
		}
		return nil
	})
	if err := first.bridge.Ready(); err == nil {
		t.Error("the holder of an expired Lease is ready")
	}
	w.create(w.app("two"))
	second := w.launch(w.elected("second"), nil)
	eventually(t, "the second leads alone", func() error {
		if second.metric("appbridge_leader") != 1 {
			return errors.New("it does not")
		}
		if first.metric("appbridge_leader") != 0 {
			return fmt.Errorf("%w: so does the first", errFatal)
		}
		return nil
	})
	w.waitFor(0, "created one", "created two")
	if got := second.metric("appbridge_fence_conflicts_total"); got != 0 {
		t.Errorf("%v fence conflicts: the first published as well", got)
	}
	writes.block(nil)
	first.waitReady() // stands by
}

// A standby that cannot read the Lease cannot take over: it is not ready, and names the cause.
func TestUnreadableLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.newPlugin()
	leader := w.start(w.elected("leader"))
	program := w.built()
	standby := w.serve(program, p.options(w, "--leader-elect", "--lease-namespace", w.namespace)...)
	for _, fault := range []struct {
		name          string
		begin, repair func()
		texts         []string
	}{
		{"401", func() { p.accept(false) }, func() { p.accept(true) }, []string{"kubernetes does not accept the credentials"}},
		{
			"403",
			func() { w.bind(p, "view") },
			func() { w.bind(p, "cluster-admin") },
			[]string{"get: leases.coordination.k8s.io", "is forbidden"},
		},
		{"hanging", p.hang, p.resume, []string{"the credential plugin plugin of --kubeconfig does not answer"}},
	} {
		fault.begin()
		waitUnready(t, standby, append(fault.texts, "waiting for the Lease: ")...)
		fault.repair()
		waitReady(t, standby)
	}
	if err := leader.bridge.Ready(); err != nil {
		t.Error(err)
	}
}

// bind gives the plugin's service account another role.
func (w *world) bind(p *plugin, role string) {
	p.t.Helper()
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: w.namespace + "-plugin"}}
	if err := w.Client.Delete(p.t.Context(), binding); err != nil {
		p.t.Fatal(err)
	}
	binding = &rbacv1.ClusterRoleBinding{
		ObjectMeta: binding.ObjectMeta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: w.namespace, Name: "plugin"}},
	}
	if err := w.Client.Create(p.t.Context(), binding); err != nil {
		p.t.Fatal(err)
	}
}
