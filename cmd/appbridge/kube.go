package main

import (
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

// The client's own rate limit. The informers make a handful of requests; the
// limit is there for what a mistake could do, not for the normal course.
const (
	kubeQPS   = 50
	kubeBurst = 100
)

// kubeConfig says how to reach the cluster: by the file at path, else by the
// pod's service account, else by the default kubeconfig. An error is a
// configuration error of one line.
func kubeConfig(path string) (*rest.Config, error) {
	cfg, err := findCluster(path)
	if err != nil {
		return nil, err
	}
	cfg.QPS, cfg.Burst = kubeQPS, kubeBurst
	cfg.UserAgent = "appbridge/" + currentBuild().Version
	return cfg, nil
}

func findCluster(path string) (*rest.Config, error) {
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
	rules.WarnIfAllMissing = false // the error says it, and the library's loggers are not routed yet
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

// ownServiceAccount is the name of the service account that this process is in the cluster; empty
// when it is none, or one of a namespace that is not watched, where no app is. It is what the token
// claims, so that it is known without a request: a client certificate is no service account, and
// a credential plugin is not asked.
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

// ownNamespace is the namespace of the pod that this process runs in.
func ownNamespace() (string, error) {
	data, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(data)), nil
}
