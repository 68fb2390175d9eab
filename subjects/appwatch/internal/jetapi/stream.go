package jetapi

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// StreamInfo is what a stream is and holds: the answer to STREAM.INFO.
type StreamInfo struct {
	Config  jetstream.StreamConfig `json:"config"`
	State   jetstream.StreamState  `json:"state"`
	Cluster *jetstream.ClusterInfo `json:"cluster"` // nil without a group

	Mirror  *jetstream.StreamSourceInfo   `json:"mirror"`  // nil for a stream that is no mirror
	Sources []*jetstream.StreamSourceInfo `json:"sources"` // empty for a stream without sources
}

// Stream reads what a stream is. A stream without a leader is an error: what a member answers meanwhile
// may be too old.
func (c *Client) Stream(ctx context.Context, name string) (*StreamInfo, error) {
	var info StreamInfo
	if err := c.request(ctx, 0, apiStreamInfo+name, nil, &info); err != nil {
		return nil, err
	}
	if info.Cluster != nil && info.Cluster.Leader == "" {
		return nil, fmt.Errorf("%s: %w", name, errNoLeader)
	}
	return &info, nil
}

// IsMirror reports whether the stream is a mirror of another one.
func (i *StreamInfo) IsMirror() bool { return i.Config.Mirror != nil }

// HasSources reports whether the stream gives messages of other streams sequences of its own.
func (i *StreamInfo) HasSources() bool { return len(i.Config.Sources) > 0 }

// IsWhole reports whether a copy has every message of its origin, under the same subject.
func (i *StreamInfo) IsWhole() bool {
	origins := i.Config.Sources
	if i.Config.Mirror != nil {
		origins = append(origins, i.Config.Mirror)
	}
	return !slices.ContainsFunc(origins, func(o *jetstream.StreamSource) bool {
		return o.FilterSubject != "" || len(o.SubjectTransforms) > 0
	})
}

// Behind returns how many messages a copy lacks, besides at most one, and how long it has heard nothing
// of its origin; less than 0 if it never has. ok is false for a stream that is no copy.
func (i *StreamInfo) Behind() (lag uint64, silence time.Duration, ok bool) {
	origins := i.Sources
	if i.Mirror != nil {
		origins = append(origins, i.Mirror)
	}
	silence = math.MaxInt64
	for _, origin := range origins {
		lag, silence = max(lag, origin.Lag), min(silence, origin.Active)
	}
	return lag, silence, len(origins) > 0
}

// Message is a message as the leader of its stream has it, without the body.
type Message struct {
	Subject  string
	Sequence uint64
	Time     time.Time   // when the server stored it
	Header   nats.Header // nil if there is none
}

// MessageAt reads the message at a sequence. The error is [ErrNoMessage] if there is none.
func (c *Client) MessageAt(ctx context.Context, stream string, sequence uint64) (*Message, error) {
	return c.message(ctx, stream, which{Sequence: sequence})
}

// LastMessage reads the newest message of a subject, which may have wildcards. The error is
// [ErrNoMessage] if there is none.
func (c *Client) LastMessage(ctx context.Context, stream, subject string) (*Message, error) {
	return c.message(ctx, stream, which{LastBySubject: subject})
}

// NextMessage reads the first message of a subject, which may have wildcards, from a sequence on. The
// error is [ErrNoMessage] if there is none.
func (c *Client) NextMessage(ctx context.Context, stream, subject string, from uint64) (*Message, error) {
	return c.message(ctx, stream, which{NextBySubject: subject, Sequence: from})
}

// LastSequence returns the sequence of the newest message of any of the subjects, 0 without one.
func (c *Client) LastSequence(ctx context.Context, stream string, subjects []string) (uint64, error) {
	var newest uint64
	for _, subject := range subjects {
		m, err := c.LastMessage(ctx, stream, subject)
		if errors.Is(err, ErrNoMessage) {
			continue
		}
		if err != nil {
			return 0, err
		}
		newest = max(newest, m.Sequence)
	}
	return newest, nil
}

// which names a message in a request: the newest of a subject, the one at a sequence, or the first of
// a subject from a sequence on.
type which struct {
	LastBySubject string `json:"last_by_subj,omitempty"`
	NextBySubject string `json:"next_by_subj,omitempty"`
	Sequence      uint64 `json:"seq,omitempty"`
}

func (c *Client) message(ctx context.Context, stream string, want which) (*Message, error) {
	var answer struct {
		Message *struct {
			Subject  string    `json:"subject"`
			Sequence uint64    `json:"seq"`
			Header   []byte    `json:"hdrs"`
			Time     time.Time `json:"time"`
		} `json:"message"`
	}
	if err := c.request(ctx, 0, apiMessageGet+stream, want, &answer); err != nil {
		return nil, err
	}
	if answer.Message == nil {
		return nil, ErrNoMessage
	}
	m := &Message{Subject: answer.Message.Subject, Sequence: answer.Message.Sequence, Time: answer.Message.Time}
	if h, err := nats.DecodeHeadersMsg(answer.Message.Header); err == nil {
		m.Header = h
	}
	return m, nil
}
