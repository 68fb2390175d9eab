package config

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

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
	ignored := []string{"APPBRIDGE_CONFORMANCE_DIR", "APPBRIDGE_CLUSTER_BIN"}

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
