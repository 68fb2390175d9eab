package alerts_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// page has a section for each alert.
var page = filepath.Join("..", "..", "docs", "operate.md") //nolint:gochecknoglobals // a constant

// pageURL is where alerts link to.
const pageURL = "https://github.com/appbridge/appbridge/blob/main/docs/operate.md#"

// sections are the page's sections about alerts, by name.
func sections(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, alerts, ok := strings.Cut("\n"+string(text), "\n## Alerts\n")
	if !ok {
		t.Fatalf("%s has no section Alerts", page)
	}
	alerts, _, _ = strings.Cut(alerts, "\n## ")
	all := map[string]string{}
	for _, section := range strings.Split(alerts, "\n### ")[1:] {
		name, body, _ := strings.Cut(section, "\n")
		all[name] = body
	}
	return all
}

// script is the block of commands of a section.
func script(section string) string {
	_, block, _ := strings.Cut(section, "\n```sh\n")
	block, _, _ = strings.Cut(block, "```")
	return block
}

// commands runs the commands of an alert's section, which have to succeed and to print something.
func (r *run) commands(alert string) {
	r.t.Helper()
	env := "set -euo pipefail; export APPBRIDGE_CLUSTER_NAME=test APPBRIDGE_NAMESPACES=" + r.namespace + "\n"
	c := r.Start(r.t, env+script(sections(r.t)[alert]))
	if c.Wait() == "" && c.Stderr() == "" {
		r.t.Errorf("the commands of %s print nothing", alert)
	}
}

// Each alert has a section with its meaning, what to do and a command, and links to it; each
// section has an alert.
func TestSections(t *testing.T) {
	t.Parallel()
	left := sections(t)
	for _, rule := range readRules(t) {
		section, ok := left[rule.Name]
		if !ok {
			t.Errorf("%s has no section %s", page, rule.Name)
		}
		delete(left, rule.Name)
		for _, part := range []string{"**What it means:** ", "**What to do:** "} {
			if !strings.Contains(section, "\n"+part) {
				t.Errorf("the section of %s has no %s", rule.Name, part)
			}
		}
		if strings.TrimSpace(script(section)) == "" {
			t.Errorf("the section of %s has no command", rule.Name)
		}
		if got, want := rule.Annotations["runbook_url"], pageURL+strings.ToLower(rule.Name); got != want {
			t.Errorf("%s links to %q, want %q", rule.Name, got, want)
		}
		if got := rule.Labels["severity"]; got != "critical" && got != "warning" {
			t.Errorf("the severity of %s is %q", rule.Name, got)
		}
		if rule.Annotations["summary"] == "" || !strings.Contains(rule.Annotations["description"], "{{") {
			t.Errorf("%s has the annotations %q, want a summary and a description with values", rule.Name, rule.Annotations)
		}
	}
	for name := range left {
		t.Errorf("%s has a section %s, and there is no such alert", page, name)
	}
}
