package bridge

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// historyCheck is how often a session looks whether the cluster's history is
// still the one that it follows.
const historyCheck = 10 * time.Second

// watchHistory ends the process when the cluster's version steps back: etcd was
// restored. A watch that resumes at a version which is not reached again yet
// shows nothing, for hours perhaps, and the informers' caches are of a history
// that is over. So only a new start can go on.
func (s *session) watchHistory(ctx context.Context, seen string) error {
	tick := time.NewTicker(historyCheck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if shown := s.source.newestShown(); shown != "" && order(shown, seen) > 0 {
			seen = shown
		}
		version, err := s.kube.version(ctx)
		if err != nil {
			continue // Kubernetes is away for the moment, which readiness tells
		}
		if order(version, seen) < 0 {
			return steppedBack(version, seen)
		}
		seen = version
	}
}

func steppedBack(version, seen string) error {
	return otherHistory(version, fmt.Sprintf("its history stepped back from version %s under the running bridge", seen))
}

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
