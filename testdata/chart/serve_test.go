package chart

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/appbridge/appbridge/testdata/testenv/configtest"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/network"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// TestServe: the program becomes ready with the configuration of every variant, as the service
// account of that variant. The test sets what a pod and its network would bring: addresses, and
// the folders where files lie.
func TestServe(t *testing.T) {
	w := world.Get(t)
	for name, values := range variants(t) {
		t.Run(name, func(t *testing.T) {
			r := render(t, "serve-"+name, values...)
			createNamespaces(t, w, r)
			apply(t, w, r.text)

			dir := t.TempDir()
			secrets := writeSecrets(t, dir)
			config := strings.ReplaceAll(r.config(t), "/etc/appbridge/secrets", dir)
			kubeconfig := w.KubeconfigPath
			if r.kinds()["Role"] > 0 { // else it has the roles of somebody else
				var deployment appsv1.Deployment
				r.get(t, "Deployment", "", &deployment)
				kubeconfig = kubeconfigOf(t, w, r.namespace, deployment.Spec.Template.Spec.ServiceAccountName)
			}
			args := []string{
				"serve", "--config", configtest.WriteFile(t, dir, "appbridge.yaml", config),
				"--kubeconfig", kubeconfig,
			}
			if !strings.Contains(config, "\nlease-namespace:") {
				args = append(args, "--lease-namespace", r.namespace)
			}
			if strings.Contains(config, "\nnats-embedded: true\n") {
				listen, err := network.FreeAddress("")
				if err != nil {
					t.Fatal(err)
				}
				args = append(args, "--nats-embedded-dir", filepath.Join(dir, "store"), "--nats-embedded-listen", listen)
			} else {
				options := &server.Options{JetStream: true, StoreDir: t.TempDir(), AlwaysEnableNonce: true}
				if strings.Contains(config, "\nnats-tls-cert:") {
					secrets.require(t, options)
				}
				args = append(args, "--nats-url", suite.NATS(t, options).ClientURL())
			}
			if name == "everything" { // one server, on the disk of this machine
				args = append(args, "--stream-replicas", "1", "--stream-max-bytes", "64Mi")
			}
			i := serve(t, w, r.name, args)
			if err := i.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			<-i.Done()
			if err := i.Exit(); err != nil {
				log, _ := i.LogTail()
				t.Errorf("%v\n%s", err, log)
			}
		})
	}
}

// serve runs the program until it is ready. It ends with the test.
func serve(t *testing.T, w *kubesuite.World, name string, args []string) *kubesuite.Instance {
	t.Helper()
	i := &kubesuite.Instance{}
	var err error
	if i.HTTP, err = network.FreeAddress(""); err != nil {
		t.Fatal(err)
	}
	args = append(args, "--http-listen", i.HTTP)
	i.Process, err = w.Run(name, filepath.Join(t.TempDir(), "log"), filepath.Join(w.Bin, "appbridge"), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := i.Kill(); err != nil {
			t.Error(err)
		}
		<-i.Done()
	})
	suite.Eventually(t, suite.Patience, "ready", func() error {
		select {
		case <-i.Done():
			log, _ := i.LogTail()
			return fmt.Errorf("%w: it ended: %w\n%s", suite.ErrFatal, i.Exit(), log)
		default:
		}
		body, status, err := i.Get(t.Context(), "/readyz")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%d %s", status, body)
		}
		return err
	})
	return i
}

// kubeconfigOf is for a service account.
func kubeconfigOf(t *testing.T, w *kubesuite.World, namespace, name string) string {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	token := &authenticationv1.TokenRequest{}
	if err := w.Client.SubResource("token").Create(t.Context(), account, token); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: w.Config.Host, CertificateAuthorityData: w.Config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {Token: token.Status.Token}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	}, path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// secretFiles are the files of the Secrets that the variants name.
type secretFiles struct{ certificate, key string }

func writeSecrets(t *testing.T, dir string) secretFiles {
	t.Helper()
	user, identity := filepath.Join(dir, "nats-user"), filepath.Join(dir, "nats-tls")
	for _, folder := range []string{user, identity} {
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	seed := configtest.NewSeed(t)
	configtest.WriteCreds(t, user, seed)
	configtest.WriteFile(t, user, "nkey", seed)
	certificate, key := configtest.WriteKeyPair(t, identity, "tls")
	text, err := os.ReadFile(certificate)
	if err != nil {
		t.Fatal(err)
	}
	configtest.WriteFile(t, identity, "ca.crt", string(text))
	return secretFiles{certificate, key}
}

// require has a server accept clients with the certificate alone.
func (f secretFiles) require(t *testing.T, options *server.Options) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(f.certificate, f.key)
	if err != nil {
		t.Fatal(err)
	}
	authorities := x509.NewCertPool()
	authorities.AddCert(pair.Leaf)
	options.TLS, options.TLSVerify = true, true
	options.TLSConfig = &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: authorities, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12,
	}
}
