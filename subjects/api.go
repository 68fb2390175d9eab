package subjects

import (
	"fmt"
	"strings"
)

// APIOp is an operation on one app.
type APIOp string

// The operations on one app.
const (
	APIGet           APIOp = "get"            // answers with the app
	APIReplicas      APIOp = "replicas"       // answers with the app's replicas
	APIIngress       APIOp = "ingress"        // answers with the app's public address
	APIDeploy        APIOp = "deploy"         // creates, changes or restarts the app
	APIStop          APIOp = "stop"           // scales the app to zero
	APIDelete        APIOp = "delete"         // removes the app
	APIDeleteReplica APIOp = "delete-replica" // removes one replica of the app
)

const (
	apiBranch = ".api."
	apiList   = ".api.list"
)

func (op APIOp) validate() error {
	switch op {
	case APIGet, APIReplicas, APIIngress, APIDeploy, APIStop, APIDelete, APIDeleteReplica:
		return nil
	}
	return fmt.Errorf("%w: app operation %s", ErrInvalidName, quote(string(op)))
}

// API is the subject of an operation on one app, "<prefix>.api.<op>.<project>.<domain>.<app>". The
// error is that of AppID.Validate, or wraps ErrInvalidName for an unknown operation.
func (s Subjects) API(op APIOp, id AppID) (string, error) {
	if err := op.validate(); err != nil {
		return "", fmt.Errorf("app operation subject: %w", err)
	}
	key, err := id.Key()
	if err != nil {
		return "", fmt.Errorf("app operation subject: %w", err)
	}
	return s.prefix + apiBranch + string(op) + "." + key, nil
}

// APIFilter matches one operation for all apps, "<prefix>.api.<op>.*.*.*": what the service listens
// on. The error wraps ErrInvalidName for an unknown operation.
func (s Subjects) APIFilter(op APIOp) (string, error) {
	if err := op.validate(); err != nil {
		return "", fmt.Errorf("app operation filter: %w", err)
	}
	return s.prefix + apiBranch + string(op) + ".*.*.*", nil
}

// ParseAPI is the inverse of API.
func (s Subjects) ParseAPI(subject string) (APIOp, AppID, error) {
	op, id, err := s.parseOpID(subject, apiBranch)
	if err == nil {
		err = APIOp(op).validate()
	}
	if err != nil {
		return "", AppID{}, fmt.Errorf("parse app operation subject %s: %w", quote(subject), err)
	}
	return APIOp(op), id, nil
}

// APIList is the subject of a list request: "<prefix>.api.list" for all apps,
// followed by the project, or by project and domain, to see only theirs. Empty
// means all. A domain without a project gives an error that wraps ErrEmptyPart;
// parts too long for a subject give one that wraps ErrTooLong.
func (s Subjects) APIList(project, domain string) (string, error) {
	if project == "" && domain == "" {
		return s.prefix + apiList, nil
	}
	parts := []part{{"project", project}}
	if domain != "" {
		parts = append(parts, part{"domain", domain})
	}
	tokens, err := joinTokens(parts...)
	if err != nil {
		return "", fmt.Errorf("app list subject: %w", err)
	}
	return s.prefix + apiList + "." + tokens, nil
}

// APIListFilters match every list request, one filter for each length of the subject.
func (s Subjects) APIListFilters() []string {
	list := s.prefix + apiList
	return []string{list, list + ".*", list + ".*.*"}
}

// ParseAPIList is the inverse of APIList.
func (s Subjects) ParseAPIList(subject string) (project, domain string, err error) {
	if subject == s.prefix+apiList {
		return "", "", nil
	}
	rest, err := s.cut(subject, apiList+".")
	if err != nil {
		return "", "", fmt.Errorf("parse app list subject %s: %w", quote(subject), err)
	}
	n := min(strings.Count(rest, ".")+1, 2)
	parts, err := splitTokens(rest, n)
	if err != nil {
		return "", "", fmt.Errorf("parse app list subject %s: %w", quote(subject), err)
	}
	if n == 2 {
		domain = parts[1]
	}
	return parts[0], domain, nil
}
