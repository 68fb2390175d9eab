package main

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeclient "knative.dev/pkg/client/injection/kube/client"
	"knative.dev/pkg/configmap/informer"
	"knative.dev/pkg/system"
)

// seenSettings answers with the data of a config map as this process works with it: who changes one
// can wait until the change has arrived.
type seenSettings struct {
	mu   sync.Mutex
	data map[string]map[string]string
}

// watchSettings follows every config map of Knative's that is there.
func watchSettings(ctx context.Context, configs *informer.InformedWatcher) (*seenSettings, error) {
	maps, err := kubeclient.Get(ctx).CoreV1().ConfigMaps(system.Namespace()).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	seen := &seenSettings{data: map[string]map[string]string{}}
	for _, m := range maps.Items {
		if strings.HasPrefix(m.Name, "config-") {
			configs.Watch(m.Name, seen.set)
		}
	}
	return seen, nil
}

func (s *seenSettings) set(m *corev1.ConfigMap) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.data[m.Name] = m.Data
}

func (s *seenSettings) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	data := s.data[r.PathValue("name")]
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(data)
}
