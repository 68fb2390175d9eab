package appsvc

import (
	"errors"
	"fmt"
	"slices"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// Config configures a Service. Fields that are not optional must not be zero.
type Config struct {
	// Prefix of every subject; subjects.DefaultPrefix unless there is a reason.
	Prefix string
	// InboxPrefix is the prefix of reply subjects, _INBOX unless clients use another one.
	InboxPrefix string
	// MaxReads and MaxWrites bound the reads and writes that are served at one time,
	// MaxPendingReads those that wait. While other projects have requests, one project has at most
	// half of each.
	MaxReads, MaxPendingReads, MaxWrites int
	// Version of the program, as `nats micro info` shows it; it need not be a
	// semantic one. Optional.
	Version string
	// ClusterName names the cluster in the service's metadata.
	ClusterName string

	// Namespaces are watched; empty means all.
	Namespaces []string
	// App configures the conversion; its zero value gives apps without a URL.
	App kservice.Config

	// EnableWrites turns on the operations that change apps. Deploy counts only then.
	EnableWrites bool
	// Deploy configures deploy. Its namespace is that of new apps and must be watched.
	Deploy kservice.DeployConfig
}

// Validate reports all invalid fields, joined.
func (c Config) Validate() error {
	var errs []error
	bad := func(field string, value any, want string) {
		errs = append(errs, fmt.Errorf("%s %v: %s", field, value, want))
	}
	if _, err := subjects.New(c.Prefix); err != nil {
		errs = append(errs, fmt.Errorf("prefix: %w", err))
	}
	if err := subjects.ValidatePrefix(c.InboxPrefix); err != nil {
		errs = append(errs, fmt.Errorf("inbox prefix: %w", err))
	}
	for field, value := range map[string]int{"max reads": c.MaxReads, "max writes": c.MaxWrites} {
		if value < 1 {
			bad(field, value, "must be at least 1")
		}
	}
	if c.MaxPendingReads < 0 {
		bad("max pending reads", c.MaxPendingReads, "must not be negative")
	}
	if err := subjects.ValidateClusterName(c.ClusterName); err != nil {
		errs = append(errs, err)
	}
	if !c.EnableWrites {
		return errors.Join(errs...)
	}
	if c.Deploy.Namespace == "" || len(c.Namespaces) > 0 && !slices.Contains(c.Namespaces, c.Deploy.Namespace) {
		bad("deploy namespace", fmt.Sprintf("%q", c.Deploy.Namespace), "must be one that is watched")
	}
	if c.Deploy.DefaultRequestTimeout < 0 {
		bad("default request timeout", c.Deploy.DefaultRequestTimeout, "must not be negative")
	}
	if c.Deploy.MaxRequestTimeout <= 0 {
		bad("max request timeout", c.Deploy.MaxRequestTimeout, "must be greater than 0")
	}
	return errors.Join(errs...)
}
