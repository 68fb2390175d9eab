package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/appbridge/appbridge/bridge/kservice"
)

func appOptions(c *Config) []option {
	return []option{
		define("max-app-reads", "requests for app operations that change nothing served at one time; one project has at most half while others have some", &c.MaxAppReads, number(1, 1_000_000)),
		define("max-pending-app-reads", "such requests that wait for their turn, for 2s at most", &c.MaxPendingAppReads, number(0, 1_000_000)),
		define("max-app-writes", "requests that change apps served at one time; one project has at most half while others have some", &c.MaxAppWrites, number(1, 1_000_000)),
		define("enable-writes", "serve the operations that change apps", &c.EnableWrites, toggle()),
		define("deploy-namespace", "namespace of an app that is deployed for the first time; none: the first of namespaces, "+defaultNamespace+" when all are watched",
			&c.Deploy.Namespace,
			text("namespace", "the name of a namespace that is watched", checkOptional(checkNamespace))),
		define("default-request-timeout", "how long a request to an app may take when the app does not say; 0: what Knative has for it; not held to max-request-timeout, but more than an hour takes a max-request-timeout as long",
			&c.Deploy.DefaultRequestTimeout, wholeSeconds(true)),
		define("max-request-timeout", "how long a request to an app may take at most, regardless of the app",
			&c.Deploy.MaxRequestTimeout, wholeSeconds(false)),
		define("default-env", "environment variables of every app that is deployed; those of the app win", &c.Deploy.DefaultEnv,
			variables()),
		define("default-service-account", "service account of an app that names none", &c.Deploy.DefaultServiceAccount,
			text("name", "the name of a Kubernetes object", checkOptional(valid(isObjectName)))),
		define("allowed-service-accounts", "further service accounts that an app may name, beside default and default-service-account; never that of appbridge itself",
			&c.Deploy.Policy.ServiceAccounts,
			optional(list("names", "names of Kubernetes objects separated by commas", valid(isObjectName)))),
		define("allowed-references", "Secrets, ConfigMaps and PersistentVolumeClaims that an app may refer to: {project} and {domain} stand for those of the app, * for text without a dot",
			&c.Deploy.Policy.References, references()),
		define("endpoint-suffix", "how the host name of an app inside of the cluster goes on after the app's name, in the pattern that apps get to reach each other",
			&c.Deploy.SuffixTemplate,
			text("template", "letters, digits, - and . around {{ project }} and {{ domain }}, as they may stand in a host name; quoted in YAML", valid(isEndpointSuffix))),
	}
}

// wholeSeconds is a duration that Knative, which counts seconds, can take as it is.
func wholeSeconds(zero bool) codec[time.Duration] {
	form := duration(time.Second, zero)
	form.want = strings.Replace(form.want, "a duration", "a duration in whole seconds", 1)
	parse := form.parse
	form.parse = func(s string) (time.Duration, error) {
		v, err := parse(s)
		if err == nil && v%time.Second != 0 {
			return 0, errForm
		}
		return v, err
	}
	return form
}

// references are patterns of what apps may refer to.
func references() codec[[]kservice.Reference] {
	texts := optional(list("patterns", "secret/NAME, configmap/NAME or persistentvolumeclaim/NAME separated by commas, with a dot between any two placeholders, for example secret/{project}.{domain}.*",
		func(string) error { return nil }))
	return codec[[]kservice.Reference]{
		form: texts.form,
		parse: func(s string) ([]kservice.Reference, error) {
			items, err := texts.parse(s)
			if err != nil {
				return nil, err
			}
			var out []kservice.Reference
			var errs []error
			for _, item := range items {
				reference, err := kservice.ParseReference(item)
				out, errs = append(out, reference), append(errs, err)
			}
			err = errors.Join(errs...)
			if err == nil {
				err = kservice.CheckReferences(out)
			}
			if err != nil {
				return nil, errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
			}
			return out, nil
		},
		format: func(references []kservice.Reference) string {
			items := make([]string, len(references))
			for i, r := range references {
				items[i] = r.String()
			}
			return texts.format(items)
		},
	}
}

// variables are environment variables by name. Their values may be secrets, so nothing is shown of
// a text that is wrong: without its = or before its time, a name may be a piece of a value.
func variables() codec[map[string]string] {
	return codec[map[string]string]{
		form: form{
			kind: "variables", want: `NAME=value separated by commas, with a backslash before a comma or a backslash inside a value`,
			list: true, quoted: true, item: escaped,
			show: func(string) string { return hidden },
		},
		parse:  parseVariables,
		format: formatVariables,
	}
}

// escaped is an item as splitEscaped gives it back.
func escaped(item string) string {
	return strings.NewReplacer(`\`, `\\`, ",", `\,`).Replace(item)
}

func formatVariables(values map[string]string) string {
	items := make([]string, 0, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		items = append(items, escaped(name+"="+values[name]))
	}
	return strings.Join(items, ",")
}

func parseVariables(text string) (map[string]string, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	items, err := splitEscaped(text)
	if err != nil {
		return nil, err
	}
	values := make(map[string]string, len(items))
	for i, item := range items {
		name, value, found := strings.Cut(strings.TrimLeft(item, " \t\r\n"), "=")
		_, repeated := values[name]
		switch {
		case !found:
			return nil, fmt.Errorf("variable %d has no =", i+1)
		case len(validation.IsRelaxedEnvVarName(name)) > 0:
			return nil, fmt.Errorf("the name of variable %d is not one", i+1)
		case kservice.IsReserved(name):
			return nil, fmt.Errorf("%s is a variable that Knative sets", name)
		case repeated:
			return nil, fmt.Errorf("%s is there twice", name)
		case !utf8.ValidString(value) || strings.ContainsRune(value, 0):
			return nil, fmt.Errorf("the value of %s is not text", name)
		}
		values[name] = value
	}
	return values, nil
}

// splitEscaped splits a text at its commas. A backslash before a comma or a
// backslash makes it stand for itself, and may stand before nothing else.
func splitEscaped(text string) ([]string, error) {
	var items []string
	var item strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == ',':
			items = append(items, item.String())
			item.Reset()
		case c != '\\':
			item.WriteByte(c)
		case i+1 < len(text) && (text[i+1] == ',' || text[i+1] == '\\'):
			i++
			item.WriteByte(text[i])
		default:
			return nil, fmt.Errorf("variable %d has a single backslash", len(items)+1)
		}
	}
	return append(items, item.String()), nil
}

// isEndpointSuffix tries a template on names that are fine everywhere.
func isEndpointSuffix(s string) bool {
	host := "app-" + strings.NewReplacer("{{ project }}", "p", "{{ domain }}", "d").Replace(s)
	return isObjectName(strings.ToLower(host))
}
