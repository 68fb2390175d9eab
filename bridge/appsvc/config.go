package appsvc

import "github.com/appbridge/appbridge/bridge/kservice"

// Config configures a Service. Its values are valid: the options that set them are checked.
// Fields that are not optional must not be zero.
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
