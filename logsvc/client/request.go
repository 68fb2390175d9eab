package client

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/appbridge/appbridge/subjects"
)

const (
	// DefaultWindow is how many messages are under way unless a Request says
	// otherwise: 512 KiB of log.
	DefaultWindow = 16
	// MaxWindow is the largest window that the service grants.
	MaxWindow = 1024
	// Paced is the window of a stream without acknowledgements: the service sends at a pace
	// that most readers keep up with. It is the only one for a service in another account.
	Paced = -1
	// DefaultTimeout is how long a Request waits for the first message.
	DefaultTimeout = 5 * time.Second
)

// Format is the form of the bodies of a stream.
type Format string

// The formats.
const (
	// FormatText is for people: a line begins with the short name of its replica
	// when there is more than one. What the zero value asks for.
	FormatText Format = "text"
	// FormatRaw is the lines as they were written.
	FormatRaw Format = "raw"
	// FormatJSON is Flyte's TailLogsResponse in protobuf JSON.
	FormatJSON Format = "json"
	// FormatProto is Flyte's TailLogsResponse in its binary form.
	FormatProto Format = "proto"
)

// Request says what to read. The zero value of a field leaves it to the service.
type Request struct {
	App subjects.AppID
	// Replica is the name of one replica; empty: all.
	Replica string
	// Container to read; empty: the app's own.
	Container string
	// Tail is how many lines of each replica to begin with; negative: all.
	Tail *int
	// Since skips what is older. SinceStart asks for all since the container started. At most one
	// of Since, SinceStart and SinceTime.
	Since      time.Duration
	SinceStart bool
	SinceTime  time.Time
	// Follow goes on with what will be written (true) or ends with what is there
	// (false); nil: goes on as long as a replica runs.
	Follow *bool
	// Previous reads the container as it was before its last restart.
	Previous bool
	// Timestamps puts the time before each line.
	Timestamps bool
	// Include and Exclude are regular expressions (RE2) that lines must, and must not, match.
	Include, Exclude string
	Format           Format
	// MaxDuration ends the stream.
	MaxDuration time.Duration

	// Prefix of the subjects; empty: subjects.DefaultPrefix.
	Prefix string
	// Window is how many messages may be under way, at most MaxWindow; 0:
	// DefaultWindow, Paced: none are acknowledged.
	Window int
	// Timeout is how long to wait for the first message; 0: DefaultTimeout.
	Timeout time.Duration
}

// wireRequest is the body of a request.
type wireRequest struct {
	Replica     string    `json:"replica,omitempty"`
	Container   string    `json:"container,omitempty"`
	Tail        any       `json:"tail,omitempty"` // a number or "all"
	Since       string    `json:"since,omitempty"`
	SinceTime   time.Time `json:"since_time,omitzero"`
	Follow      *bool     `json:"follow,omitempty"`
	Previous    bool      `json:"previous,omitempty"`
	Timestamps  bool      `json:"timestamps,omitempty"`
	Include     string    `json:"include,omitempty"`
	Exclude     string    `json:"exclude,omitempty"`
	Format      Format    `json:"format,omitempty"`
	Window      int       `json:"window,omitempty"`
	MaxDuration string    `json:"max_duration,omitempty"`
}

// withDefaults fills in what this side decides.
func (r Request) withDefaults() Request {
	r.Prefix = cmp.Or(r.Prefix, subjects.DefaultPrefix)
	r.Window = cmp.Or(r.Window, DefaultWindow)
	r.Timeout = cmp.Or(r.Timeout, DefaultTimeout)
	return r
}

// validate finds what would make this side misbehave; the rest is for the service to judge.
func (r Request) validate() error {
	var errs []error
	if r.Window != Paced && (r.Window < 1 || r.Window > MaxWindow) {
		errs = append(errs, fmt.Errorf("window %d: want 1 to %d messages", r.Window, MaxWindow))
	}
	if r.Timeout < 0 {
		errs = append(errs, fmt.Errorf("timeout %s: want more than nothing", r.Timeout))
	}
	return errors.Join(errs...)
}

// room is how many numbered messages this side queues for the handler.
func (r Request) room() int {
	if r.Window == Paced {
		return MaxWindow
	}
	return r.Window
}

// arriving is how many messages may come in before any is looked at.
func (r Request) arriving() int {
	if r.Window == Paced {
		return 1 << 16 // nothing is sent again
	}
	return 2*r.room() + unnumbered
}

func (r Request) body() ([]byte, error) {
	w := wireRequest{
		Replica: r.Replica, Container: r.Container, SinceTime: r.SinceTime, Follow: r.Follow, Previous: r.Previous,
		Timestamps: r.Timestamps, Include: r.Include, Exclude: r.Exclude, Format: r.Format, Window: max(r.Window, 0),
	}
	switch {
	case r.Tail == nil:
	case *r.Tail < 0:
		w.Tail = "all"
	default:
		w.Tail = *r.Tail
	}
	switch {
	case r.SinceStart:
		w.Since = "start"
	case r.Since != 0:
		w.Since = r.Since.String()
	}
	if r.MaxDuration != 0 {
		w.MaxDuration = r.MaxDuration.String()
	}
	body, err := json.Marshal(w)
	if err != nil {
		return nil, fmt.Errorf("encode log request: %w", err)
	}
	return body, nil
}
