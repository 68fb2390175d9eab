package config

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

type setting struct {
	text, source string
}

// settings holds the settings of one source, or of all sources merged, by the name of the option.
type settings map[string]setting

// problems is the error of a wrong configuration: one line for each wrong field.
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

// Load makes the configuration of a command from its arguments, the environment (as
// os.Environ gives it) and the file that these name, in this order of precedence. It finds the
// cluster for a command that needs one. Its error has one line for each wrong value of every
// source, or is [ErrHelp].
func Load(command Command, args, environ []string) (Config, error) {
	cfg, set, err := load(command, args, environ)
	if command == Logs || command == Watch || errors.Is(err, ErrHelp) {
		return cfg, err
	}
	var found problems
	errors.As(err, &found)
	cfg.findCluster(set, &found)
	if cfg.LeaderElect && set["lease-namespace"].text == "" && (command == Serve || cfg.Repair) {
		if cfg.LeaseNamespace, err = ownNamespace(); err != nil {
			found.add("lease-namespace: not set, and this is not a pod that has one: want the name of a namespace for leader-elect (from %s)", set["leader-elect"].source)
		}
	}
	return cfg, found.err()
}

// load is Load without the cluster. It returns the settings that were given, even with an
// error. A value that another source overrides is not checked.
func load(command Command, args, environ []string) (Config, settings, error) {
	cfg := Default(command)
	// One file and one environment serve all commands: the options of another command are
	// known and ignored.
	all, options := allOptions(&cfg), command.options(&cfg)
	var found problems
	flags, operands, help := parseFlags(command, options, args, &found)
	if help {
		return Config{}, nil, ErrHelp
	}
	variables := readEnviron(all, environ, &found)

	set := settings{}
	maps.Copy(set, variables)
	maps.Copy(set, flags)
	for _, o := range options {
		if s, given := set[o.name]; given && o.onlyFlag && s.source == o.variable() {
			found.add("%s: a variable cannot set it: want %s on the command line", s.source, o.flag())
			delete(set, o.name)
		}
	}

	good := applySettings(options, set, &found)
	if cfg.ConfigFile != "" {
		keys := readConfigFile(all, cfg.ConfigFile, &found)
		fresh := settings{}
		for name, s := range keys {
			if _, overridden := set[name]; !overridden {
				set[name], fresh[name] = s, s
			}
		}
		maps.Copy(good, applySettings(options, fresh, &found))
	}
	checkTogether(cfg, set, good, &found)
	if command&Serve == 0 {
		checkNoEmbedded(command, set, &found)
	}
	if command&Watch != 0 {
		cfg.Watch.watchOperand(operands, &found)
		cfg.Watch.checkApp(&found)
		checkWatch(cfg, set, good, &found)
	}
	if command == Logs {
		cfg.App = appOperand(operands, &found)
		if _, given := set["tail"]; given || cfg.Since == 0 && cfg.SinceTime.IsZero() {
			cfg.Lines = &cfg.Tail
		}
	}
	return cfg, set, found.err()
}

// applySettings sets the fields that are named in set, in the order of the
// table, and returns the names of those that were right.
func applySettings(options []option, set settings, found *problems) map[string]bool {
	good := map[string]bool{}
	for _, o := range options {
		s, ok := set[o.name]
		if !ok {
			continue
		}
		switch err := o.set(s.text); {
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

// optionsBy are options by the name that each has on the command line, in the environment or in the
// file.
func optionsBy(name func(option) string, options []option) map[string]option {
	named := make(map[string]option, len(options))
	for _, o := range options {
		named[name(o)] = o
	}
	return named
}

// readEnviron takes the settings from the environment. An empty variable counts as not set.
// An unknown variable with our prefix is a problem, unless it is ignored or a service link.
func readEnviron(options []option, environ []string, found *problems) settings {
	values := map[string]string{}
	for _, entry := range environ {
		if name, value, ok := strings.Cut(entry, "="); ok && strings.HasPrefix(name, variablePrefix) {
			values[name] = value
		}
	}
	links := serviceLinks(values)
	known := optionsBy(option.variable, options)
	// Of the tests, which may run a program that inherits their environment.
	ignored := []string{"APPBRIDGE_CONFORMANCE_DIR", "APPBRIDGE_CLUSTER_BIN", "APPBRIDGE_KNATIVE_BIN"}

	set := settings{}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		o, ok := known[name]
		switch {
		case slices.Contains(ignored, name) || links(name):
		case !ok:
			found.add("%s: unknown environment variable%s", name, didYouMean(name, maps.Keys(known)))
		case values[name] != "":
			set[o.name] = setting{text: values[name], source: name}
		}
	}
	return set
}

// serviceLinks finds the variables that come from Kubernetes: a pod gets some for
// every Service of its namespace, and a Service named appbridge gives them our
// prefix (APPBRIDGE_SERVICE_HOST, APPBRIDGE_PORT_8080_TCP_ADDR and so on). A
// variable that could be ours is theirs only if its value has their form.
func serviceLinks(values map[string]string) func(name string) bool {
	var services []string
	for name := range values {
		if service, ok := strings.CutSuffix(name, "_SERVICE_HOST"); ok {
			services = append(services, service)
		}
	}
	form := regexp.MustCompile(`^_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)
	address := regexp.MustCompile(`^(tcp|udp|sctp)://`)
	return func(name string) bool {
		for _, service := range services {
			rest, ok := strings.CutPrefix(name, service)
			if ok && (form.MatchString(rest) || rest == "_PORT" && address.MatchString(values[name])) {
				return true
			}
		}
		return false
	}
}
