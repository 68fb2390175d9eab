package logsvc

import (
	"context"
	"errors"
	"testing"

	"github.com/appbridge/appbridge/bridge/request"

	"github.com/appbridge/appbridge/logsvc/match"
	"github.com/appbridge/appbridge/subjects"
)

// Only requests with expressions wait for a turn of those that have some.
func TestParseWaits(t *testing.T) {
	t.Parallel()
	s := &Service{turns: match.NewTurns()}
	for range s.turns.Usage().Max {
		slot, err := s.turns.Acquire(t.Context(), request.Claim{Project: checkout.Project, Units: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer slot.Release()
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	for body, waits := range map[string]bool{
		"": false, `{"tail": 10}`: false, `{"include": "x"}`: true, `{"exclu\u0064e": "x"}`: true, `{"include": "a", "tail": 1`: false,
	} {
		err := s.parse(ctx, newRequest(subjects.LogGet, checkout, &request.Request{}), []byte(body))
		if errors.Is(err, context.Canceled) != waits {
			t.Errorf("%s: got %v", body, err)
		}
	}
}
