package config

import (
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/subjects"
)

// minAge is a second although the server allows less: a stream or a bucket that
// forgets faster than a bridge restarts is a mistyped unit.
const minAge = time.Second

// valid makes a check whose only reason is the text of what is allowed.
func valid(is func(string) bool) func(string) error {
	return func(s string) error {
		if is(s) {
			return nil
		}
		return errForm
	}
}

// onlyForm drops check's reason, which repeats the value and what is allowed.
func onlyForm(check func(string) error) func(string) error {
	return valid(func(s string) bool { return check(s) == nil })
}

// checkOptional allows the empty text in addition.
func checkOptional(check func(string) error) func(string) error {
	return func(s string) error {
		if s == "" {
			return nil
		}
		return check(s)
	}
}

func checkNamespace(s string) error {
	if problems := validation.IsDNS1123Label(s); len(problems) > 0 {
		return fmt.Errorf("%q is not the name of a namespace", s)
	}
	return nil
}

func isObjectName(s string) bool { return len(validation.IsDNS1123Subdomain(s)) == 0 }

const anyNamespace = "*"

func allNamespaces(namespaces []string) bool {
	return len(namespaces) == 1 && namespaces[0] == anyNamespace
}

func namespaceList() codec[[]string] {
	names := list("namespaces", "names of namespaces separated by commas, or * alone for all", checkNamespace)
	parse := names.parse
	names.parse = func(s string) ([]string, error) {
		if strings.TrimSpace(s) == anyNamespace {
			return []string{anyNamespace}, nil
		}
		return parse(s)
	}
	return names
}

// urlList is what the NATS client takes: URLs and plain host:port. Its
// errors quote nothing: a part of the URL may be a password.
func urlList() codec[[]string] {
	urls := list("urls", "URLs like nats://host:4222 separated by commas (nats or tls, or all of them ws or wss)", valid(isNATSURL))
	urls.show = func(text string) string { return strconv.Quote(natsconn.RedactURLs(text)) }
	parse := urls.parse
	urls.parse = func(s string) ([]string, error) {
		items, err := parse(s)
		if err != nil {
			return nil, err
		}
		websocket := func(item string) bool { return strings.HasPrefix(item, "ws") }
		if slices.ContainsFunc(items, func(item string) bool { return websocket(item) != websocket(items[0]) }) {
			return nil, errors.New("websocket and plain URLs do not mix")
		}
		return items, nil
	}
	return urls
}

func isNATSURL(s string) bool {
	if !strings.Contains(s, "://") {
		s = "nats://" + s
	}
	u, err := url.Parse(s)
	return err == nil && u.Hostname() != "" && slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) &&
		(u.Port() == "" || isPort(u.Port(), 1))
}

func isListenAddress(s string) bool {
	_, port, err := net.SplitHostPort(s)
	return err == nil && isPort(port, 0)
}

func isPort(s string, least int) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n >= least && n <= 65535
}

// isBaseDomain lets everything pass that can stand in a host name, internationalized names
// included, and catches a URL in its place.
func isBaseDomain(s string) bool {
	return s == "" || utf8.ValidString(s) && !strings.ContainsAny(s, `/\:?#@[]%*,`) && !slices.Contains(strings.Split(s, "."), "") &&
		!strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) })
}

var isScheme = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9+.-]*)?$`).MatchString

func checkPEM(kind string) func(path string) error {
	return func(path string) error {
		data, err := os.ReadFile(path)
		if err != nil {
			return withoutPath(err)
		}
		for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
			if strings.HasSuffix(block.Type, kind) {
				return nil
			}
		}
		return fmt.Errorf("it holds no PEM block of type %s", kind)
	}
}

func checkKeyPair(certificate, key string) error {
	if _, err := tls.LoadX509KeyPair(certificate, key); err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "tls: "))
	}
	return nil
}

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
		for _, name := range []string{"nats-url", "nats-creds", "nats-nkey", "nats-user", "nats-password-file", "nats-token-file", "nats-jetstream-domain", "nats-tls-ca", "nats-tls-cert", "nats-tls-key"} {
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
	checkIdentity(cfg, where, given, found)
	for _, pair := range []struct{ one, other, why string }{
		{"nats-tls-cert", "nats-tls-key", "a client certificate goes with its key"},
		{"nats-user", "nats-password-file", "a user goes with its password"},
	} {
		for _, names := range [][2]string{{pair.one, pair.other}, {pair.other, pair.one}} {
			name, other := names[0], names[1]
			if _, mentioned := set[other]; given(name) && !given(other) && (!mentioned || good[other]) {
				found.add("%s needs %s: %s; set both or none", where(name), other, pair.why)
			}
		}
	}
	if certificate, key := "nats-tls-cert", "nats-tls-key"; given(certificate) && given(key) {
		if err := checkKeyPair(cfg.NATS.TLSCert, cfg.NATS.TLSKey); err != nil {
			found.add("%s contradicts %s: %s; want a certificate and its own key", where(certificate), where(key), err)
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

// checkIdentity finds more than one identity.
func checkIdentity(cfg Config, where func(name string) string, given func(name string) bool, found *problems) {
	var identities []string
	for _, name := range []string{"nats-creds", "nats-nkey", "nats-user", "nats-token-file"} {
		if given(name) {
			identities = append(identities, name)
		}
	}
	if given("nats-url") && slices.ContainsFunc(cfg.NATS.URLs, namesUser) {
		identities = append(identities, "nats-url")
	}
	for i := 1; i < len(identities); i++ {
		found.add("%s contradicts %s: a connection has one identity; leave one of the two out", where(identities[0]), where(identities[i]))
	}
}

// namesUser reports whether a URL has a user or a token.
func namesUser(item string) bool {
	_, rest, found := strings.Cut(item, "://")
	if !found {
		rest = item
	}
	authority, _, _ := strings.Cut(rest, "/")
	return strings.Contains(authority, "@")
}

// isUser lets every name pass that a server's configuration can hold.
func isUser(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
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
