package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/subjects"
)

// checkTogether finds values that contradict each other. good names the options whose values
// were accepted: the others are reported already.
func checkTogether(cfg Config, set settings, good map[string]bool, found *problems) {
	// where is how a message names a field and who set it.
	where := func(name string) string {
		if s, ok := set[name]; ok {
			return fmt.Sprintf("%s (from %s)", name, s.source)
		}
		return name + " (by default)"
	}
	given := func(name string) bool { return good[name] && set[name].text != "" }

	if cfg.NATSEmbedded {
		for _, name := range []string{"nats-url", "nats-creds", "nats-nkey", "nats-tls-ca", "nats-tls-cert", "nats-tls-key"} {
			if given(name) {
				found.add("%s contradicts %s: the embedded server is the only one this process connects to, without credentials; leave one of the two out",
					where(name), where("nats-embedded"))
			}
		}
		if cfg.StreamReplicas > 1 {
			found.add("%s contradicts %s: a single server cannot keep %d replicas; want stream-replicas 1",
				where("stream-replicas"), where("nats-embedded"), cfg.StreamReplicas)
		}
	}
	if given("nats-creds") && given("nats-nkey") {
		found.add("%s contradicts %s: a connection has one identity; leave one of the two out", where("nats-creds"), where("nats-nkey"))
	}
	pair := []string{"nats-tls-cert", "nats-tls-key"}
	for i, name := range pair {
		other := pair[1-i]
		if _, mentioned := set[other]; given(name) && !given(other) && (!mentioned || good[other]) {
			found.add("%s needs %s: a client certificate goes with its key; set both or none", where(name), other)
		}
	}
	if given(pair[0]) && given(pair[1]) {
		if err := checkKeyPair(cfg.NATS.TLSCert, cfg.NATS.TLSKey); err != nil {
			found.add("%s contradicts %s: %s; want a certificate and its own key", where(pair[0]), where(pair[1]), err)
		}
	}
	if given("since") && cfg.Since != 0 && given("since-time") {
		found.add("%s contradicts %s: both set the beginning; leave one of the two out", where("since"), where("since-time"))
	}
	if _, mentioned := set["namespaces"]; given("deploy-namespace") && (!mentioned || good["namespaces"]) &&
		!allNamespaces(cfg.Namespaces) && !slices.Contains(cfg.Namespaces, cfg.Deploy.Namespace) {
		found.add("%s contradicts %s: the bridge would not see what it deploys to %q; want one of %s",
			where("deploy-namespace"), where("namespaces"), cfg.Deploy.Namespace, strings.Join(cfg.Namespaces, ", "))
	}
	if stream := subjects.BucketStream(cfg.Bucket); cfg.Stream == stream {
		var names []string
		for _, name := range []string{"stream", "bucket"} {
			if good[name] {
				names = append(names, where(name))
			}
		}
		if len(names) > 0 {
			found.add("%s: the bucket %q is kept in a stream that is named %q itself; want another name for the event stream",
				strings.Join(names, " and "), cfg.Bucket, stream)
		}
	}
}

// checkNoEmbedded rejects the configuration of a bridge with an embedded server when it does
// not name the server's address, which the other commands need.
func checkNoEmbedded(command Command, set settings, found *problems) {
	embedded, given := set["nats-embedded"]
	if on, err := strconv.ParseBool(embedded.text); !given || err != nil || !on {
		return
	}
	if _, given := set["nats-url"]; given {
		return
	}
	listen := Default(command).NATSEmbeddedListen
	if s, given := set["nats-embedded-listen"]; given && s.text != "" {
		listen = s.text
	}
	found.add("nats-embedded (from %s): %s runs no server: want nats-url with the address that the embedded server of the bridge listens on, for example --nats-url nats://%s",
		embedded.source, command, listen)
}

// appOperand is the app that the arguments name.
func appOperand(operands []string, found *problems) subjects.AppID {
	const want = "want project/domain/app, for example shop/production/search"
	parts := strings.SplitN(strings.Join(operands, " "), "/", 3)
	switch {
	case len(operands) == 0:
		found.add("no app to print the log of: %s", want)
		return subjects.AppID{}
	case len(operands) > 1:
		found.add("%q: unexpected argument: one app at a time, %s", natsconn.RedactURLs(operands[1]), want)
		return subjects.AppID{}
	case len(parts) < 3 || slices.Contains(parts, ""):
		found.add("%q: not an app: %s", natsconn.RedactURLs(operands[0]), want)
		return subjects.AppID{}
	}
	app := subjects.AppID{Project: parts[0], Domain: parts[1], Name: parts[2]}
	if err := app.Validate(); err != nil {
		found.add("%s; %s", err, want)
	}
	return app
}
