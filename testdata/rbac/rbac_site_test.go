package rbac_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/network"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// site is one bridge with its service account, roles, namespaces, stream and bucket.
type site struct {
	*world
	t       *testing.T
	name    string
	variant variant
	account *corev1.ServiceAccount
	names   subjects.Subjects
	nc      *nats.Conn
	options []string // of every command of appbridge
}

// namespaces of the site.
func (s *site) own() string  { return s.name + "-own" }
func (s *site) apps() string { return s.name + "-apps" } // where the test's apps are
func (s *site) more() string { return s.name + "-more" } // watched too
func (s *site) made() string { return s.name + "-made" } // does not exist

// placed puts the site's names in the place of the chart's placeholders.
func (s *site) placed(text string) string {
	names := strings.NewReplacer(
		placeRelease, s.name, placeOwn, s.own(), placeApps, s.apps(), placeMore, s.more())
	return names.Replace(text)
}

// newSite makes the namespaces and the roles of the chart, without one right, and waits until the
// API server knows all of it. A zero right is none.
func newSite(t *testing.T, w *world, v variant, name string, lacks right) *site {
	t.Helper()
	s := &site{world: w, t: t, name: name, variant: v}
	for _, namespace := range []string{s.own(), s.apps(), s.more()} {
		object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
		s.must(w.Client.Create(t.Context(), object))
	}
	account, roles, bindings := objects(t, s.placed(v.manifests))
	if account == nil {
		t.Fatal("the chart has no service account")
	}
	all := granted(t, roles)
	lacks.namespace = s.placed(lacks.namespace)
	if lacks.verb != "" {
		remove(t, roles, lacks)
	}
	s.account = account
	s.must(w.Client.Create(t.Context(), account))
	for _, object := range slices.Concat(roles, bindings) {
		s.must(w.Client.Create(t.Context(), object))
	}
	s.known(all, lacks)
	s.connect()
	s.configure()
	return s
}

func (s *site) must(errs ...error) {
	s.t.Helper()
	if err := errors.Join(errs...); err != nil {
		s.t.Fatal(err)
	}
}

// known waits until the API server grants all rights but one to the service account.
func (s *site) known(all []right, lacks right) {
	s.t.Helper()
	cfg := rest.CopyConfig(s.Config)
	cfg.QPS = -1
	clients, err := kubernetes.NewForConfig(cfg)
	s.must(err)
	reviews := clients.AuthorizationV1().SubjectAccessReviews()
	accounts := "system:serviceaccounts"
	for _, r := range all {
		rule := r.rule()
		resource, subresource, _ := strings.Cut(rule.Resources[0], "/")
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:   "system:serviceaccount:" + s.own() + ":" + s.account.Name,
			Groups: []string{"system:authenticated", accounts, accounts + ":" + s.own()},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: r.namespace, Verb: r.verb, Name: r.name,
				Group: rule.APIGroups[0], Resource: resource, Subresource: subresource,
			},
		}}
		what := fmt.Sprintf("the API server knows whether %s is granted", r)
		suite.Eventually(s.t, suite.Patience, what, func() error {
			got, err := reviews.Create(s.t.Context(), review, metav1.CreateOptions{})
			if err == nil && got.Status.Allowed != (r != lacks) {
				err = fmt.Errorf("got %v: %s", got.Status.Allowed, got.Status.Reason)
			}
			return err
		})
	}
}

func (s *site) connect() {
	s.t.Helper()
	var err error
	s.nc, err = nats.Connect(s.url, nats.Timeout(suite.Patience))
	s.must(err)
	s.t.Cleanup(s.nc.Close)
	s.names, err = subjects.New("rbac." + s.name)
	s.must(err)
}

func (s *site) stream() string { return "STREAM-" + s.name }
func (s *site) bucket() string { return "bucket-" + s.name }

// configure sets the options of serve and verify, with the token of the service account.
func (s *site) configure() {
	s.t.Helper()
	token := &authenticationv1.TokenRequest{}
	s.must(s.Client.SubResource("token").Create(s.t.Context(), s.account, token))
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["c"] = &clientcmdapi.Cluster{
		Server: s.Config.Host, CertificateAuthorityData: s.Config.CAData,
	}
	kubeconfig.AuthInfos["a"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	kubeconfig.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "a"}
	kubeconfig.CurrentContext = "x"
	file := filepath.Join(s.t.TempDir(), "kubeconfig")
	s.must(clientcmd.WriteToFile(*kubeconfig, file))
	namespaces := s.placed(strings.Join(s.variant.namespaces, ","))
	s.options = []string{
		"--kubeconfig", file, "--cluster-name", "test", "--namespaces", namespaces,
		"--nats-url", s.url, "--prefix", "rbac." + s.name, "--stream", s.stream(), "--bucket", s.bucket(),
		"--leader-elect", "--lease-namespace", s.own(), "--lease-name", "appbridge",
		"--log-format", "console",
	}
}

// serve starts `appbridge serve`, which ends with the test.
func (s *site) serve(options ...string) *kubesuite.Instance {
	s.t.Helper()
	listen, err := network.FreeAddress("")
	s.must(err)
	args := append([]string{"serve", "--http-listen", listen, "--audit-interval", "1s"}, s.options...)
	switch {
	case s.variant.makes:
		args = append(args, "--enable-writes", "--deploy-namespace", s.made())
	case s.variant.writes:
		args = append(args, "--enable-writes", "--deploy-namespace", s.apps())
	}
	log := filepath.Join(s.t.TempDir(), "log")
	process, err := s.Run(s.name, log, filepath.Join(s.Bin, "appbridge"), append(args, options...)...)
	s.must(err)
	s.t.Cleanup(func() {
		if err := process.Stop(suite.Patience); err != nil {
			s.t.Error(err)
		}
		if text, err := os.ReadFile(log); s.t.Failed() {
			s.t.Logf("appbridge serve: %v\n%s", err, text)
		}
	})
	return &kubesuite.Instance{Process: process, HTTP: listen}
}

// starts waits until the bridge is ready, or has ended, and returns the error that it ended with.
func (s *site) starts(i *kubesuite.Instance) (failure string) {
	s.t.Helper()
	suite.Eventually(s.t, suite.Patience, "the bridge is ready or ends", func() error {
		select {
		case <-i.Done():
			text, err := os.ReadFile(i.LogPath())
			s.must(err)
			lines := strings.Split(strings.TrimSpace(string(text)), "\n")
			failure = lines[len(lines)-1]
			if exit := i.Exit(); exit == nil || exit.Error() != "exit status 1" {
				return fmt.Errorf("%w: it ended, want exit code 1: %w", suite.ErrFatal, exit)
			}
			return nil
		default:
		}
		body, status, err := i.Get(s.t.Context(), "/readyz")
		if err == nil && status != 200 {
			err = errors.New(body)
		}
		return err
	})
	return strings.TrimPrefix(failure, "appbridge: ")
}

// logged is the error that a running bridge has logged with a message.
func (s *site) logged(i *kubesuite.Instance, message string) string {
	s.t.Helper()
	text, err := os.ReadFile(i.LogPath())
	s.must(err)
	for line := range strings.Lines(string(text)) {
		if _, fields, found := strings.Cut(line, message); found {
			_, quoted, _ := strings.Cut(fields, `"error": "`)
			shown, _, _ := strings.Cut(quoted, `"`)
			return shown
		}
	}
	return ""
}
