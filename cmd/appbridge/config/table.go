package config

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
)

// option is one field of a Config that a flag, an environment variable and a key of the
// configuration file can set. A new option is a line of the table here, in tableapps.go (app
// operations), tablelogs.go (`logs`) or tablewatch.go (`watch`), a field of Config, and its default in Default.
type option struct {
	name    string // of the flag and of the key
	letter  string // of the short form of the flag, empty for none
	section string
	usage   string
	form

	commands  Command // that take it
	notInFile bool
	onlyFlag  bool // no variable either: it has to be asked for each time

	set  func(text string) error
	text func() string // the value in the form that set takes
}

// Command is a subcommand that takes options, or a set of them.
type Command uint

// The subcommands.
const (
	Serve Command = 1 << iota
	Verify
	Logs
	Watch

	forBridge = Serve | Verify
	forStream = forBridge | Watch
	forAll    = forStream | Logs
)

func (command Command) String() string {
	return map[Command]string{Serve: "serve", Verify: "verify", Logs: "logs", Watch: "watch"}[command]
}

const variablePrefix = "APPBRIDGE_"

func (o option) variable() string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(o.name, "-", "_"))
}

func (o option) flag() string { return "--" + o.name }

// synopsis is how the help text writes the flag with its value.
func (o option) synopsis() string {
	form := strings.TrimSpace(o.flag() + " " + o.kind)
	if o.letter != "" {
		form = "-" + o.letter + ", " + form
	}
	return form
}

// define makes an option from the field it sets and the form of its value.
func define[T any](name, usage string, field *T, value codec[T]) option {
	if value.show == nil {
		value.show = strconv.Quote
	}
	return option{
		name: name, usage: usage, form: value.form,
		set: func(text string) error {
			v, err := value.parse(text)
			if err == nil {
				*field = v
			}
			return err
		},
		text: func() string { return value.format(*field) },
	}
}

// notInFile keeps what belongs to one run of a command out of the file.
func notInFile(options ...option) []option {
	for i := range options {
		options[i].notInFile = true
	}
	return options
}

// onlyFlag keeps what changes things out of the environment.
func onlyFlag(o option) option {
	o.onlyFlag = true
	return o
}

// short gives the flag a form of one letter as well.
func short(letter string, o option) option {
	o.letter = letter
	return o
}

// options are those of a subcommand, for the fields of c.
func (command Command) options(c *Config) []option {
	return slices.DeleteFunc(allOptions(c), func(o option) bool { return o.commands&command == 0 })
}

