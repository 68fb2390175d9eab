package logsvc

import (
	"errors"
	"fmt"

	"github.com/appbridge/appbridge/subjects"
)

// Config is what a Service needs to know.
type Config struct {
	// Prefix of every subject; subjects.DefaultPrefix unless there is a reason.
	Prefix string
	// MaxStreams is how many requests are served at one time.
	MaxStreams int
	// InboxPrefix is the subject under which the reply subjects of requests have
	// to lie, _INBOX unless clients use another one.
	InboxPrefix string
	// Version of the program, as `nats micro info` shows it; it need not be a
	// semantic one.
	Version string
	// ClusterName names the cluster in the service's metadata.
	ClusterName string
}

// Validate reports every field that is wrong, joined.
func (c Config) Validate() error {
	var errs []error
	if _, err := subjects.New(c.Prefix); err != nil {
		errs = append(errs, fmt.Errorf("prefix: %w", err))
	}
	if c.MaxStreams < 1 {
		errs = append(errs, fmt.Errorf("max streams %d: must be at least 1", c.MaxStreams))
	}
	if err := subjects.ValidatePrefix(c.InboxPrefix); err != nil {
		errs = append(errs, fmt.Errorf("inbox prefix: %w", err))
	}
	return errors.Join(errs...)
}
