package appsvc

import (
	"errors"
	"strings"
	"testing"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
)

// Writes are bounded in bytes wherever they wait, and one project has half of them.
func TestHeldBytes(t *testing.T) {
	l := newLimits(Config{MaxReads: 1, MaxWrites: 1})
	write := func(project string, bytes int) *apiRequest {
		return &apiRequest{app: subjects.AppID{Project: project}, body: make([]byte, bytes-writeBytes)}
	}
	takes := func(r *apiRequest, want string) {
		t.Helper()
		err := l.admit(r)
		var failure *request.Error
		switch {
		case want == "" && err != nil:
			t.Errorf("%d bytes: got %v", len(r.body), err)
		case want != "" && (!errors.As(err, &failure) || failure.Code != subjects.CodeResourceExhausted || !strings.Contains(failure.Text, want)):
			t.Errorf("%d bytes: got %v, want a 429 with %q", len(r.body), err, want)
		}
	}
	large := write("a", heldBytes/2)
	takes(large, "")
	takes(write("a", writeBytes), `project "a": its requests that change apps hold 33554432 bytes, at most 33554432 for one project`)
	takes(write("b", heldBytes/4), "")
	takes(write("c", heldBytes/4), "")
	takes(write("c", writeBytes), "requests that change apps hold 67108864 bytes, at most 67108864")
	l.dismiss(large)
	takes(write("c", writeBytes), "")
	if _, ok := l.held["a"]; ok || len(l.held) != 2 {
		t.Errorf("it holds %v, want nothing of a", l.held)
	}
}