// allOptions is the table of every option of every command, in the order of the help text. They
// set the fields of c.
func allOptions(c *Config) []option {
	var all []option
	add := func(title string, commands Command, options ...option) {
		for _, o := range options {
			o.section, o.commands = title, commands
			all = append(all, o)
		}
	}

	add("Configuration file", forAll, notInFile(
		define("config", "YAML file with the keys below", &c.ConfigFile, file("a readable YAML file", func(string) error { return nil })))...,
	)
	add("Kubernetes", forBridge,
		define("kubeconfig", "kubeconfig of the cluster; none: the pod's service account, else $KUBECONFIG or ~/.kube/config",
			&c.Kubeconfig, file("a kubeconfig that names a cluster", checkKubeconfig)),
		define("namespaces", "namespaces to watch, * for all", &c.Namespaces, namespaceList()),
		define("cluster-name", "name of the cluster in the events and in the metadata of stream and bucket",
			&c.ClusterName,
			text("name", "1 to 128 letters, digits and . _ ~ -", onlyForm(subjects.ValidateClusterName))),
	)
	add("NATS", forAll,
		define("nats-url", "NATS servers to connect to", &c.NATS.URLs, urlList()),
		define("nats-creds", "NATS credentials file (user JWT and seed)", &c.NATS.Creds,
			file("a readable NATS credentials file", natsconn.CheckCreds)),
		define("nats-nkey", "file with the seed of a NATS user nkey", &c.NATS.NKey,
			file("a readable file with the seed of a user nkey", natsconn.CheckNKey)),
		define("nats-user", "NATS user, goes with nats-password-file", &c.NATS.User,
			text("name", "a name without control characters", valid(isUser))),
		define("nats-password-file", "file with the password of nats-user", &c.NATS.PasswordFile,
			secretFile()),
		define("nats-token-file", "file with a NATS token", &c.NATS.TokenFile,
			secretFile()),
		define("nats-tls-ca", "PEM file with the authorities that may sign the server's certificate", &c.NATS.TLSCA,
			file("a readable PEM file with certificates", natsconn.CheckAuthorities)),
		define("nats-tls-cert", "PEM file with the client certificate, goes with nats-tls-key", &c.NATS.TLSCert,
			file("a readable PEM file with a certificate", checkPEM("CERTIFICATE"))),
		define("nats-tls-key", "PEM file with the key of the client certificate", &c.NATS.TLSKey,
			file("a readable PEM file with a private key", checkPEM("PRIVATE KEY"))),
	)
	add("NATS", forStream,
		define("nats-jetstream-domain", "JetStream domain of stream and bucket; none: that of the server", &c.JetStreamDomain,
			text("name", "letters, digits, - and _", checkOptional(onlyForm(subjects.ValidateDomain)))),
	)
	add("NATS", Serve,
		define("nats-embedded", "run a JetStream server in this process instead of connecting to one", &c.NATSEmbedded, toggle()),
		define("nats-embedded-dir", "where the embedded server keeps its streams", &c.NATSEmbeddedDir,
			text("folder", "the path of a folder", valid(func(s string) bool { return s != "" }))),
		define("nats-embedded-listen", "address of the embedded server; it requires no password", &c.NATSEmbeddedListen,
			text("host:port", "host:port with a port from 0 (any free one) to 65535", valid(isListenAddress))),
		define("nats-embedded-max-bytes", "how many bytes the streams of the embedded server may take; 0: three quarters of what they take at the start and what the disk has free then, more when the disk has more",
			&c.NATSEmbeddedMaxBytes, size(0)),
	)
	add("Subjects, stream and bucket", forAll,
		define("prefix", "first tokens of every subject", &c.Prefix,
			text("subject", "tokens of letters, digits, - and _ joined by dots", onlyForm(subjects.ValidatePrefix))),
	)
	add("Subjects, stream and bucket", forStream,
		define("stream", "name of the event stream", &c.Stream,
			text("name", "letters, digits, - and _", onlyForm(subjects.ValidateStream))),
		define("bucket", "name of the key-value bucket that holds the snapshot", &c.Bucket,
			text("name", "letters, digits, - and _", onlyForm(subjects.ValidateBucket))),
	)
	add("Subjects, stream and bucket", forBridge,
		define("stream-replicas", "replicas of stream and bucket when they are created", &c.StreamReplicas, number(1, 5)),
		define("stream-max-age", "how long a created stream keeps events, 0 for ever", &c.StreamMaxAge, duration(minAge, true)),
		define("stream-max-bytes", "how many bytes a created stream keeps, 0 for no limit", &c.StreamMaxBytes, size(0)),
		define("marker-max-age", "how long the bucket keeps the delete marker of an app, 0 for ever", &c.MarkerMaxAge, duration(minAge, true)),
		define("encoding", "form of the messages", &c.Encoding, word(bridge.EncodingJSON, bridge.EncodingProtobuf)),
		define("allow-unsafe-stream", "warn instead of stopping when the stream's configuration can lose acknowledged events", &c.AllowUnsafeStream, toggle()),
	)
	add("Subjects, stream and bucket", Serve,
		define("accept-reset", "go on when the cluster's history is not the one that was published, or when the cluster of this cluster-name was rebuilt", &c.AcceptReset, toggle()),
	)
	add("URL of an app", forBridge,
		define("base-domain", "domain under which apps are reached; none: apps have no URL", &c.BaseDomain,
			text("domain", "a domain name without scheme, port and path", valid(isBaseDomain))),
		define("scheme", "scheme of an app's URL; none: https", &c.Scheme,
			text("scheme", "a URL scheme, for example http or https", valid(isScheme))),
		define("ingress-port", "port in an app's URL, 0 for none", &c.IngressPort, number(0, 65535)),
	)
	add("Pods", forBridge,
		define("pod-conditions", "what keeps pods from serving (crashes, images, Secrets) is a part of their App and gives events; a change of the option gives an update of each app whose pods have such a reason",
			&c.PodConditions, toggle()),
	)
	add("Queues", Serve,
		define("watch-buffer-size", "changes of one app that may wait for NATS before its updates are merged", &c.WatchBufferSize, number(1, 1_000_000)),
		define("pending-bytes", "memory for the waiting changes of all apps before updates are merged", &c.PendingBytes, size(1)),
		define("flush-timeout", "how long a shutdown waits until what is queued is published", &c.FlushTimeout, duration(time.Millisecond, false)),
	)
	add("Readiness", Serve,
		define("max-delay", "how old an unpublished change, or an event that the bucket lacks, may be, and how long Kubernetes may be unavailable, before /readyz fails",
			&c.MaxDelay, duration(time.Second, false)),
		define("audit-interval", "how often cluster, informers, stream and bucket are compared while serving, 0 for never",
			&c.AuditInterval, duration(time.Second, true)),
	)
	add("Leader election", Serve|Verify,
		define("leader-elect", "publish only while holding a Lease, so that several replicas can run; a repair reads from it what was acknowledged", &c.LeaderElect, toggle()),
		define("lease-namespace", "namespace of the Lease; none: the pod's own", &c.LeaseNamespace,
			text("namespace", "the name of a namespace", checkOptional(checkNamespace))),
		define("lease-name", "name of the Lease", &c.LeaseName,
			text("name", "the name of a Kubernetes object", valid(isObjectName))),
	)
	add("Log service and app operations", Serve|Logs|Watch,
		define("log-inbox-prefix", "subject under which the inboxes of log requests and app operations lie: serve refuses to answer elsewhere, logs and watch receive answers there", &c.LogInboxPrefix,
			text("subject", "tokens of letters, digits, - and _ joined by dots", onlyForm(subjects.ValidatePrefix))),
	)
	add("Log service and app operations", Serve,
		define("max-log-streams", "log requests served at one time; one project has at most half of them while others have some", &c.MaxLogStreams, number(1, 1_000_000)),
		define("max-pod-streams", "Kubernetes log streams open at one time; one project has at most half of them while others have some", &c.MaxPodStreams, number(1, 1_000_000)),
		define("max-log-rate", "bytes of logs read from Kubernetes in a second, all streams together; 0: no limit", &c.MaxLogRate, size(0)),
		define("max-reply", "bytes that one message of an answer may have, headers included; at most max_payload of the NATS server. Leafnodes between it and a requester must let as many through", &c.MaxReply, size(request.MinReply)),
	)
	add("Log service and app operations", Serve, appOptions(c)...)
	add("This process", Serve,
		define("http-listen", "address of /metrics, /healthz and /readyz", &c.HTTPListen,
			text("host:port", "host:port with a port from 0 (any free one) to 65535", valid(isListenAddress))),
		define("pprof", "serve the profiles of the Go runtime under /debug/pprof/ of http-listen", &c.Pprof, toggle()),
	)
	add("This process", forAll,
		define("log-level", "least level that is logged", &c.LogLevel, word("debug", "info", "warn", "error")),
		define("log-format", "form of the log; auto: console on a terminal, else json", &c.LogFormat, word(LogFormatAuto, LogFormatConsole, LogFormatJSON)),
	)
	add("Waiting", Verify|Logs|Watch,
		define("timeout", "how long to wait for NATS, and for Kubernetes and a repair, or for the first message of a log; of watch: for what until, once and at wait for", &c.Timeout, duration(time.Millisecond, false)),
	)
	add("Comparison", Verify,
		define("confirm-for", "how long a difference must persist unchanged before it counts; 0 for one look", &c.ConfirmFor, duration(time.Millisecond, true)),
	)
	add("Comparison", Verify, notInFile(
		onlyFlag(define("repair", "repair what differs; on the command line alone", &c.Repair, toggle())),
		define("json", "print the report as one JSON object", &c.JSON, toggle()))...,
	)
	add("Log request", Logs, notInFile(logRequestOptions(c)...)...)
	add("Which apps", Watch, notInFile(watchFilterOptions(c)...)...)
	add("Wait for an app", Watch, notInFile(watchUntilOptions(c)...)...)
	add("The past", Logs|Watch, notInFile(pastOptions(c)...)...)
	add("The past", Watch, notInFile(watchPastOptions(c)...)...)
	add("Output", Watch, notInFile(watchOutputOptions(c)...)...)
	add("Output", Logs|Watch, notInFile(colorOption(c))...)
	add("Output", Logs, notInFile(logOutputOptions(c)...)...)
	return all
}
