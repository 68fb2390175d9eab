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
	t.Parallel()
	l := newLimits(Config{MaxReads: 1, MaxWrites: 1})
	write := func(project string, bytes int) *apiRequest {
		return &apiRequest{Request: &request.Request{Body: make([]byte, bytes-writeBytes)}, app: subjects.AppID{Project: project}}
	}
	takes := func(r *apiRequest, want string) *request.Slot {
		t.Helper()
		slot, err := l.hold(t.Context(), r)
		var failure *request.Error
		switch {
		case want == "" && err != nil:
			t.Errorf("%d bytes: got %v", len(r.Body), err)
		case want != "" && (!errors.As(err, &failure) || failure.Code != subjects.CodeResourceExhausted || !strings.Contains(failure.Text, want)):
			t.Errorf("%d bytes: got %v, want a 429 with %q", len(r.Body), err, want)
		}
		return slot
	}
	large := takes(write("a", heldBytes/2), "")
	takes(write("a", writeBytes), `project "a" has 33554432 of 67108864 bytes of requests that change apps, at most 33554432, this request needs 16384`)
	takes(write("b", heldBytes/4), "")
	takes(write("c", heldBytes/4), "")
	takes(write("c", writeBytes), "67108864 of 67108864 bytes of requests that change apps are taken, this request needs 16384")
	large.Release()
	takes(write("c", writeBytes), "")
}
