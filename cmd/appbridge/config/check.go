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

	"github.com/nats-io/nats.go"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/appbridge/appbridge/bridge/natsconn"
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

// checkCreds runs what the client would run when it connects, so that a file
// without a JWT or a seed is found now and not at the first connection.
func checkCreds(path string) error {
	var o nats.Options
	if err := nats.UserCredentials(path)(&o); err != nil {
		return errForm
	}
	// The client takes the first block for the JWT whatever is in it, and
	// would send a seed to the server.
	if jwt, err := o.UserJWT(); err != nil || !strings.HasPrefix(jwt, "eyJ") {
		return errors.New("it holds no user JWT")
	}
	if _, err := o.SignatureCB([]byte("nonce")); err != nil {
		return errors.New("it holds no user seed")
	}
	return nil
}

func checkNKey(path string) error {
	if _, err := nats.NkeyOptionFromSeed(path); err != nil {
		return errors.New("it holds no user seed")
	}
	return nil
}

func checkCA(path string) error {
	var o nats.Options
	if err := nats.RootCAs(path)(&o); err != nil {
		return errors.New("it holds no certificate")
	}
	return nil
}

// checkPEM looks for a block whose type ends in kind.
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

// checkKeyPair checks that key and certificate belong together.
func checkKeyPair(certificate, key string) error {
	if _, err := tls.LoadX509KeyPair(certificate, key); err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "tls: "))
	}
	return nil
}
