package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
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
	handle, err := js.Stream(ctx, name) //nolint:forbidigo // this is LookUp
	if err != nil {
		return nil, nil, Unavailable("look up stream "+name, err)
	}
	info := handle.CachedInfo()
	if len(opts) > 0 {
		if info, err = handle.Info(ctx, opts...); err != nil {
			return nil, nil, Unavailable("look up stream "+name, err)
		}
	}
	if err := namesLeader(info); err != nil {
		return nil, nil, fmt.Errorf("look up stream %s: %w", name, err)
	}
	return handle, info, nil
}

func namesLeader(info *jetstream.StreamInfo) error {
	// A single server names itself.
	if info.Cluster != nil && info.Cluster.Leader == "" {
		return ErrNoLeader
	}
	return nil
}

// readInfo is LookUp without a handle. It also returns the names of the settings that the client
// library does not know and would drop.
func readInfo(ctx context.Context, js jetstream.JetStream, name string) (*jetstream.StreamInfo, []string, error) {
	ctx, cancel := context.WithTimeout(ctx, JetStreamTimeout)
	defer cancel()
	reply, err := js.Conn().RequestWithContext(ctx, subjects.ReadStreamInfo(js.Options().Domain, name), nil)
	if err != nil {
		return nil, nil, Unavailable("look up stream "+name, err)
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
		*jetstream.StreamInfo
	}
	var raw struct {
		Config json.RawMessage `json:"config"`
	}
	err = errors.Join(json.Unmarshal(reply.Data, &answer), json.Unmarshal(reply.Data, &raw))
	switch {
	case err != nil:
	case answer.Error != nil && answer.Error.ErrorCode == jetstream.JSErrCodeStreamNotFound:
		err = jetstream.ErrStreamNotFound
	case answer.Error != nil:
		err = answer.Error
	case answer.StreamInfo == nil:
		err = jetstream.ErrInvalidJetStreamResponse
	default:
		err = namesLeader(answer.StreamInfo)
	}
	if err != nil {
		return nil, nil, Unavailable("look up stream "+name, err)
	}
	return answer.StreamInfo, unknownSettings(raw.Config), nil
}
