package kubesuite

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// Instance is a running `appbridge serve`.
type Instance struct {
	*testenv.Process
	// HTTP is its address, host:port.
	HTTP string
}

// Get asks its HTTP server.
func (i *Instance) Get(ctx context.Context, path string) (body string, status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+i.HTTP+path, nil)
	if err != nil {
		return "", 0, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return "", 0, err
	}
	text, err := io.ReadAll(resp.Body)
	return string(text), resp.StatusCode, errors.Join(err, resp.Body.Close())
}

func (i *Instance) ready(ctx context.Context) error {
	body, status, err := i.Get(ctx, "/readyz")
	if err == nil && status != http.StatusOK {
		err = errors.New(body)
	}
	return err
}

// Metric is the sum of a metric over its labels, or over those that a name with
// labels names.
func (i *Instance) Metric(tb testing.TB, name string) float64 {
	tb.Helper()
	body, _, err := i.Get(tb.Context(), "/metrics")
	if err != nil {
		tb.Fatal(err)
	}
	sum := 0.0
	for lines := bufio.NewScanner(strings.NewReader(body)); lines.Scan(); {
		rest, ok := strings.CutPrefix(lines.Text(), name)
		if !ok || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		n, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			tb.Fatalf("%s: %v", lines.Text(), err)
		}
		sum += n
	}
	return sum
}
