// Package accounts_test runs the NATS configuration of deploy/nats with a bridge and tries what
// each of its users may do.
package accounts_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

const (
	deploy = "../../deploy/nats"
	// bridgeHash is of bridgePassword, as `nats server passwd` prints it.
	bridgeHash     = "$2a$04$ncnQgbnGDsya4OqvALGrKO1y/feL078RvCDJn6zzr0yHoUxxM9Ya6"
	bridgePassword = "the password of the bridge"
)

// cluster has an app of the project shop and one of the project bank, each with a replica that has
// written a line.
var cluster = kubesuite.SharedWorld{Prepare: createApps}

func TestMain(m *testing.M) {
	// A mirror that ends tries for some seconds to delete its consumer, which APPS does not export.
	mirror := goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*stream).tryDeleteSourcingConsumer.func1")
	suite.Main(m, cluster.Stop, mirror)
}

func createApps(ctx context.Context, w *kubesuite.World) error {
	for _, project := range []string{"shop", "bank"} {
		svc, err := w.Create(ctx, testenv.App{Project: project, Domain: "production", Name: "storefront"})
		if err != nil {
			return err
		}
		pod, err := w.Kubelet.RunPod(ctx, testenv.PodOptions{Name: project + "-1", Service: svc.Name})
		if err != nil {
			return err
		}
		pod.Write("a line of " + project)
	}
	return nil
}

// site is a server with one of the configuration files, a bridge, and the mirrors.
type site struct {
	t      *testing.T
	server *server.Server
	certs  *certificates
	mutual bool
	world  *kubesuite.World
	bridge *kubesuite.Instance
}

// configuration is the folder of the configuration with the project bank added, as the head of
// accounts.conf says.
func configuration(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"accounts.conf", "nats.conf", "nats-tls.conf", "nats-mtls.conf"} {
		text, err := os.ReadFile(filepath.Join(deploy, name))
		if err != nil {
			t.Fatal(err)
		}
		if name == "accounts.conf" {
			text = []byte(addProject(t, string(text)))
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func addProject(t *testing.T, text string) string {
	t.Helper()
	bank := strings.NewReplacer("SHOP", "BANK", "shop", "bank")
	_, account, found := strings.Cut(text, "\n  SHOP {\n")
	account, _, closed := strings.Cut(account, "\n  }\n")
	if !found || !closed {
		t.Fatal("accounts.conf has no account SHOP")
	}
	account = "  SHOP {\n" + account + "\n  }\n"
	exports := regexp.MustCompile(`(?m)^      \{ (?:service|stream): .*accounts: \[ SHOP \] \}\n`).FindAllString(text, -1)
	if len(exports) == 0 {
		t.Fatal("accounts.conf exports nothing to SHOP")
	}
	last := exports[len(exports)-1]
	text = strings.Replace(text, last, last+bank.Replace(strings.Join(exports, "")), 1)
	return strings.Replace(text, account, account+bank.Replace(account), 1)
}

// password is that of a user in these tests.
func password(user string) string {
	if user == "bridge" {
		return bridgePassword
	}
	return "password-of-" + user
}

// environment sets what the configuration has as variables.
func environment(t *testing.T, dir string, certs *certificates) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "accounts.conf"))
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range regexp.MustCompile(`user: ([a-z-]+), password: \$([A-Z_]+)`).FindAllStringSubmatch(string(text), -1) {
		value := password(match[1])
		if match[1] == "bridge" {
			value = bridgeHash
		}
		t.Setenv(match[2], value)
	}
	t.Setenv("NATS_TLS_CERT", certs.file("server.crt"))
	t.Setenv("NATS_TLS_KEY", certs.file("server.key"))
	t.Setenv("NATS_TLS_CA", certs.file("ca.crt"))
}

// serve runs a server with a configuration file; change may be nil.
func serve(t *testing.T, conf string, change func(*server.Options)) *site {
	t.Helper()
	dir, certs := configuration(t), newCertificates(t)
	environment(t, dir, certs)
	opts, err := server.ProcessConfigFile(filepath.Join(dir, conf))
	if err != nil {
		t.Fatal(err)
	}
	opts.StoreDir, opts.Port = t.TempDir(), 0 // a free one
	if change != nil {
		change(opts)
	}
	s := &site{t: t, server: suite.NATS(t, opts)}
	if opts.TLSConfig != nil {
		s.certs, s.mutual = certs, opts.TLSConfig.ClientAuth == tls.RequireAndVerifyClientCert
	}
	return s
}

// url has the credentials of a user.
func (s *site) url(user string) string {
	return fmt.Sprintf("nats://%s:%s@%s", user, strings.ReplaceAll(password(user), " ", "%20"), s.server.Addr())
}

// options of the program for the server's TLS.
func (s *site) options() []string {
	var options []string
	if s.certs != nil {
		options = append(options, "--nats-tls-ca", s.certs.file("ca.crt"))
	}
	if s.mutual {
		options = append(options, "--nats-tls-cert", s.certs.file("client.crt"), "--nats-tls-key", s.certs.file("client.key"))
	}
	return options
}

// run starts a bridge with everything on, and makes the mirrors as the documentation says.
func (s *site) run(options ...string) {
	s.t.Helper()
	s.world = cluster.Get(s.t).Beside()
	s.world.NATS = s.url("bridge")
	s.t.Cleanup(func() {
		if err := s.world.Stop(); err != nil {
			s.t.Error(err)
		}
	})
	options = append(append(s.options(), "--enable-writes", "--base-domain", "apps.example.com", "--log-level", "debug"), options...)
	var err error
	if s.bridge, err = s.world.Serve(s.t.Context(), nil, options...); err != nil {
		s.t.Fatal(err)
	}
	for _, command := range mirrorCommands(s.t) {
		s.command(command)
	}
	for _, project := range []string{"shop", "bank"} {
		s.mirrored(project+"-admin", "FLYTE_APPS", 1)
		s.mirrored(project+"-admin", "KV_flyte-apps", 1)
	}
	s.mirrored("audit-admin", "FLYTE_APPS", 2)
}

// client connects as a user.
func (s *site) client(user string) *client {
	s.t.Helper()
	options := append([]nats.Option{
		nats.UserInfo(user, password(user)), nats.CustomInboxPrefix(inboxPrefix(user)), nats.Timeout(suite.Patience),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
	}, s.tls()...)
	nc, err := nats.Connect("nats://"+s.server.Addr().String(), options...)
	if err != nil {
		s.t.Fatalf("%s: %v", user, err)
	}
	s.t.Cleanup(nc.Close)
	return &client{site: s, user: user, nc: nc}
}

func (s *site) tls() []nats.Option {
	var options []nats.Option
	if s.certs != nil {
		options = append(options, nats.RootCAs(s.certs.file("ca.crt")))
	}
	if s.mutual {
		options = append(options, nats.ClientCert(s.certs.file("client.crt"), s.certs.file("client.key")))
	}
	return options
}

// inboxPrefix is that of a user: accounts.conf has those of the operators.
func inboxPrefix(user string) string {
	if strings.HasSuffix(user, "-operator") || user == "root" {
		return "_INBOX." + user
	}
	return "_INBOX"
}
