package compose

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// checkPrometheus checks that Prometheus has appbridge's series, and evaluates its rules without an
// error.
func (p *project) checkPrometheus(t *testing.T) {
	t.Helper()
	suite.Eventually(t, suite.Patience, "Prometheus has the series of appbridge", func() error {
		var found struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
		if err := p.prometheus(t, "/api/v1/query?query=appbridge_ready", &found); err != nil {
			return err
		}
		if len(found.Result) != 1 || found.Result[0].Value[1] != "1" || found.Result[0].Metric["job"] != "appbridge" {
			return fmt.Errorf("appbridge_ready is %v, want 1 of job appbridge", found.Result)
		}
		return nil
	})
	suite.Eventually(t, suite.Patience, "Prometheus evaluates the rules", func() error {
		var found struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
		if err := p.prometheus(t, "/api/v1/rules", &found); err != nil {
			return err
		}
		if len(found.Groups) == 0 {
			return errors.New("it has no rules")
		}
		for _, g := range found.Groups {
			for _, r := range g.Rules {
				if r.Health != "ok" {
					return fmt.Errorf("rule %s: %s %s", r.Name, r.Health, r.LastError)
				}
			}
		}
		return nil
	})
}

// prometheus asks Prometheus' API at its published port.
func (p *project) prometheus(t *testing.T, path string, data any) error {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.address(t, "prometheus", "9090")+path, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return err
	}
	answer := struct {
		Status string
		Data   any
	}{Data: data}
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("%s: %s %q: %w", path, response.Status, body, err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s %s", path, response.Status, body)
	}
	return nil
}
