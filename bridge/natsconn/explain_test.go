package natsconn_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/testdata/testenv/configtest"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// A right that is missing explains no request that is allowed and has no answer.
func TestExplainAnotherRight(t *testing.T) {
	t.Parallel()
	s := suite.NATSReloadable(t, rightsOf(`publish: {allow: ">", deny: "optional"}, subscribe: ">"`))
	dir := t.TempDir()
	configtest.ReplaceFiles(t, dir, map[string]string{"password": "right"})
	conn := connect(t, s, natsconn.Config{User: "bridge", PasswordFile: filepath.Join(dir, "password")}, zap.NewNop())
	eventually(t, "the connection", func() error { return connected(conn) })
	if _, err := conn.NATS.SubscribeSync("asked"); err != nil { // it does not answer
		t.Fatal(err)
	}
	ask := func(subject string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		before := conn.NATS.LastError()
		_, err := conn.NATS.RequestWithContext(ctx, subject, nil)
		return natsconn.Explain(conn.NATS, before, err)
	}
	if err := ask("optional"); !strings.Contains(err.Error(), `Publish to "optional"`) {
		t.Errorf("a denied request: got %v", err)
	}
	if err := ask("asked"); strings.Contains(err.Error(), nats.ErrPermissionViolation.Error()) {
		t.Errorf("an allowed request: got %v", err)
	}
}
