package kservice

import (
	"fmt"
	"strings"

	"github.com/appbridge/appbridge/subjects"
)

// checkID checks that an id is valid in labels and in the name of a Knative Service, a DNS label
// that begins with a letter.
func checkID(id subjects.AppID, found *Problems) {
	const field = "app.metadata.id."
	at := 0
	for _, part := range []struct{ field, value string }{
		{field + "name", id.Name}, {field + "project", id.Project}, {field + "domain", id.Domain},
	} {
		wrong := wrongLabel(part.value)
		if wrong == "" {
			wrong = wrongInName(part.value, at, id)
		}
		if wrong != "" {
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
