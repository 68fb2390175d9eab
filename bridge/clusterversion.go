package bridge

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// contradicts tells whether the informers show a version of an object that a
// consistent list, although it is as new, does not have: that of a standby
// which outlived its cluster's history.
func (s *source) contradicts(l listing) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, item := range l.items {
		uid, version, ok := s.known(l.kind, key)
		if ok && uid == item.UID && order(version, item.ResourceVersion) > 0 && order(version, l.version) <= 0 {
			return steppedBack(item.ResourceVersion, version)
		}
	}
	return nil
}

// version is the version of the cluster's Knative Services, read consistently.
func (k *kube) version(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, kubeTimeout)
	defer cancel()
	list := metadataList(kindService)
	if err := k.client.List(ctx, list, client.InNamespace(k.namespaces[0]), client.Limit(1)); err != nil {
		return "", fmt.Errorf("read the cluster's version: %w", err)
	}
	return list.ResourceVersion, nil
}
