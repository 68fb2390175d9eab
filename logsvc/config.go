package logsvc

import (
	"errors"
	"fmt"

	"github.com/appbridge/appbridge/subjects"
)

// Config configures a Service.
type Config struct {
	// Prefix of every subject, usually subjects.DefaultPrefix.
	Prefix string
	// MaxStreams is how many requests are served at a time.
	MaxStreams int
	// InboxPrefix is the subject under which the reply subjects of requests have
	// to lie, usually _INBOX.
	InboxPrefix string
	// Version of the program for `nats micro info`. It need not be a semantic one.
	Version string
	// ClusterName names the cluster in the service's metadata.
	ClusterName string
}

// Validate returns an error that joins those of all invalid fields.
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
