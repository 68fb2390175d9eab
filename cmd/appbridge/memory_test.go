package main

import (
	"errors"
	"math"
	"runtime/debug"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestLimitMemory(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	const own = 64 << 30 // what the runtime takes from GOMEMLIMIT when a process starts
	tests := []struct {
		name, env string
		container memlimit.Provider
		initial   int64
		limit     int64
		from      string
	}{
		{"container", "", memlimit.Limit(100 << 30), math.MaxInt64, 90 << 30, "container"},
		{"GOMEMLIMIT wins", "64GiB", memlimit.Limit(100 << 30), own, own, "GOMEMLIMIT"},
		{"no limit", "", func() (uint64, error) { return 0, memlimit.ErrNoLimit }, math.MaxInt64, math.MaxInt64, "nowhere"},
		{"unknown", "", func() (uint64, error) { return 0, errors.New("no cgroup") }, math.MaxInt64, math.MaxInt64, "nowhere"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.env != "" {
				t.Setenv("GOMEMLIMIT", test.env)
			}
			debug.SetMemoryLimit(test.initial)
			core, logs := observer.New(zap.InfoLevel)
			limitMemory(test.container, zap.New(core))
			if got, want := debug.SetMemoryLimit(-1), test.limit; got != want {
				t.Errorf("got limit %d, want %d", got, want)
			}
			if logs.Len() != 1 || logs.All()[0].ContextMap()["from"] != test.from {
				t.Errorf("got log %v, want one line with from=%s", logs.All(), test.from)
			}
		})
	}
}
