package config

import (
	"strings"
	"testing"

	"github.com/appbridge/appbridge/testdata/testenv/configtest"
)

func TestSecretsAreNeverPrinted(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	seed := configtest.NewSeed(t)
	configtest.WriteFile(t, dir, "url.yaml", "nats-url: [\"nats://u:hunter2@a:1\", \"nats://u:hunter2@b:bad\"]\n\"nats://u:hunter2@x\": 1\n")
	configtest.WriteFile(t, dir, "no-jwt.creds", "-----BEGIN USER NKEY SEED-----\n"+seed+"\n------END USER NKEY SEED------\n")
	configtest.WriteFile(t, dir, "half.nk", seed[:40])
	configtest.WriteFile(t, dir, "lines", "hunter2\nhunter2\n")
	configtest.WriteFile(t, dir, "line", "hunter2\n")
	configtest.WriteFile(t, dir, "kube", "apiVersion: v1\nkind: Config\nusers: hunter2\n")
	cases := []struct {
		name          string
		args, environ []string
	}{
		{"bad port", []string{"--nats-url=nats://u:hunter2@host:99999"}, nil},
		{"slash in the password", []string{"--nats-url=nats://u:hun/hunter2@host"}, nil},
		{"comma in the password", []string{"--nats-url=nats://u:hunter2,hunter2@host"}, nil},
		{"at in the password", []string{"--nats-url=nats://u:hunter2@hunter2@host:x"}, nil},
		{"no scheme", []string{"--nats-url=u:hunter2@host:x"}, nil},
		{"several", nil, []string{"APPBRIDGE_NATS_URL=http://hunter2@a,nats://u:hunter2@b"}},
		{"in a file", []string{"--config=url.yaml"}, nil},
		{"unknown variable", nil, []string{"APPBRIDGE_NATS_PASSWORD=hunter2"}},
		{"unknown flag", []string{"--nats-password=hunter2", "--nats-token", "hunter2"}, nil},
		{"one dash", []string{"-nats-url=nats://u:hunter2@host"}, nil},
		{"not a flag", []string{"---x=hunter2"}, nil},
		{"stray URL", []string{"nats://u:hunter2@host"}, nil},
		{"contradiction", []string{"--nats-embedded", "--nats-url=nats://u:hunter2@host"}, nil},
		{"seed for a file", []string{"--nats-nkey=" + seed, "--nats-creds", configtest.FakeJWT}, nil},
		{"credentials for a file", nil, []string{"APPBRIDGE_NATS_CREDS=-----BEGIN USER NKEY SEED-----\n" + seed}},
		{"half credentials", []string{"--nats-creds=no-jwt.creds"}, nil},
		{"password for a file", []string{"--nats-user=u", "--nats-password-file=hunter2"}, nil},
		{"token for a file", nil, []string{"APPBRIDGE_NATS_TOKEN_FILE=hunter2"}},
		{"password of two lines", []string{"--nats-user=u", "--nats-password-file=lines"}, nil},
		{"token and user", []string{"--nats-user=u", "--nats-password-file=line", "--nats-token-file=line"}, nil},
		{"user and URL", []string{"--nats-url=nats://u:hunter2@host", "--nats-token-file=line"}, nil},
		{"half seed", []string{"--nats-nkey=half.nk"}, nil},
		{"kubeconfig", []string{"--kubeconfig=kube"}, nil},
		{"comma in a variable", []string{"--default-env=PASSWORD=a,hunter2"}, nil},
		{"backslash in a variable", []string{`--default-env=PASSWORD=hunter2\x`}, nil},
		{"variable without a name", nil, []string{"APPBRIDGE_DEFAULT_ENV==hunter2"}},
		{"variable that is not text", []string{"--default-env=PASSWORD=hunter2\xff"}, nil},
		{"variable twice", []string{"--default-env=A=hunter2", "--default-env=A=hunter2"}, nil},
	}
	for _, test := range cases {
		t.Run(test.name, func(t *testing.T) {
			_, _, err := load(Serve, test.args, test.environ)
			if err == nil {
				t.Fatal("got no error")
			}
			for _, secret := range []string{"hunter2", seed, seed[:40], configtest.FakeJWT} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("got %q with the secret %q in it", err, secret)
				}
			}
		})
	}
}
