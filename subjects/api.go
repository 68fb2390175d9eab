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
	return oneOf("app operation", op, APIGet, APIReplicas, APIIngress, APIDeploy, APIStop, APIDelete, APIDeleteReplica)
}

// API is the subject of an operation on one app, "<prefix>.api.<op>.<project>.<domain>.<app>".
func (s Subjects) API(op APIOp, id AppID) (string, error) {
	return opSubject("app operation subject", s.prefix+apiBranch, op, id)
}

// APIFilter matches one operation for all apps, "<prefix>.api.<op>.*.*.*".
func (s Subjects) APIFilter(op APIOp) (string, error) {
	return opFilter("app operation filter", s.prefix+apiBranch, op)
}

// ParseAPI is the inverse of API.
func (s Subjects) ParseAPI(subject string) (APIOp, AppID, error) {
	return parseOp[APIOp](s, "app operation subject", apiBranch, subject)
}

// APIList is the subject of a list request: "<prefix>.api.list" for all apps, followed by the
// project, or by project and domain, for only theirs. Empty means all. A domain without a project
// gives an error.
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
	n := min(strings.Count(subject, ".")-strings.Count(s.prefix+apiList, "."), 2)
	parts, err := s.parse("app list subject", apiList+".", subject, n)
	if err != nil {
		return "", "", err
	}
	parts = append(parts, "") // without a domain
	return parts[0], parts[1], nil
}
