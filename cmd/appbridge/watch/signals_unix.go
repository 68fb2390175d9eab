//go:build unix

package watch

import (
	"os"
	"syscall"
)

// The signals after which a terminal may show something else: it has another size, or the process
// goes on after it was stopped.
var (
	resized   os.Signal = syscall.SIGWINCH
	continued os.Signal = syscall.SIGCONT
)
