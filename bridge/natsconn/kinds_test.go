package natsconn_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/testdata/testenv/configtest"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// kind is a kind of identity.
type kind interface {
	// next makes another identity and returns the settings of the server that accept no other.
	next() string
	// files are those of the identity, by name.
	files() map[string]string
	// broken are contents that a client cannot use, by name of the file.
	broken() map[string]string
	// config is that of a client whose files are in a folder.
	config(dir string) natsconn.Config
	// secrets must not be logged.
	secrets() []string
}

// secret is a password or a token.
type secret struct {
	n        int
	file     string
	settings func(string) string
	of       func(path string) natsconn.Config
}

func passwordSettings(password string) string {
	return fmt.Sprintf("authorization {timeout: 300, users: [{user: bridge, password: %q}]}", password)
}

func newPasswords(*testing.T) kind {
	return &secret{
		file: "password", settings: passwordSettings,
		of: func(path string) natsconn.Config { return natsconn.Config{User: "bridge", PasswordFile: path} },
	}
}

func newTokens(*testing.T) kind {
	return &secret{
		file: "token", settings: func(token string) string { return fmt.Sprintf("authorization {timeout: 300, token: %q}", token) },
		of: func(path string) natsconn.Config { return natsconn.Config{TokenFile: path} },
	}
}

func (s *secret) text() string { return fmt.Sprintf("hunter %d", s.n) }

func (s *secret) next() string {
	s.n++
	return s.settings(s.text())
}

func (s *secret) files() map[string]string          { return map[string]string{s.file: s.text() + "\r\n"} }
func (s *secret) broken() map[string]string         { return map[string]string{s.file: "\n"} }
func (s *secret) config(dir string) natsconn.Config { return s.of(filepath.Join(dir, s.file)) }
func (s *secret) secrets() []string                 { return []string{"hunter"} }

type userKey struct {
	t    *testing.T
	seed string
	all  []string
}

func newNKeys(t *testing.T) kind { return &userKey{t: t} }

func (k *userKey) next() string {
	k.seed = configtest.NewSeed(k.t)
	k.all = append(k.all, k.seed)
	return fmt.Sprintf("authorization {timeout: 300, users: [{nkey: %s}]}", configtest.PublicKey(k.t, k.seed))
}
func (k *userKey) files() map[string]string  { return map[string]string{"user.nk": k.seed + "\n"} }
func (k *userKey) broken() map[string]string { return map[string]string{"user.nk": k.seed[:30]} }
func (k *userKey) config(dir string) natsconn.Config {
	return natsconn.Config{NKey: filepath.Join(dir, "user.nk")}
}
func (k *userKey) secrets() []string { return k.all }

// credentials are user JWTs of one account, which revokes each when the next is issued.
type credentials struct {
	t       *testing.T
	issuer  *configtest.Issuer
	seeds   []string
	content string // of the present user
}

func newCreds(t *testing.T) kind { return &credentials{t: t, issuer: configtest.NewIssuer(t)} }

func (c *credentials) next() string {
	if n := len(c.seeds); n > 0 {
		c.issuer.Revoke(c.seeds[n-1])
	}
	seed := configtest.NewSeed(c.t)
	c.seeds, c.content = append(c.seeds, seed), c.issuer.Issue(seed, time.Time{})
	return "authorization {timeout: 300}\n" + c.issuer.Settings()
}

func (c *credentials) files() map[string]string { return map[string]string{"user.creds": c.content} }

func (c *credentials) broken() map[string]string {
	return map[string]string{"user.creds": c.content[:len(c.content)/4]}
}

func (c *credentials) config(dir string) natsconn.Config {
	return natsconn.Config{Creds: filepath.Join(dir, "user.creds")}
}
func (c *credentials) secrets() []string { return c.seeds }

// TestExpiry: a server closes the connection of a user whose JWT has expired, and refuses it until
// the file holds another one.
func TestExpiry(t *testing.T) {
	t.Parallel()
	issuer, dir := configtest.NewIssuer(t), t.TempDir()
	s := suite.NATSReloadable(t, "authorization {timeout: 300}\n"+issuer.Settings())
	valid := func(d time.Duration) {
		creds := issuer.Issue(configtest.NewSeed(t), time.Now().Add(d))
		configtest.ReplaceFiles(t, dir, map[string]string{"user.creds": creds})
	}
	valid(time.Hour) // it is final when the server refuses the first one
	conn := connect(t, s, natsconn.Config{Creds: filepath.Join(dir, "user.creds")}, zap.NewNop())
	eventually(t, "the connection", func() error { return connected(conn) })
	valid(3 * time.Second)
	kick(s, conn)
	eventually(t, "the server refuses the expired JWT", func() error {
		if conn.NATS.IsConnected() {
			return fmt.Errorf("still connected")
		}
		return reason(conn, "uthori")
	})
	valid(time.Hour)
	eventually(t, "the connection with the next one", func() error { return connected(conn) })
}

// certificates are a pair for the server and one for the client, each its own authority.
type certificates struct {
	t   *testing.T
	n   int
	dir string
}

func newCertificates(t *testing.T) kind { return &certificates{t: t, dir: t.TempDir()} }

func (c *certificates) path(name, ending string) string {
	return filepath.Join(c.dir, fmt.Sprintf("%s-%d.%s", name, c.n, ending))
}

func (c *certificates) next() string {
	c.n++
	for _, name := range []string{"server", "client"} {
		configtest.WriteKeyPair(c.t, c.dir, fmt.Sprintf("%s-%d", name, c.n))
	}
	return fmt.Sprintf("tls {cert_file: %q, key_file: %q, ca_file: %q, verify: true, timeout: 300}",
		c.path("server", "crt"), c.path("server", "key"), c.path("client", "crt"))
}

func (c *certificates) files() map[string]string {
	return map[string]string{
		"ca.pem": c.read("server", "crt"), "client.crt": c.read("client", "crt"), "client.key": c.read("client", "key"),
	}
}

func (c *certificates) read(name, ending string) string {
	content, err := os.ReadFile(c.path(name, ending))
	if err != nil {
		c.t.Fatal(err)
	}
	return string(content)
}

func (c *certificates) broken() map[string]string {
	return map[string]string{"ca.pem": missing, "client.crt": c.read("client", "crt")[:100]}
}

func (c *certificates) config(dir string) natsconn.Config {
	return natsconn.Config{
		TLSCA: filepath.Join(dir, "ca.pem"), TLSCert: filepath.Join(dir, "client.crt"), TLSKey: filepath.Join(dir, "client.key"),
	}
}
func (c *certificates) secrets() []string { return []string{"PRIVATE"} }
