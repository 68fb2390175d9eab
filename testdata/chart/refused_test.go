package chart

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// TestRefused: wrong values are refused with the name of the field.
func TestRefused(t *testing.T) {
	t.Parallel()
	suite.Slow(t, "builds Helm")
	for name, test := range map[string]struct {
		set  []string
		want []string // in the error
	}{
		"unknown value":               {[]string{"replicaCount=3"}, []string{"replicaCount"}},
		"unknown value of a part":     {[]string{"image.tags=v1"}, []string{"/image", "tags"}},
		"unknown option":              {[]string{"config.nats-urls=nats://n:4222"}, []string{"/config", "nats-urls"}},
		"option of another command":   {[]string{"config.repair=true"}, []string{"/config", "repair"}},
		"text for a number":           {[]string{"replicas=two"}, []string{"/replicas", "want integer"}},
		"text for a switch":           {[]string{"config.enable-writes=yes"}, []string{"/config/enable-writes", "want boolean"}},
		"number out of its range":     {[]string{"config.stream-replicas=6"}, []string{"/config/stream-replicas", "6"}},
		"number for a duration":       {[]string{"config.flush-timeout=10"}, []string{"/config/flush-timeout", "want string"}},
		"duration without a unit":     {[]string{"config.flush-timeout=10sec"}, []string{"/config/flush-timeout", "10sec"}},
		"bytes with a wrong unit":     {[]string{"config.pending-bytes=1MB"}, []string{"/config/pending-bytes", "1MB"}},
		"word that is not one of two": {[]string{"config.encoding=xml"}, []string{"/config/encoding", "json", "protobuf"}},
		"text for a list":             {[]string{"config.namespaces=flyte"}, []string{"/config/namespaces", "want array"}},
		"no namespace":                {[]string{"config.namespaces=null"}, []string{"/config", "namespaces"}},
		"namespace with a capital":    {[]string{"config.namespaces={Flyte}"}, []string{"/config/namespaces/0", "Flyte"}},
		"all and one":                 {[]string{"config.namespaces={*,flyte}"}, []string{"config.namespaces", "alone"}},
		"the release's own namespace": {[]string{"config.namespaces={bridge}"}, []string{"config.namespaces", `"bridge"`}},
		"metrics on the loopback":     {[]string{"config.http-listen=127.0.0.1:8080"}, []string{"/config/http-listen", "127.0.0.1:8080"}},
		"file outside of a Secret":    {[]string{"config.nats-creds=/tmp/user.creds"}, []string{"/config/nats-creds", "/tmp/user.creds"}},
		"file of a Secret not mounted": {
			[]string{"config.nats-creds=/etc/appbridge/secrets/nats/user.creds", "secrets={tls}"}, []string{"config.nats-creds", `"nats"`},
		},
		"two replicas, embedded":         {[]string{"config.nats-embedded=true"}, []string{"replicas", "config.nats-embedded"}},
		"two replicas, no election":      {[]string{"config.leader-elect=false"}, []string{"replicas", "config.leader-elect"}},
		"another server beside embedded": {[]string{"config.nats-embedded=true", "replicas=1", "config.nats-url={nats://n:4222}"}, []string{"config.nats-url", "config.nats-embedded"}},
		"namespaces without the rights":  {[]string{"rbac.createNamespaces=true"}, []string{"rbac.createNamespaces", "config.enable-writes"}},
		"no service account":             {[]string{"serviceAccount.create=false"}, []string{"serviceAccount.name"}},
		"no port of the API server":      {[]string{"networkPolicy.apiServerPorts=null"}, []string{"/networkPolicy", "apiServerPorts"}},
		"NATS at any address by null":    {[]string{"networkPolicy.natsTo=null"}, []string{"/networkPolicy", "natsTo"}},
		"password in a URL":              {[]string{"config.nats-url={nats://u:secret@n:4222}"}, []string{"/config/nats-url/0"}},
		"no memory limit":                {[]string{"resources.limits.memory=null"}, []string{"/resources/limits", "memory"}},
		"memory limit without a unit":    {[]string{"resources.limits.memory=512"}, []string{"/resources/limits/memory"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var args []string
			for _, set := range test.set {
				args = append(args, "--set", set)
			}
			_, err := template(t, "appbridge", "bridge", args...)
			if err == nil {
				t.Fatal("it is rendered")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q in it", err, want)
				}
			}
		})
	}
}

// TestConfigurationRestartsPods: a change of the configuration changes the pods' template, another
// change does not.
func TestConfigurationRestartsPods(t *testing.T) {
	t.Parallel()
	suite.Slow(t, "builds Helm")
	checksum := func(args ...string) string {
		t.Helper()
		var deployment appsv1.Deployment
		render(t, "restart", args...).get(t, "Deployment", "", &deployment)
		return deployment.Spec.Template.Annotations["checksum/config"]
	}
	before := checksum()
	if before == "" {
		t.Fatal("no checksum")
	}
	if got := checksum("--set", "config.max-delay=40s"); got == before {
		t.Errorf("with another configuration: got the same checksum %s", got)
	}
	if got := checksum("--set", "podMonitor.interval=10s"); got != before {
		t.Errorf("with the same configuration: got %s, want %s", got, before)
	}
}
