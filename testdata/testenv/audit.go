package testenv

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// auditPolicy notes each request once, when it has been answered (a watch: when
// it began).
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitManagedFields: true
rules:
- level: Metadata
  verbs: [watch]
  omitStages: [RequestReceived, ResponseComplete]
- level: Metadata
  omitStages: [RequestReceived, ResponseStarted]
`

// Request is one request that the API server noted.
type Request struct {
	Verb       string `json:"verb"`
	RequestURI string `json:"requestURI"`
	UserAgent  string `json:"userAgent"`
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		APIGroup, Resource, Namespace, Name, Subresource string
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
}

func (c *Cluster) configureAudit() error {
	policy := filepath.Join(c.guard.dir, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return fmt.Errorf("write the audit policy: %w", err)
	}
	c.audit = filepath.Join(c.guard.dir, "audit.log")
	c.env.ControlPlane.GetAPIServer().Configure().
		Set("audit-policy-file", policy).
		Set("audit-log-path", c.audit).
		Set("audit-log-mode", "blocking")
	return nil
}

// Audit lists the requests that the API server has answered since the cluster
// started, with Options.Audit.
func (c *Cluster) Audit() ([]Request, error) {
	if c.audit == "" {
		return nil, errors.New("read the audit log: the cluster was started without Options.Audit")
	}
	text, err := os.ReadFile(c.audit)
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	// What stands after the last newline is still being written.
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	var requests []Request
	for line := range bytes.Lines(text) {
		var r Request
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("read the audit log: %w", err)
		}
		requests = append(requests, r)
	}
	return requests, nil
}
