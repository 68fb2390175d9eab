package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// ErrNoLeader reports that a stream has no leader. Until one is elected, any member of the stream's
// group answers, also one that is behind.
var ErrNoLeader = errors.New("the stream has no leader")

// LookUp reads the configuration and the state of a stream from its leader. An answer that names no
// leader does not count: the error is ErrNoLeader. The error wraps jetstream.ErrStreamNotFound if
// there is no such stream.
//
// A leader that was cut off from its group answers for about 10 s more. So an end that is too short
// is proven only by an append that expects it.
func LookUp(ctx context.Context, js jetstream.JetStream, name string, opts ...jetstream.StreamInfoOpt) (jetstream.Stream, *jetstream.StreamInfo, error) {
	handle, err := js.Stream(ctx, name)
	if err != nil {
		return nil, nil, Unavailable("look up stream "+name, err)
	}
	info := handle.CachedInfo()
	if len(opts) > 0 {
		if info, err = handle.Info(ctx, opts...); err != nil {
			return nil, nil, Unavailable("look up stream "+name, err)
		}
	}
	// A single server names itself.
	if info.Cluster != nil && info.Cluster.Leader == "" {
		return nil, nil, fmt.Errorf("look up stream %s: %w", name, ErrNoLeader)
	}
	return handle, info, nil
}
