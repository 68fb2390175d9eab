package kservice

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/appbridge/appbridge/subjects"
)

// Kinds of a Reference.
const (
	kindSecret    = "secret"
	kindConfigMap = "configmap"
	kindClaim     = "persistentvolumeclaim"
)

// Variables in the name of a Reference.
const (
	anyText            = "*"
	projectPlaceholder = "{project}"
	domainPlaceholder  = "{domain}"
)

// Reference is a pattern for the names of objects that apps may refer to: a kind, a slash and a
// name, such as "secret/{project}.{domain}.*". {project} and {domain} stand for those of the app,
// and * for any text without a dot. Each part of the name, between dots, has at most one of them:
// projects contain hyphens, so that {project}-* would let the project a refer to what belongs to
// the project a-b. An app whose project or domain is no DNS label, which has no dot, matches no
// pattern with a placeholder for it.
type Reference struct {
	text, kind string
	parts      []namePart
}

// namePart is the text of a Reference between two dots: literal text around a variable.
type namePart struct {
	prefix, variable, suffix string // without a variable there is no suffix
}

// ParseReference reads a pattern.
func ParseReference(text string) (Reference, error) {
	kind, name, _ := strings.Cut(text, "/")
	r := Reference{text: text, kind: kind}
	if !slices.Contains([]string{kindSecret, kindConfigMap, kindClaim}, kind) {
		return r, fmt.Errorf("%q does not begin with %s/, %s/ or %s/", text, kindSecret, kindConfigMap, kindClaim)
	}
	// The group of a secret, which Flyte's webhook reads, need not be the name of an object.
	example := strings.NewReplacer(projectPlaceholder, "a", domainPlaceholder, "a").Replace(name)
	if name == "" || strings.ContainsAny(example, "{}") || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return r, fmt.Errorf("%q has no name, a character that cannot be printed, or braces that are not %s or %s", text, projectPlaceholder, domainPlaceholder)
	}
	for part := range strings.SplitSeq(name, ".") {
		parsed := namePart{prefix: part}
		for _, variable := range []string{anyText, projectPlaceholder, domainPlaceholder} {
			switch count := strings.Count(part, variable); {
			case count == 0:
			case count > 1 || parsed.variable != "":
				return r, fmt.Errorf("%q has no dot between two of %s, %s and %s, so that the names of one project can be those of another", text, projectPlaceholder, domainPlaceholder, anyText)
			default:
				parsed.variable = variable
				parsed.prefix, parsed.suffix, _ = strings.Cut(part, variable)
			}
		}
		r.parts = append(r.parts, parsed)
	}
	return r, nil
}

// String is the text that ParseReference reads.
func (r Reference) String() string { return r.text }

func (r Reference) matches(kind, name string, id subjects.AppID) bool {
	parts := strings.Split(name, ".")
	if r.kind != kind || len(r.parts) != len(parts) {
		return false
	}
	for i, pattern := range r.parts {
		if !pattern.matches(parts[i], id) {
			return false
		}
	}
	return true
}

func (p namePart) matches(text string, id subjects.AppID) bool {
	value := ""
	switch p.variable {
	case anyText:
		return p.surrounds(text)
	case projectPlaceholder:
		value = id.Project
	case domainPlaceholder:
		value = id.Domain
	}
	if p.variable != "" && len(validation.IsDNS1123Label(value)) > 0 {
		return false // an empty or a dotted value could match what belongs to another id
	}
	return text == p.prefix+value+p.suffix
}

// surrounds reports whether a text is the literal parts of p around any text.
func (p namePart) surrounds(text string) bool {
	return len(text) >= len(p.prefix)+len(p.suffix) && strings.HasPrefix(text, p.prefix) && strings.HasSuffix(text, p.suffix)
}

// CheckReferences reports every two patterns that can match one name for the apps of different
// projects or domains, such as secret/{project}.* and secret/*.{project}. A pattern without
// placeholders is for all apps, and collides with none.
func CheckReferences(references []Reference) error {
	var errs []error
	for i, one := range references {
		for _, other := range references[:i] {
			if one.collides(other) {
				errs = append(errs, fmt.Errorf("%q and %q can match one name for different projects or domains", other, one))
			}
		}
	}
	return errors.Join(errs...)
}

func (r Reference) collides(other Reference) bool {
	if r.kind != other.kind || len(r.parts) != len(other.parts) || !r.scoped() || !other.scoped() {
		return false
	}
	fixed := map[string]bool{} // the placeholders that have one value where both match
	for i, p := range r.parts {
		if p == other.parts[i] {
			fixed[p.variable] = true
		} else if p.disjoint(other.parts[i]) {
			return false
		}
	}
	return slices.ContainsFunc(slices.Concat(r.parts, other.parts), func(p namePart) bool { return p.scoped() && !fixed[p.variable] })
}

// scoped reports whether the matches depend on the app.
func (r Reference) scoped() bool {
	return slices.ContainsFunc(r.parts, namePart.scoped)
}

func (p namePart) scoped() bool {
	return p.variable == projectPlaceholder || p.variable == domainPlaceholder
}

// disjoint reports whether no text matches both parts, whatever the values of their placeholders.
func (p namePart) disjoint(other namePart) bool {
	if p.variable == "" {
		p, other = other, p
	}
	switch {
	case p.variable == "": // both are literal
		return p.prefix != other.prefix
	case other.variable == "":
		return !p.surrounds(other.prefix)
	default:
		return !strings.HasPrefix(p.prefix, other.prefix) && !strings.HasPrefix(other.prefix, p.prefix) ||
			!strings.HasSuffix(p.suffix, other.suffix) && !strings.HasSuffix(other.suffix, p.suffix)
	}
}
