package kservice

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

const (
	defaultAccount = "default" // the service account of a pod that names none
	runAsField     = "app.spec.securityContext.runAs.k8sServiceAccount"
	noOption       = "no option allows it"
)

// Policy bounds the objects that an app may refer to. The zero value allows no Secret, no
// ConfigMap, no volume claim, and no service account except "default" and the configured default.
type Policy struct {
	// ServiceAccounts are further service accounts that an app may run as.
	ServiceAccounts []string
	// OwnServiceAccount is the service account of this program. No app may run as it. Empty:
	// this program has none in the namespaces of apps.
	OwnServiceAccount string
	// References are patterns for what an app may refer to; see [CheckReferences].
	References []Reference
}

// policyCheck checks one app against the policy, and collects the denials.
type policyCheck struct {
	id     subjects.AppID
	cfg    DeployConfig
	denied *Problems
	// accountField is the field of the app that gives its pods the service account.
	accountField string
}

// accountField is the field of an app that names its service account.
func accountField(spec *appv1.Spec) string {
	if spec.GetSecurityContext().GetRunAs().GetK8SServiceAccount() != "" || spec.GetPod() == nil {
		return runAsField
	}
	return podSpecField + ".serviceAccountName"
}

func (c *policyCheck) deny(field, value, reason string) {
	c.denied.Add(field, Quote(value)+": "+reason)
}

func (c *policyCheck) account(field, name string) {
	switch policy := c.cfg.Policy; {
	case name == policy.OwnServiceAccount:
		c.deny(field, name, "the service account of appbridge itself, "+noOption)
	case name == defaultAccount, name == c.cfg.DefaultServiceAccount, slices.Contains(policy.ServiceAccounts, name):
	default:
		c.deny(field, name, "not in --allowed-service-accounts")
	}
}

func (c *policyCheck) reference(field, kind, name string) {
	if !slices.ContainsFunc(c.cfg.Policy.References, func(r Reference) bool { return r.matches(kind, name, c.id) }) {
		c.deny(field, name, "no pattern of --allowed-references matches this "+kind)
	}
}

// group checks a secret of a group. Flyte's webhook puts the parts of it into paths and into the
// templates of Vault, where "../" or "}}" would lead out of the group.
func (c *policyCheck) group(field string, secret *appv1.Secret) {
	c.reference(field+".group", kindSecret, secret.GetGroup())
	if strings.ContainsAny(secret.GetGroup(), "\"`{}\\") {
		c.deny(field+".group", secret.GetGroup(), "quotes, braces and backslashes reach beyond the group, "+noOption)
	}
	for _, part := range [][2]string{{".groupVersion", secret.GetGroupVersion()}, {".key", secret.GetKey()}} {
		if name, text := part[0], part[1]; text != "" && len(validation.IsConfigMapKey(text)) > 0 {
			c.deny(field+name, text, "not only letters, digits, -, _ and ., "+noOption)
		}
	}
}

// pod checks every field that a pod spec sets. What the table does not know is denied.
func (c *policyCheck) pod(spec *corev1.PodSpec) {
	if spec.ServiceAccountName == "" && spec.DeprecatedServiceAccount == "" {
		c.account(c.accountField, defaultAccount)
	}
	c.walk(reflect.ValueOf(spec), podSpecField)
}

func (c *policyCheck) walk(v reflect.Value, path string) {
	switch v.Kind() {
	case reflect.Pointer:
		c.walk(v.Elem(), path)
	case reflect.Slice:
		for i := range v.Len() {
			c.walk(v.Index(i), path+"["+strconv.Itoa(i)+"]")
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[corev1.Toleration]() {
			c.toleration(v.Interface().(corev1.Toleration), path)
		}
		if !leaf(v.Type()) {
			c.fields(v.Type().Name(), v, path)
		}
	}
}

// leaf reports whether a type, none of a pod spec's own, is a value in itself.
func leaf(t reflect.Type) bool {
	return slices.Contains([]reflect.Type{
		reflect.TypeFor[resource.Quantity](), reflect.TypeFor[intstr.IntOrString](), reflect.TypeFor[metav1.LabelSelector](),
	}, t)
}

// fields checks the fields of a struct. owner is the type that they count as fields of.
func (c *policyCheck) fields(owner string, v reflect.Value, path string) {
	for i := range v.NumField() {
		value, field := v.Field(i), v.Type().Field(i)
		if value.IsZero() || value.Kind() == reflect.Slice && value.Len() == 0 || value.Kind() == reflect.Map && value.Len() == 0 {
			continue
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" && field.Anonymous {
			c.fields(owner, value, path)
			continue
		}
		c.field(owner+"."+name, value, path+"."+name)
	}
}

func (c *policyCheck) field(key string, v reflect.Value, path string) {
	switch class := classes()[key]; class {
	case classInside:
		c.walk(v, path)
	case classAccount:
		if path == podSpecField+".serviceAccountName" {
			path = c.accountField
		}
		c.account(path, v.String())
	case classSecret, classConfigMap, classClaim:
		c.reference(path, string(class), v.String())
	case classHost:
		c.host(key, v, path)
	case classOther:
		c.denied.Add(path, "reaches beyond the app, "+noOption)
	default:
		c.denied.Add(path, "not known to stay within the app, "+noOption)
	}
}

// host denies what reaches the node, but for the values that do not.
func (c *policyCheck) host(key string, v reflect.Value, path string) {
	allowed := strings.Fields(harmless[key])
	switch {
	case len(allowed) == 0:
		c.denied.Add(path, "reaches the node, "+noOption)
	case v.Kind() == reflect.Pointer:
		c.host(key, v.Elem(), path)
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			c.host(key, v.Index(i), path+"["+strconv.Itoa(i)+"]")
		}
	default:
		if value := fmt.Sprint(v); !slices.Contains(allowed, value) {
			c.deny(path, value, "reaches the node, "+noOption+"; want "+strings.Join(allowed, ", "))
		}
	}
}

// toleration denies what lets a pod onto nodes of the control plane. One without a key tolerates
// every taint.
func (c *policyCheck) toleration(t corev1.Toleration, path string) {
	if t.Key == "" || strings.HasPrefix(t.Key, nodeRolePrefix) {
		c.deny(path+".key", t.Key, "tolerates the taints of the control plane, "+noOption)
	}
}

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
