package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/appbridge/appbridge/subjects"
)

// setting is the text that somebody gave to an option, and where.
type setting struct {
	text, source string
}

// settings holds the settings of one source, or of all sources merged, by the
// name of the option.
type settings map[string]setting

// problems is a list of lines, each of which says what is wrong with one
// field. It is the error of every wrong configuration.
type problems []string

func (p problems) Error() string { return strings.Join(p, "\n") }

// add appends one problem; an error that spans lines is put on one.
func (p *problems) add(format string, args ...any) {
	lines := strings.FieldsFunc(fmt.Sprintf(format, args...), func(r rune) bool { return r == '\n' || r == '\r' })
	*p = append(*p, strings.Join(lines, " "))
}

// err keeps an empty list from becoming an error that is not nil.
func (p problems) err() error {
	if len(p) == 0 {
		return nil
	}
	return p
}

// load makes the configuration from the arguments after the command, the
// environment (as os.Environ gives it) and the file that these name, in this
// order of precedence. It reports everything that is wrong at once as
// problems, and returns what was set by whom even then. A value that another
// source overrides is not looked at. help says that the help text was asked
// for; nothing else is done then.
func load(options []option, args, environ []string) (cfg config, set settings, help bool, err error) {
	return loadOperands(options, args, environ, nil)
}

// loadOperands is load for a command that takes arguments beside its flags.
func loadOperands(options []option, args, environ []string, operands *[]string) (cfg config, set settings, help bool, err error) {
	var found problems
	flags, help := parseFlags(options, args, operands, &found)
	if help {
		return config{}, nil, true, nil
	}
	// One file and one environment serve all commands: what is another's is
	// known, and not looked at.
	variables := readEnviron(allOptions(), environ, &found)

	set = settings{}
	for name, s := range variables {
		set[name] = s
	}
	for name, s := range flags {
		set[name] = s
	}
	for _, o := range options {
		if s, given := set[o.name]; given && o.onlyFlag && s.source == o.variable() {
			found.add("%s: a variable does not ask for it: want %s on the command line", s.source, o.flag())
			delete(set, o.name)
		}
	}

	cfg = defaults()
	good := applySettings(&cfg, options, set, &found)
	if cfg.ConfigFile != "" {
		keys := readConfigFile(allOptions(), cfg.ConfigFile, &found)
		fresh := settings{}
		for name, s := range keys {
			if _, overridden := set[name]; !overridden {
				set[name], fresh[name] = s, s
			}
		}
		for name := range applySettings(&cfg, options, fresh, &found) {
			good[name] = true
		}
	}
	checkTogether(cfg, set, good, &found)
	return cfg, set, false, found.err()
}

// applySettings sets the fields that are named in set, in the order of the
// table, and returns the names of those that were right.
func applySettings(cfg *config, options []option, set settings, found *problems) map[string]bool {
	good := map[string]bool{}
	for _, o := range options {
		s, ok := set[o.name]
		if !ok {
			continue
		}
		err := o.set(cfg, s.text)
		switch {
		case err == nil:
			good[o.name] = true
		case errors.Is(err, errForm):
			found.add("%s: %s from %s: want %s", o.name, o.show(s.text), s.source, o.want)
		default:
			found.add("%s: %s from %s: %s; want %s", o.name, o.show(s.text), s.source, err, o.want)
		}
	}
	return good
}

// checkTogether finds what is right for itself and wrong together. good names
// the options whose values were accepted: the others are reported already.
func checkTogether(cfg config, set settings, good map[string]bool, found *problems) {
	// where is how a message names a field and who set it.
	where := func(name string) string {
		if s, ok := set[name]; ok {
			return fmt.Sprintf("%s (from %s)", name, s.source)
		}
		return name + " (by default)"
	}
	given := func(name, text string) bool { return good[name] && text != "" }

	if cfg.NATSEmbedded {
		for _, name := range []string{"nats-url", "nats-creds", "nats-nkey", "nats-tls-ca", "nats-tls-cert", "nats-tls-key"} {
			if good[name] && set[name].text != "" {
				found.add("%s contradicts %s: the embedded server is the only one this process connects to, without credentials; leave one of the two out",
					where(name), where("nats-embedded"))
			}
		}
		if cfg.StreamReplicas > 1 {
			found.add("%s contradicts %s: a single server cannot keep %d replicas; want stream-replicas 1",
				where("stream-replicas"), where("nats-embedded"), cfg.StreamReplicas)
		}
	}
	if given("nats-creds", cfg.NATSCreds) && given("nats-nkey", cfg.NATSNKey) {
		found.add("%s contradicts %s: a connection has one identity; leave one of the two out", where("nats-creds"), where("nats-nkey"))
	}
	pair := []string{"nats-tls-cert", "nats-tls-key"}
	texts := []string{cfg.NATSTLSCert, cfg.NATSTLSKey}
	for i, name := range pair {
		other := pair[1-i]
		if _, mentioned := set[other]; given(name, texts[i]) && texts[1-i] == "" && (!mentioned || good[other]) {
			found.add("%s needs %s: a client certificate goes with its key; set both or none", where(name), other)
		}
	}
	if given(pair[0], texts[0]) && given(pair[1], texts[1]) {
		if err := checkKeyPair(texts[0], texts[1]); err != nil {
			found.add("%s contradicts %s: %s; want a certificate and its own key", where(pair[0]), where(pair[1]), err)
		}
	}
	if given("since", set["since"].text) && cfg.Since != 0 && given("since-time", set["since-time"].text) {
		found.add("%s contradicts %s: both say from when on; leave one of the two out", where("since"), where("since-time"))
	}
	if _, mentioned := set["namespaces"]; given("deploy-namespace", cfg.DeployNamespace) && (!mentioned || good["namespaces"]) &&
		!allNamespaces(cfg.Namespaces) && !slices.Contains(cfg.Namespaces, cfg.DeployNamespace) {
		found.add("%s contradicts %s: the bridge would not see what it deploys to %q; want one of %s",
			where("deploy-namespace"), where("namespaces"), cfg.DeployNamespace, strings.Join(cfg.Namespaces, ", "))
	}
	if stream := subjects.BucketStream(cfg.Bucket); cfg.Stream == stream {
		names := []string{}
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

func optionNames(options []option, name func(option) string, keep func(option) bool) []string {
	var names []string
	for _, o := range options {
		if keep == nil || keep(o) {
			names = append(names, name(o))
		}
	}
	slices.Sort(names)
	return names
}
