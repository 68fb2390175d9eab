package accounts_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

const (
	docs = "../../docs"
	page = "security.md"
)

// users are the columns of the table.
func users() []string {
	return []string{"bridge", "log-operator", "app-operator", "shop", "shop-admin", "auditor", "audit-admin", "monitor", "sys"}
}

// table is what works for whom, in Markdown.
func (s *site) table() string {
	var text strings.Builder
	fmt.Fprintf(&text, "| | `%s` |\n|%s\n", strings.Join(users(), "` | `"), strings.Repeat(" --- |", len(users())+1))
	for _, a := range actions() {
		fmt.Fprintf(&text, "| %s |", a.name)
		for _, user := range users() {
			ctx, cancel := context.WithTimeout(s.t.Context(), suite.Patience)
			c := s.client(user)
			err := a.do(ctx, c)
			cancel()
			c.nc.Close()
			switch {
			case err == nil:
				text.WriteString(" yes |")
			case errors.Is(err, errRefused):
				text.WriteString(" - |")
				s.t.Logf("%s: %s: %s", user, a.name, strings.ReplaceAll(err.Error(), "\n", "; "))
			default:
				text.WriteString(" ? |")
				s.t.Errorf("%s: %s: %v", user, a.name, err)
			}
		}
		text.WriteString("\n")
	}
	return text.String()
}

// What works for each user is what the documentation has, on every configuration.
func TestAccounts(t *testing.T) {
	want := documented(t)
	for _, conf := range []string{"nats.conf", "nats-tls.conf", "nats-mtls.conf"} {
		t.Run(conf, func(t *testing.T) {
			s := serve(t, conf, nil)
			s.run()
			s.answers()
			s.strangers()
			s.stockTools()
			got := s.table()
			t.Logf("what works with %s:\n%s", conf, got)
			for _, project := range []string{"shop", "bank"} {
				// The next bridge finds the cluster as this one did.
				if _, err := s.client("app-operator").request("flyte.apps.api.delete."+project+".production.made", ""); err != nil {
					t.Error(err)
				}
			}
			if got != want {
				t.Errorf("docs/%s has\n%s", page, want)
			}
		})
	}
}

// strangers are not let in: without a user, with a wrong password, and without what TLS wants.
func (s *site) strangers() {
	s.t.Helper()
	credentials := nats.UserInfo("shop", password("shop"))
	lacks := map[string][]nats.Option{
		"a user": s.tls(), "the right password": append(s.tls(), nats.UserInfo("shop", bridgePassword)),
	}
	if s.certs != nil {
		lacks["the authority"] = []nats.Option{credentials}
	}
	if s.mutual {
		lacks["a certificate"] = []nats.Option{credentials, nats.RootCAs(s.certs.file("ca.crt"))}
	}
	for what, options := range lacks {
		nc, err := nats.Connect("nats://"+s.server.Addr().String(), append(options, nats.Timeout(suite.Patience))...)
		if err == nil {
			nc.Close()
			s.t.Errorf("a client without %s is connected", what)
			continue
		}
		s.t.Logf("without %s: %v", what, err)
	}
}

// stockTools runs the other commands of the documentation.
func (s *site) stockTools() {
	s.t.Helper()
	for begins, wants := range map[string][]string{
		"nats --user shop --password change-me kv get": {
			`"project":"shop"`, "shop.production.storefront\n", "flyte.apps.events.shop.production.storefront.created", "a line of shop", "a line of shop",
		},
		"appbridge logs --log-inbox-prefix": {"a line of bank", `"bank"`},
		"nats --user monitor":               {"flyte-apps"},
	} {
		commands := strings.Split(strings.TrimSpace(suite.Block(s.t, filepath.Join(docs, page), begins)), "\n")
		if len(commands) != len(wants) {
			s.t.Fatalf("docs/%s has the commands %q, want %d", page, commands, len(wants))
		}
		for i, command := range commands {
			if got := s.command(command); !strings.Contains(got, wants[i]) || strings.Contains(got, "bank") && !strings.Contains(command, "operator") {
				s.t.Errorf("%s prints\n%s\nwant %q and nothing of bank", command, got, wants[i])
			}
		}
	}
}

// answers waits until the bridge's services listen.
func (s *site) answers() {
	s.t.Helper()
	for user, subject := range map[string]string{
		"log-operator": "flyte.apps.logs.tail.shop.production.storefront", "app-operator": "flyte.apps.api.list",
	} {
		suite.Eventually(s.t, suite.Patience, subject+" is answered", func() error {
			c := s.client(user)
			defer c.nc.Close()
			_, err := c.request(subject, "")
			return err
		})
	}
}

// documented is the table of the documentation.
func documented(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(docs, page))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(text), "\n")
	first := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "| | `bridge` |") })
	if first < 0 {
		t.Fatalf("docs/%s has no table of the users", page)
	}
	last := slices.IndexFunc(lines[first:], func(line string) bool { return !strings.HasPrefix(line, "|") })
	return strings.Join(lines[first:first+last], "")
}
