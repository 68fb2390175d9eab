package config

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/appbridge/appbridge/testdata/testenv/configtest"
)

// accountToken is a token as Kubernetes issues it for a service account, but for the signature.
func accountToken(namespace, name string) string {
	claims := fmt.Sprintf(`{"iss": "https://kubernetes.default.svc", "sub": "system:serviceaccount:%s:%s"}`, namespace, name)
	return "eyJhbGciOiJSUzI1NiJ9." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
}

func TestOwnServiceAccount(t *testing.T) {
	token := accountToken("flyte", "appbridge")
	file := configtest.WriteFile(t, t.TempDir(), "token", token+"\n")
	for _, tt := range []struct {
		name       string
		cfg        rest.Config
		namespaces []string
		want       string
	}{
		{"token", rest.Config{BearerToken: token}, []string{"a", "flyte"}, "appbridge"},
		{"file", rest.Config{BearerTokenFile: file}, []string{"flyte"}, "appbridge"},
		{"a file wins over what was read from it", rest.Config{BearerTokenFile: file, BearerToken: accountToken("flyte", "old")}, []string{"flyte"}, "appbridge"},
		{"all namespaces", rest.Config{BearerToken: token}, []string{"*"}, "appbridge"},
		{"another namespace", rest.Config{BearerToken: token}, []string{"a"}, ""},
		{"impersonated", rest.Config{BearerToken: token, Impersonate: rest.ImpersonationConfig{UserName: "system:serviceaccount:flyte:other"}}, []string{"flyte"}, "other"},
		{"impersonated user", rest.Config{BearerToken: token, Impersonate: rest.ImpersonationConfig{UserName: "ann"}}, []string{"flyte"}, ""},
		{"no token", rest.Config{}, []string{"flyte"}, ""},
		{"token of another kind", rest.Config{BearerToken: "a.b.c"}, []string{"flyte"}, ""},
		{"no such file", rest.Config{BearerTokenFile: file + "x"}, []string{"flyte"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := ownServiceAccount(&tt.cfg, tt.namespaces); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// Apps do not get the service account of appbridge by default: that is refused at the start, with
// what else is wrong.
func TestOwnAccountByDefault(t *testing.T) {
	dir := t.TempDir()
	as := func(name string) string {
		path := dir + "/" + name
		err := clientcmd.WriteToFile(clientcmdapi.Config{
			Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: "https://127.0.0.1:1"}},
			AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {Token: accountToken("flyte", name)}},
			Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
			CurrentContext: "x",
		}, path)
		if err != nil {
			t.Fatal(err)
		}
		return "--kubeconfig=" + path
	}
	for _, tt := range []struct {
		name string
		args []string
		want []string
	}{
		{"an account of its own", []string{as("appbridge"), "--enable-writes"}, nil},
		{"listed", []string{as("appbridge"), "--enable-writes", "--allowed-service-accounts=appbridge"}, nil}, // which allows nothing
		{"configured", []string{as("appbridge"), "--enable-writes", "--default-service-account=appbridge"}, []string{`default-service-account: "appbridge": the service account of appbridge itself`}},
		{"default", []string{as("default"), "--enable-writes", "--max-app-writes=0"}, []string{"max-app-writes", `default-service-account: not set, and apps that name none would run as "default"`}},
		{"default, and apps have another", []string{as("default"), "--enable-writes", "--default-service-account=apps"}, nil},
		{"no writes", []string{as("default")}, nil},
		{"elsewhere", []string{as("default"), "--enable-writes", "--namespaces=apps"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Load(Serve, tt.args, nil)
			if (err != nil) != (tt.want != nil) {
				t.Fatalf("got %v, want %q", err, tt.want)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q in it", err, want)
				}
			}
		})
	}
}
