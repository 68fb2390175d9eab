package logsvc

import (
	"syscall"
	"time"
)

// rusageThread is RUSAGE_THREAD of getrusage(2).
const rusageThread = 1

// threadTime is the time of a processor that this thread has used. A busy machine takes longer for
// a turn, and an expression is not to blame for that.
func threadTime() time.Duration {
	var used syscall.Rusage
	if syscall.Getrusage(rusageThread, &used) != nil {
		return 0 // it knows no threads: nothing is judged
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
