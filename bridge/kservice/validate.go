package kservice

import (
	"fmt"
	"strings"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// maxOrgBytes bounds the organization, since Kubernetes does not, so that the app fits into a
// message.
const maxOrgBytes = 253

// ValidateApp validates an app before a deploy. wrong has the problems, each with the field in
// protobuf JSON and its value. Kubernetes and Knative may still reject the app by further rules. Of
// app.metadata only the organization is validated.
//
// denied has the fields that reach beyond the app, each with the option that would allow it. Both
// lists are bounded, and end with the number of omitted entries.
func ValidateApp(id subjects.AppID, app *appv1.App, cfg DeployConfig) (wrong, denied []string) {
	found := &Problems{}
	checkID(id, found)
	if org := app.GetMetadata().GetId().GetOrg(); len(org) > maxOrgBytes {
		found.Add("app.metadata.id.org", fmt.Sprintf("%s: is %d bytes, want at most %d", Quote(org), len(org), maxOrgBytes))
	}
	_, inSpec, beyond := build(id, app, cfg)
	found.join(inSpec)
	return found.Texts(), beyond.Texts()
}

// checkID checks that an id is valid in labels and in the name of a Knative Service, a DNS label
// that begins with a letter.
func checkID(id subjects.AppID, found *Problems) {
	const field = "app.metadata.id."
	at := 0
	for _, part := range []struct{ field, value string }{
		{field + "name", id.Name}, {field + "project", id.Project}, {field + "domain", id.Domain},
	} {
		if wrong := wrongLabel(part.value); wrong != "" {
			found.Add(part.field, Quote(part.value)+": "+wrong)
		} else if wrong := wrongInName(part.value, at, id); wrong != "" {
			found.Add(part.field, Quote(part.value)+": "+wrong)
		}
		at += len(part.value) + len("-")
	}
}

// wrongLabel is the reason why a part of an id is invalid as the value of a label.
func wrongLabel(value string) string {
	if value == "" {
		return "must not be empty"
	}
	if len(value) > maxNameBytes {
		return fmt.Sprintf("is %d bytes, want at most %d", len(value), maxNameBytes)
	}
	for _, r := range value {
		if !isAlphanumeric(r) && !strings.ContainsRune("-_.", r) {
			return fmt.Sprintf("must not hold %q: want letters, digits and any of - _ .", r)
		}
	}
	if first, last := rune(value[0]), rune(value[len(value)-1]); !isAlphanumeric(first) || !isAlphanumeric(last) {
		return "must begin and end with a letter or a digit"
	}
	return ""
}

// wrongInName is the reason why a part of an id, which begins at byte start of the name of the
// Knative Service, makes that name invalid. The cut of a long name may remove the reason.
func wrongInName(value string, start int, id subjects.AppID) string {
	kept := value
	if len(id.Name)+len(id.Project)+len(id.Domain)+len("--") > maxNameBytes {
		kept = value[:min(len(value), max(0, cutNameBytes-start))]
	}
	if at := strings.IndexAny(kept, "_."); at >= 0 {
		return fmt.Sprintf("must not hold %q: Knative would refuse the name %s", kept[at], Quote(Name(id)))
	}
	if start == 0 && !isLetter(rune(value[0])) {
		return fmt.Sprintf("must begin with a letter: Knative would refuse the name %s", Quote(Name(id)))
	}
	return ""
}

func isLetter(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
}

func isAlphanumeric(r rune) bool {
	return isLetter(r) || '0' <= r && r <= '9'
}
