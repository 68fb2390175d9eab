package watch

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/appbridge/appbridge/cmd/appbridge/appview"
)

// Terminal is where a live table is drawn. It uses the alternate screen, so that what the shell
// printed before is there again at the end.
type Terminal struct {
	Color bool

	out     *os.File
	input   *os.File      // nil: the keyboard is not read
	stopped chan struct{} // closed by leave
	reading sync.WaitGroup

	mu     sync.Mutex
	before *term.State // of the input while the keyboard is read
	taken  bool        // between enter and leave
}

// OpenTerminal is the terminal that out writes to. With keys, the keyboard of the controlling
// terminal is read.
func OpenTerminal(out *os.File, keys bool) *Terminal {
	t := &Terminal{out: out, stopped: make(chan struct{})}
	if keys {
		// A file of its own, whose reading a deadline ends; without one there are no keys.
		if input, err := os.OpenFile("/dev/tty", os.O_RDONLY, 0); err == nil {
			t.input = input
		}
	}
	return t
}

// Size is the size of the terminal, and a usual one where that is not known.
func (t *Terminal) Size() (columns, rows int) {
	columns, rows, err := term.GetSize(int(t.out.Fd()))
	if err != nil || columns <= 0 || rows <= 0 {
		return 80, 24
	}
	return columns, rows
}

// enter takes the terminal, and returns the keys that are pressed: nil without a keyboard. leave is
// called also after an error.
func (t *Terminal) enter() (<-chan key, error) {
	var keys chan key
	t.mu.Lock()
	t.taken = true
	t.mu.Unlock()
	if t.input != nil {
		// Without a deadline, reading could not be ended.
		if err := t.input.SetReadDeadline(time.Time{}); err == nil && t.raw() == nil {
			keys = make(chan key)
			t.reading.Go(func() { t.read(keys) })
		}
	}
	return keys, t.write(appview.Enter)
}

// again takes the terminal again, after the shell had it while the process was stopped.
func (t *Terminal) again() error {
	if t.input != nil {
		_ = t.raw() // without it, keys are read once a line is complete
	}
	return t.write(appview.Enter)
}

// leave gives the terminal back as it was.
func (t *Terminal) leave() error {
	close(t.stopped)
	if t.input != nil {
		_ = t.input.SetReadDeadline(time.Now())
	}
	t.reading.Wait()
	return errors.Join(t.restore(), t.write(appview.Leave))
}

// restore gives the keyboard back, once.
func (t *Terminal) restore() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken = false
	if t.before == nil {
		return nil
	}
	before := t.before
	t.before = nil
	return control(t.input, func(fd int) error { return term.Restore(fd, before) })
}

// stuckWrite is how long a terminal that takes no more output gets for the last of it.
const stuckWrite = 100 * time.Millisecond

// Release gives the terminal back for a process that is about to exit although Run has not returned,
// perhaps since the terminal takes no more output. Any goroutine may call it.
func (t *Terminal) Release() {
	t.mu.Lock()
	taken := t.taken
	t.mu.Unlock()
	if !taken {
		return
	}
	_ = t.restore() // nothing can be done about it
	written := make(chan struct{})
	go func() {
		defer close(written)
		_ = t.write(appview.Leave)
	}()
	select {
	case <-written:
	case <-time.After(stuckWrite):
	}
}

// Close frees the keyboard.
func (t *Terminal) Close() {
	if t.input != nil {
		_ = t.input.Close() // nothing was written to it
	}
}

// raw has the terminal send each key at once, and show none.
func (t *Terminal) raw() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return control(t.input, func(fd int) error {
		before, err := term.MakeRaw(fd)
		if err == nil && t.before == nil {
			t.before = before
		}
		return err
	})
}

// control calls do with the descriptor. File.Fd would end the deadlines of a file.
func control(f *os.File, do func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var doErr error
	err = conn.Control(func(fd uintptr) { doErr = do(int(fd)) })
	return errors.Join(err, doErr)
}

func (t *Terminal) write(text string) error {
	_, err := io.WriteString(t.out, text)
	return err
}

// read passes on the keys until leave.
func (t *Terminal) read(keys chan<- key) {
	buf := make([]byte, 64)
	for {
		n, err := t.input.Read(buf)
		if err != nil {
			return
		}
		for _, k := range keysOf(buf[:n]) {
			select {
			case keys <- k:
			case <-t.stopped:
				return
			}
		}
	}
}

// key is a key that means something.
type key int

const (
	noKey key = iota
	keyEnd
	keyUp
	keyDown
	keyPageUp
	keyPageDown
	keyHome
	keyBottom
	keyRepaint
)

// sequences are what terminals send for keys; 3 is Ctrl-C, which makes no signal while the keyboard
// is read.
var sequences = map[string]key{
	"q": keyEnd, "\x03": keyEnd,
	"\x1b[A": keyUp, "\x1bOA": keyUp, "k": keyUp,
	"\x1b[B": keyDown, "\x1bOB": keyDown, "j": keyDown,
	"\x1b[5~": keyPageUp, "b": keyPageUp,
	"\x1b[6~": keyPageDown, " ": keyPageDown, "f": keyPageDown,
	"\x1b[H": keyHome, "\x1bOH": keyHome, "\x1b[1~": keyHome, "g": keyHome,
	"\x1b[F": keyBottom, "\x1bOF": keyBottom, "\x1b[4~": keyBottom, "G": keyBottom,
	"\x0c": keyRepaint, // Ctrl-L
}

// keysOf are the keys in what a terminal sent. The rest is skipped.
func keysOf(sent []byte) []key {
	var keys []key
	for len(sent) > 0 {
		n := 1
		for length := min(len(sent), 4); length > 0; length-- {
			if k, known := sequences[string(sent[:length])]; known {
				keys, n = append(keys, k), length
				break
			}
		}
		sent = sent[n:]
	}
	return keys
}
