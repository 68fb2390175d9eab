package natsconn

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// Errors of files that do not hold what they should. They quote nothing of a file.
var (
	errNoJWT   = errors.New("it holds no user JWT")
	errNoSeed  = errors.New("it holds no user seed")
	errNoCerts = errors.New("it holds no certificate")
	errEmpty   = errors.New("it is empty")
	errLines   = errors.New("it holds more than one line")
)

// identity is what the files of a [Config] held when they were read. All parts are of one reading:
// a JWT goes with its seed and a certificate with its key.
type identity struct {
	password    string
	token       string
	jwt         string
	key         nkeys.KeyPair // signs for jwt or public; nil: none
	public      string        // of the nkey
	certificate tls.Certificate
	authorities *x509.CertPool
}

// read reads the files. An error names the option and the file.
func (c Config) read() (*identity, error) {
	var id identity
	for _, file := range []struct {
		option, path string
		read         func(path string) error
	}{
		{"nats-creds", c.Creds, id.readCreds},
		{"nats-nkey", c.NKey, id.readNKey},
		{"nats-password-file", c.PasswordFile, func(path string) (err error) { id.password, err = ReadSecret(path); return err }},
		{"nats-token-file", c.TokenFile, func(path string) (err error) { id.token, err = ReadSecret(path); return err }},
		{"nats-tls-ca", c.TLSCA, id.readAuthorities},
		{"nats-tls-cert", c.TLSCert, func(path string) (err error) { id.certificate, err = tls.LoadX509KeyPair(path, c.TLSKey); return err }},
	} {
		if file.path == "" {
			continue
		}
		if err := file.read(file.path); err != nil {
			return nil, fmt.Errorf("%s %s: %w", file.option, file.path, err)
		}
	}
	return &id, nil
}

func (id *identity) readCreds(path string) error {
	content, err := readFile(path)
	if err != nil {
		return err
	}
	// The parser returns the first block for the JWT, or the whole file without one. A
	// seed or a half-written file must not be sent to the server.
	if id.jwt, err = nkeys.ParseDecoratedJWT(content); err != nil || !isJWT(id.jwt) {
		return errNoJWT
	}
	if id.key, err = nkeys.ParseDecoratedUserNKey(content); err != nil {
		return errNoSeed
	}
	return nil
}

// isJWT reports whether a text has the form of a JWT: three parts in base64, the first of
// which is a JSON object.
func isJWT(text string) bool {
	parts := strings.Split(text, ".")
	if len(parts) != 3 || !strings.HasPrefix(text, "eyJ") {
		return false
	}
	for _, part := range parts {
		if _, err := base64.RawURLEncoding.DecodeString(part); err != nil || part == "" {
			return false
		}
	}
	return true
}

func (id *identity) readNKey(path string) error {
	content, err := readFile(path)
	if err != nil {
		return err
	}
	if id.key, err = nkeys.ParseDecoratedUserNKey(content); err != nil {
		return errNoSeed
	}
	if id.public, err = id.key.PublicKey(); err != nil {
		return errNoSeed
	}
	return nil
}

func (id *identity) readAuthorities(path string) error {
	content, err := readFile(path)
	if err != nil {
		return err
	}
	id.authorities = x509.NewCertPool()
	if !id.authorities.AppendCertsFromPEM(content) {
		return errNoCerts
	}
	return nil
}

// CheckCreds reads a credentials file as a connection does.
func CheckCreds(path string) error { return new(identity).readCreds(path) }

// CheckNKey reads a file with the seed of a user nkey as a connection does.
func CheckNKey(path string) error { return new(identity).readNKey(path) }

// CheckAuthorities reads a PEM file of authorities as a connection does.
func CheckAuthorities(path string) error { return new(identity).readAuthorities(path) }

// ReadSecret reads a password or a token, which is a file's only line. Line ends behind it are
// dropped, other white space is a part of it.
func ReadSecret(path string) (string, error) {
	content, err := readFile(path)
	if err != nil {
		return "", err
	}
	secret := bytes.TrimRight(content, "\r\n")
	switch {
	case len(secret) == 0:
		return "", errEmpty
	case bytes.ContainsAny(secret, "\r\n"):
		return "", errLines
	}
	return string(secret), nil
}

// readFile drops the path from an error: who reports it names the path.
func readFile(path string) ([]byte, error) {
	content, err := os.ReadFile(path)
	if pathError, ok := errors.AsType[*os.PathError](err); ok {
		return nil, pathError.Err
	}
	return content, err
}

// options make the client ask d for the identity at every connection.
func (c Config) options(d *dialer) nats.Option {
	return func(o *nats.Options) error {
		if c.Creds != "" {
			o.UserJWT = func() (string, error) { return d.identity().jwt, nil }
		}
		if c.NKey != "" {
			o.Nkey = d.identity().public // later ones: see dialer.identify
		}
		if c.Creds != "" || c.NKey != "" {
			o.SignatureCB = func(nonce []byte) ([]byte, error) { return d.identity().key.Sign(nonce) }
		}
		if c.PasswordFile != "" {
			o.UserInfo = func() (string, string) { return c.User, d.identity().password }
		}
		if c.TokenFile != "" {
			o.TokenHandler = func() string { return d.identity().token }
		}
		if c.TLSCA != "" || c.TLSCert != "" {
			o.Secure, o.TLSConfig = true, &tls.Config{MinVersion: tls.VersionTLS12}
		}
		if c.TLSCA != "" {
			o.RootCAsCB = func() (*x509.CertPool, error) { return d.identity().authorities, nil }
		}
		if c.TLSCert != "" {
			o.TLSCertCB = func() (tls.Certificate, error) { return d.identity().certificate, nil }
		}
		return nil
	}
}
