package config

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// The client's own rate limit, against mistakes: the informers make a handful of requests.
const (
	kubeQPS   = 50
	kubeBurst = 100
)

// findCluster sets how to reach the cluster. A kubeconfig that load has refused is reported
// already. One that nothing names is searched for when nothing else is wrong.
func (c *Config) findCluster(set settings, found *problems) {
	if _, given := set["kubeconfig"]; c.Kubeconfig == "" && (given || len(*found) > 0) {
		return
	}
	kube, err := restConfig(c.Kubeconfig)
	if err != nil {
		found.add("%s", err)
		return
	}
	kube.QPS, kube.Burst = kubeQPS, kubeBurst
	c.Kube = kube
	c.checkOwnAccount(found)
}

// checkOwnAccount rejects a default that runs apps as the service account of this program.
func (c Config) checkOwnAccount(found *problems) {
	switch own := ownServiceAccount(c.Kube, c.Namespaces); {
	case !c.EnableWrites || own == "" || own != cmp.Or(c.Deploy.DefaultServiceAccount, "default"):
	case c.Deploy.DefaultServiceAccount == "":
		found.add("default-service-account: not set, and apps that name none would run as %q, the service account of appbridge itself: want another one, or a service account of its own for appbridge", own)
	default:
		found.add("default-service-account: %q: the service account of appbridge itself: want another one", own)
	}
}

// restConfig is the file at path, else the pod's service account, else the default
// kubeconfig. An error has one line.
func restConfig(path string) (*rest.Config, error) {
	if path != "" {
		cfg, err := fromKubeconfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: path})
		if err != nil {
			return nil, fmt.Errorf("kubeconfig: %w", err)
		}
		return cfg, nil
	}
	cfg, podErr := rest.InClusterConfig()
	if podErr == nil {
		return cfg, nil
	}
	cfg, err := fromKubeconfig(clientcmd.NewDefaultClientConfigLoadingRules())
	if err == nil {
		return cfg, nil
	}
	reasons := "this is not a pod"
	if !errors.Is(podErr, rest.ErrNotInCluster) {
		reasons = "the pod's service account: " + podErr.Error()
	}
	return nil, fmt.Errorf("kubeconfig: no cluster to watch: name a kubeconfig with --kubeconfig (%s; $%s or %s: %w)",
		reasons, clientcmd.RecommendedConfigPathEnvVar, clientcmd.RecommendedHomeFile, err)
}

func fromKubeconfig(rules *clientcmd.ClientConfigLoadingRules) (*rest.Config, error) {
	rules.WarnIfAllMissing = false // the error has it, and the library's loggers are not routed yet
	raw, err := rules.Load()
	if err != nil {
		return nil, withoutPath(err)
	}
	cfg, err := clientcmd.NewNonInteractiveClientConfig(*raw, "", &clientcmd.ConfigOverrides{}, rules).ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, errors.New("no cluster in it")
	case err != nil:
		return nil, errors.New(strings.TrimPrefix(err.Error(), "invalid configuration: "))
	}
	return cfg, nil
}

func checkKubeconfig(path string) error {
	_, err := fromKubeconfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: path})
	return err
}

// ownServiceAccount is the name of this process's service account as its token claims, known
// without a request. It is empty for a client certificate, a credential plugin, and an account of
// a namespace that is not watched, where no app is.
func ownServiceAccount(cfg *rest.Config, namespaces []string) string {
	user, token := cfg.Impersonate.UserName, cfg.BearerToken
	if cfg.BearerTokenFile != "" {
		if data, err := os.ReadFile(cfg.BearerTokenFile); err == nil {
			token = strings.TrimSpace(string(data))
		}
	}
	if parts := strings.Split(token, "."); user == "" && len(parts) == 3 {
		var claims struct {
			Subject string `json:"sub"`
		}
		payload, err := base64.RawURLEncoding.DecodeString(parts[1])
		if err == nil && json.Unmarshal(payload, &claims) == nil {
			user = claims.Subject
		}
	}
	account, found := strings.CutPrefix(user, "system:serviceaccount:")
	namespace, name, _ := strings.Cut(account, ":")
	if !found || !allNamespaces(namespaces) && !slices.Contains(namespaces, namespace) {
		return ""
	}
	return name
}

func ownNamespace() (string, error) {
	data, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(data)), nil
}
