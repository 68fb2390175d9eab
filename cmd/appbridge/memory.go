package main

import (
	"context"
	"math"
	"os"
	"runtime/debug"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/retry"
)

// limitMemory sets the memory limit of the Go runtime to nine tenths of the container's. A GOMEMLIMIT
// in the environment wins.
func limitMemory(container memlimit.Provider, log *zap.Logger) {
	const msg = "memory limit of the Go runtime"
	limit, err := memlimit.Set(memlimit.WithRatio(0.9), memlimit.WithProvider(container))
	_, explicit := os.LookupEnv("GOMEMLIMIT")
	switch {
	case err != nil:
		log.Info(msg, zap.String("from", "nowhere"), zap.Error(err))
	case limit == math.MaxInt64:
		log.Info(msg, zap.String("from", "nowhere"))
	case explicit:
		log.Info(msg, zap.String("from", "GOMEMLIMIT"), zap.Int64("bytes", limit))
	default:
		log.Info(msg, zap.String("from", "container"), zap.Int64("bytes", limit))
	}
}

// The heap growth between two collections, in percent: that of a start, and Go's own.
const (
	startGrowth = 50
	usualGrowth = 100
)

// limitStart halves the garbage that a start leaves behind, until ready is nil. A start reads the whole
// cluster and the bucket: without it the peak of memory would be twice what is kept, and a container
// needs its peak. A replica that stands by is ready: it takes over without this limit. A GOGC in the
// environment wins.
func limitStart(ctx context.Context, ready func() error) {
	if _, explicit := os.LookupEnv("GOGC"); explicit {
		return
	}
	debug.SetGCPercent(startGrowth)
	defer debug.SetGCPercent(usualGrowth)
	for ready() != nil && retry.Wait(ctx, 100*time.Millisecond) == nil {
	}
}
