package pods

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
)

// The slots of a stream that is not read yet come back as soon as they are revoked: its reader
// may never come.
func TestRevokedBeforeRun(t *testing.T) {
	t.Parallel()
	slots := request.NewLimiter(request.Limit{Option: "max-pod-streams", What: "Kubernetes log streams", Max: 4})
	evil := &lease{slots: slots, project: "evil"}
	for range 2 {
		if err := evil.take(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	shop := &lease{slots: slots, project: "shop"}
	if err := shop.take(ctx, 2); err != nil {
		t.Fatal(err)
	}
	running, end := evil.run(t.Context())
	defer end(nil)
	err := context.Cause(running)
	var failure *request.Error
	if !errors.As(err, &failure) || failure.Code != subjects.CodeResourceExhausted {
		t.Errorf("got %v", err)
	}
	if again := evil.take(t.Context(), 1); again != err { //nolint:errorlint // the same one
		t.Errorf("got %v", again)
	}
	evil.giveBack() // as its readers do
	evil.close()
	shop.close()
	if active := slots.Usage().Active; active != 0 {
		t.Errorf("%d slots are taken", active)
	}
}
