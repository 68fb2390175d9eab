package testenv

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
)

// Leader is the index of the server that leads a stream, once one does. After a
// partition the old leader and a new one may both say so for a while: then it
// is the newer one.
func (n *NATS) Leader(ctx context.Context, stream string) (int, error) {
	for {
		leader, err := n.leader(ctx, stream)
		if err == nil {
			return leader, nil
		}
		if ended := pause(ctx); ended != nil {
			return 0, fmt.Errorf("wait for a leader of stream %s: %w: %w", stream, ended, err)
		}
	}
}

func (n *NATS) leader(ctx context.Context, stream string) (int, error) {
	leader, newest := -1, time.Time{}
	var errs []error
	for i, s := range n.servers {
		if s.running() == nil {
			continue
		}
		info, err := s.jetStream(ctx)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, detail := range details(info) {
			if detail.Name != stream {
				continue
			}
			since, leads := s.leads(detail.Cluster)
			if leads && (leader < 0 || since.After(newest)) {
				leader, newest = i, since
			}
		}
	}
	if leader < 0 {
		return 0, errors.Join(append(errs, errors.New("no server leads it"))...)
	}
	return leader, nil
}

// leads tells whether the server says that it leads, and since when; a stream
// with one replica has no elections and no such time. A single server knows of
// no cluster.
func (s *natsServer) leads(cluster *natsserver.ClusterInfo) (since time.Time, leads bool) {
	if cluster == nil {
		return since, true
	}
	if cluster.LeaderSince != nil {
		since = *cluster.LeaderSince
	}
	return since, cluster.Leader == s.name
}

// WaitHealthy returns when all servers run and agree on a leader, and every
// stream has one and all its replicas are current.
func (n *NATS) WaitHealthy(ctx context.Context) error {
	for {
		err := n.healthy(ctx)
		if err == nil {
			return nil
		}
		if ended := pause(ctx); ended != nil {
			return fmt.Errorf("wait until NATS is healthy: %w: %w", ended, err)
		}
	}
}

func (n *NATS) healthy(ctx context.Context) error {
	infos := make([]*natsserver.JSInfo, n.Size())
	for i, s := range n.servers {
		if s.running() == nil {
			return fmt.Errorf("%s does not run", s.name)
		}
		if err := s.get(ctx, "/healthz", &natsserver.HealthStatus{}); err != nil {
			return err
		}
		var err error
		if infos[i], err = s.jetStream(ctx); err != nil {
			return err
		}
	}
	if n.Size() == 1 {
		return nil
	}
	led := map[string]bool{}
	for i, info := range infos {
		if err := n.metaHealthy(i, info, infos[0]); err != nil {
			return err
		}
		for _, detail := range details(info) {
			if _, leads := n.servers[i].leads(detail.Cluster); !leads {
				continue
			}
			led[detail.Name] = true
			if err := current(detail.Cluster.Replicas, detail.Config.Replicas-1); err != nil {
				return fmt.Errorf("stream %s: %w", detail.Name, err)
			}
		}
	}
	for _, info := range infos {
		for _, detail := range details(info) {
			if !led[detail.Name] {
				return fmt.Errorf("stream %s has no leader", detail.Name)
			}
		}
	}
	return nil
}

// metaHealthy judges what a server knows of the group that keeps the list of
// streams; only its leader knows about the others.
func (n *NATS) metaHealthy(i int, info, first *natsserver.JSInfo) error {
	name, meta := n.servers[i].name, info.Meta
	switch {
	case meta == nil || meta.Leader == "":
		return fmt.Errorf("%s knows no leader", name)
	case meta.Leader != first.Meta.Leader:
		return fmt.Errorf("%s says %s leads, %s says %s", name, meta.Leader, n.servers[0].name, first.Meta.Leader)
	case meta.Size != n.Size():
		return fmt.Errorf("%s knows %d servers, want %d", name, meta.Size, n.Size())
	case meta.Leader != name:
		return nil
	}
	return current(meta.Replicas, n.Size()-1)
}

// current tells what a leader misses of its replicas, itself not counted.
func current(replicas []*natsserver.PeerInfo, want int) error {
	if len(replicas) != want {
		return fmt.Errorf("the leader has %d replicas, want %d", len(replicas), want)
	}
	for _, peer := range replicas {
		if !peer.Current || peer.Offline {
			return fmt.Errorf("%s is not current", peer.Name)
		}
	}
	return nil
}

func details(info *natsserver.JSInfo) []natsserver.StreamDetail {
	var all []natsserver.StreamDetail
	for _, account := range info.AccountDetails {
		all = append(all, account.Streams...)
	}
	return all
}

func (s *natsServer) jetStream(ctx context.Context) (*natsserver.JSInfo, error) {
	info := &natsserver.JSInfo{}
	return info, s.get(ctx, "/jsz?streams=true&config=true&raft=true", info)
}

// get asks the monitoring port, which a partition does not touch.
func (s *natsServer) get(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := callJSON(ctx, http.MethodGet, "http://"+s.monitor+path, nil, into); err != nil {
		return fmt.Errorf("ask %s for %s: %w", s.name, path, err)
	}
	return nil
}
