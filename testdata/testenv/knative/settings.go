package knative

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	configDefaults = "config-defaults"
	configFeatures = "config-features"
	maxTimeout     = "max-revision-timeout-seconds"
	// exampleKey documents a config map of Knative's inside itself.
	exampleKey = "_example"
)

// flyteSettings is what Flyte's apps need, and what this cluster needs of Knative. The pod-spec
// features, which Flyte's apps need too, are added by their names in Knative's own example.
func flyteSettings() map[string]map[string]string {
	return map[string]map[string]string{
		"config-autoscaler": {
			"allow-zero-initial-scale": "true",
			// Without an activator there is nobody to ask whether it stands in front of a Revision;
			// so it always does.
			"target-burst-capacity": "-1",
			// The shortest that Knative takes.
			"stable-window": "6s", "scale-to-zero-grace-period": "6s",
		},
		configDefaults:      {maxTimeout: "3600"},
		"config-deployment": {"queue-sidecar-image": "dev.local/queue"},
		"config-domain":     {"example.com": ""},
		// At its default level, the program writes every request of the API server.
		"config-logging": {"loglevel.knative": "warn"},
	}
}

// createConfig creates the namespace and Knative's config maps, as its modules ship them, with
// settings over them.
func (k *Knative) createConfig(ctx context.Context, settings map[string]map[string]string) error {
	maps, err := k.configMaps()
	if err != nil {
		return err
	}
	for name := range settings {
		if maps[name] == nil {
			return fmt.Errorf("set %s: Knative has no config map of that name", name)
		}
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}
	if err := k.client.Create(ctx, namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create namespace %s: %w", Namespace, err)
	}
	for name, m := range maps {
		for key, value := range flyteSettings()[name] {
			m.Data[key] = value
		}
		for key, value := range settings[name] {
			put(m, key, value)
		}
		if err := k.client.Create(ctx, m); err != nil {
			return fmt.Errorf("create config map %s: %w", name, err)
		}
	}
	return nil
}

// configMaps reads Knative's config maps, without the examples, with every pod-spec feature on.
func (k *Knative) configMaps() (map[string]*corev1.ConfigMap, error) {
	files, err := filepath.Glob(filepath.Join(k.bin, "config", "configmaps", "*.yaml"))
	if err != nil {
		return nil, err
	}
	files = append(files, filepath.Join(k.bin, "config", "networking", "config-network.yaml"))
	maps := map[string]*corev1.ConfigMap{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		m := &corev1.ConfigMap{}
		if err := yaml.Unmarshal(data, m); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if m.Data == nil {
			m.Data = map[string]string{}
		}
		if m.Name == configFeatures {
			features, err := podSpecFeatures(m.Data[exampleKey])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			for _, key := range features {
				m.Data[key] = "enabled"
			}
		}
		delete(m.Data, exampleKey)
		m.Annotations = nil // a checksum of the example
		maps[m.Name] = m
	}
	return maps, nil
}

// podSpecFeatures are the keys of an example that allow a field of a pod.
func podSpecFeatures(example string) ([]string, error) {
	var all map[string]string
	if err := yaml.Unmarshal([]byte(example), &all); err != nil {
		return nil, err
	}
	var keys []string
	for key := range all {
		if strings.HasPrefix(key, "kubernetes.") {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("no feature of pods in its example")
	}
	return keys, nil
}

// Set changes one key of a config map of Knative's and returns when its reconcilers and webhooks
// have the change. An empty value removes the key. What Knative's webhook says against it is the
// error.
func (k *Knative) Set(ctx context.Context, name, key, value string) error {
	m := &corev1.ConfigMap{}
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := k.client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: name}, m); err != nil {
			return err
		}
		if m.Data == nil {
			m.Data = map[string]string{}
		}
		put(m, key, value)
		return k.client.Update(ctx, m)
	})
	if err != nil {
		return fmt.Errorf("set %s of %s: %w", key, name, err)
	}
	err = poll(ctx, func(ctx context.Context) (bool, error) {
		data, err := k.seen(ctx, name)
		if err != nil {
			return false, k.ended()
		}
		seen, is := data[key]
		return seen == value && is == (value != ""), nil
	})
	if err != nil {
		return fmt.Errorf("set %s of %s: wait until Knative has it: %w", key, name, err)
	}
	return nil
}

func put(m *corev1.ConfigMap, key, value string) {
	if value == "" {
		delete(m.Data, key)
		return
	}
	m.Data[key] = value
}

// Load makes the autoscaler see requests for so many pods of a Revision; 0: none. Until it is called
// it sees enough for one pod, and none of a Revision that begins without pods or that no Route
// refers to. A Revision keeps within its limits, and loses its last pod some seconds late.
func (k *Knative) Load(ctx context.Context, namespace, revision string, pods int) error {
	response, err := k.ask(ctx, http.MethodPut, fmt.Sprintf("/load/%s/%s/%d", namespace, revision, pods))
	if err != nil {
		return fmt.Errorf("load a Revision: %w", err)
	}
	return response.Body.Close()
}

// seen is a config map's data as Knative's program has it.
func (k *Knative) seen(ctx context.Context, name string) (map[string]string, error) {
	response, err := k.ask(ctx, http.MethodGet, "/settings/"+name)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var data map[string]string
	return data, json.NewDecoder(response.Body).Decode(&data)
}

// ask asks Knative's program.
func (k *Knative) ask(ctx context.Context, method, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, "https://"+k.address+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := k.web.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("%s %s: %s", method, path, response.Status), response.Body.Close())
	}
	return response, nil
}
