package main

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/x509roots/fallback/bundle"

	"github.com/appbridge/appbridge/testdata/testenv/configtest"
)

// A machine without CA certificates, as the image is, trusts the public ones. One that has its own
// trusts those only.
func TestRoots(t *testing.T) {
	dir := t.TempDir()
	private, _ := configtest.WriteKeyPair(t, dir, "private")
	var der []byte
	for root := range bundle.Roots() {
		certificate, err := x509.ParseCertificate(root.Certificate)
		if err != nil {
			t.Fatal(err)
		}
		if certificate.Subject.CommonName == "ISRG Root X1" {
			der = root.Certificate
		}
	}
	public := configtest.WriteFile(t, dir, "public.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const trusted, refused = "<nil>", "x509: certificate signed by unknown authority"
	for _, test := range []struct {
		name, file string
		want       []string // for public and private
	}{
		{"none on the machine", filepath.Join(dir, "missing"), []string{trusted, refused}},
		{"those of the machine", private, []string{refused, trusted}},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), program, public, private)
			cmd.Env = append(os.Environ(), asProgram+"="+beVerify, "SSL_CERT_FILE="+test.file, "SSL_CERT_DIR="+filepath.Join(dir, "missing"))
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v: %s", err, &stderr)
			}
			got := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
			for i, want := range test.want {
				if i >= len(got) || !strings.HasPrefix(got[i], want) {
					t.Errorf("public and private: got %q, want %q", got, test.want)
				}
			}
		})
	}
}
