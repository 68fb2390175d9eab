package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/appbridge/appbridge/subjects"
)

// The windows and the timeout of a Request.
const (
	DefaultWindow = 16   // messages: 512 KiB of log
	MaxWindow     = 1024 // the largest window that the service grants
	// Paced is the window of a stream without acknowledgements: the service sends at a pace
	// that most readers keep up with. It is the only one for a service in another account.
	Paced          = -1
	DefaultTimeout = 5 * time.Second
)

// Request selects what to read. The zero value of a field is the default of the service.
type Request struct {
	App       subjects.AppID
	Replica   string // the name of one; empty: all
	Container string // to read; empty: the app's own
	Tail      *int   // how many lines of each replica to begin with; negative: all
	// Since skips what is older. SinceStart asks for all since the container started. At most one
	// of Since, SinceStart and SinceTime.
	Since      time.Duration
	SinceStart bool
	SinceTime  time.Time
	// Follow reads on as lines are written (true) or the existing lines only (false); nil: as long
	// as a replica runs.
	Follow     *bool
	Previous   bool // reads the container as it was before its last restart
	Timestamps bool // puts the time before each line
	// Include and Exclude are regular expressions (RE2) that lines must, and must not, match.
	Include, Exclude string
	Format           subjects.LogFormat // empty: LogFormatText
	MaxDuration      time.Duration      // ends the stream

	Prefix string // of the subjects; empty: subjects.DefaultPrefix
	// Window is how many messages may be under way, at most MaxWindow; 0: DefaultWindow; Paced:
	// none are acknowledged.
	Window  int
	Timeout time.Duration // how long to wait for the first message; 0: DefaultTimeout

	positions *positions // nil: the service sends none
}

// positions is a request for them.
type positions struct {
	resume map[string]string // by replica; nil: a stream from its beginning
}

type wireRequest struct {
	Replica     string             `json:"replica,omitempty"`
	Container   string             `json:"container,omitempty"`
	Tail        any                `json:"tail,omitempty"` // a number or "all"
	Since       string             `json:"since,omitempty"`
	SinceTime   time.Time          `json:"since_time,omitzero"`
	Follow      *bool              `json:"follow,omitempty"`
	Previous    bool               `json:"previous,omitempty"`
	Timestamps  bool               `json:"timestamps,omitempty"`
	Include     string             `json:"include,omitempty"`
	Exclude     string             `json:"exclude,omitempty"`
	Format      subjects.LogFormat `json:"format,omitempty"`
	Window      int                `json:"window,omitempty"`
	MaxDuration string             `json:"max_duration,omitempty"`
	Positions   bool               `json:"positions,omitempty"`
	Resume      map[string]string  `json:"resume,omitzero"`
}

// validate finds what would make this side misbehave. The service checks the rest.
func (r Request) validate() (err error) {
	if r.Window != Paced && (r.Window < 1 || r.Window > MaxWindow) {
		err = fmt.Errorf("window %d: want 1 to %d messages", r.Window, MaxWindow)
	}
	if r.Timeout < 0 {
		err = errors.Join(err, fmt.Errorf("timeout %s: want more than nothing", r.Timeout))
	}
	return err
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
	if r.positions != nil {
		w.Positions, w.Resume = true, r.positions.resume
	}
	body, err := json.Marshal(w)
	if err != nil {
		return nil, fmt.Errorf("encode log request: %w", err)
	}
	return body, nil
}
