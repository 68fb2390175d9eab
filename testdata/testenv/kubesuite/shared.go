package kubesuite

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// SharedWorld is started by its first user and shared by all tests of a package. The zero value is
// one that is not started.
type SharedWorld struct {
	Options testenv.Options
	// Prepare is called once with the world; nil: nothing is to be prepared.
	Prepare func(ctx context.Context, w *World) error

	once  sync.Once
	world *World
	err   error
}

// Get is the world, or the end of the test.
func (s *SharedWorld) Get(tb testing.TB) *World {
	tb.Helper()
	Needed(tb)
	s.once.Do(func() { s.world, s.err = s.start(context.Background()) }) // it outlives the test
	if s.err != nil {
		tb.Fatal(s.err)
	}
	return s.world
}

func (s *SharedWorld) start(ctx context.Context) (*World, error) {
	w, err := StartWorld(ctx, s.Options)
	if err != nil || s.Prepare == nil {
		return w, err
	}
	if err := s.Prepare(ctx, w); err != nil {
		return nil, errors.Join(err, w.Stop())
	}
	return w, nil
}

// Stop stops the world, if there is one.
func (s *SharedWorld) Stop() error {
	if s.world == nil {
		return nil
	}
	return s.world.Stop()
}
