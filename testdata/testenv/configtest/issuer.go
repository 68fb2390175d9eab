package configtest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
)

// ReplaceFiles writes files, by name, as an operator should: each appears as a whole.
func ReplaceFiles(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		unfinished := WriteFile(t, dir, name+".new", content)
		if err := os.Rename(unfinished, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// PublicKey is the public key of a seed.
func PublicKey(t testing.TB, seed string) string {
	t.Helper()
	pair, err := nkeys.FromSeed([]byte(seed))
	if err != nil {
		t.Fatal(err)
	}
	return publicKey(t, pair)
}

func publicKey(t testing.TB, pair nkeys.KeyPair) string {
	t.Helper()
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return public
}

// Issuer issues the credentials of users of one account, which may use JetStream.
type Issuer struct {
	t                 testing.TB
	operator, account nkeys.KeyPair
	claims            *jwt.AccountClaims
	preload           string // of the operator, and of its system account
}

// NewIssuer makes an operator and an account.
func NewIssuer(t testing.TB) *Issuer {
	t.Helper()
	i := &Issuer{t: t, operator: newPair(t, nkeys.CreateOperator), account: newPair(t, nkeys.CreateAccount)}
	system := publicKey(t, newPair(t, nkeys.CreateAccount))
	i.claims = jwt.NewAccountClaims(publicKey(t, i.account))
	i.claims.Limits.DiskStorage = jwt.NoLimit
	i.claims.Limits.MemoryStorage = jwt.NoLimit
	i.preload = fmt.Sprintf("operator: %s\nsystem_account: %s\nresolver: MEMORY\nresolver_preload {%s: %s, ",
		i.encode(jwt.NewOperatorClaims(publicKey(t, i.operator)), i.operator), system, system, i.encode(jwt.NewAccountClaims(system), i.operator))
	return i
}

func newPair(t testing.TB, create func() (nkeys.KeyPair, error)) nkeys.KeyPair {
	t.Helper()
	pair, err := create()
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func (i *Issuer) encode(claims jwt.Claims, signer nkeys.KeyPair) string {
	text, err := claims.Encode(signer)
	if err != nil {
		i.t.Fatal(err)
	}
	return text
}

// Issue makes the credentials of a user, valid until a time if it is not zero.
func (i *Issuer) Issue(seed string, until time.Time) string {
	i.t.Helper()
	claims := jwt.NewUserClaims(PublicKey(i.t, seed))
	if !until.IsZero() {
		claims.Expires = until.Unix()
	}
	content, err := jwt.FormatUserConfig(i.encode(claims, i.account), []byte(seed))
	if err != nil {
		i.t.Fatal(err)
	}
	return string(content)
}

// Revoke makes the next Settings refuse a user.
func (i *Issuer) Revoke(seed string) { i.claims.Revoke(PublicKey(i.t, seed)) }

// Settings are those of a server that accepts the account's users.
func (i *Issuer) Settings() string {
	i.t.Helper()
	return fmt.Sprintf("%s%s: %s}\n", i.preload, publicKey(i.t, i.account), i.encode(i.claims, i.operator))
}
