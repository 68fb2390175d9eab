package watch

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/term"
)

// openTerminal opens a pseudo-terminal.
func openTerminal(t *testing.T) (slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	var unlocked, number int32
	for request, value := range map[uintptr]*int32{syscall.TIOCSPTLCK: &unlocked, syscall.TIOCGPTN: &number} {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, master.Fd(), request, uintptr(unsafe.Pointer(value))); errno != 0 {
			t.Fatal(errno)
		}
	}
	if slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = slave.Close() })
	return slave
}

func settings(t *testing.T, f *os.File) term.State {
	t.Helper()
	var state *term.State
	if err := control(f, func(fd int) (err error) { state, err = term.GetState(fd); return err }); err != nil {
		t.Fatal(err)
	}
	return *state
}

// A terminal that cannot be written to keeps its settings.
func TestTerminalIsGivenBack(t *testing.T) {
	slave := openTerminal(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = full.Close() }()
	before := settings(t, slave)
	w := &watch{Output: Output{Terminal: &Terminal{out: full, input: slave, stopped: make(chan struct{})}}}
	if err := w.draw(t.Context(), newModel(nil), nil); err == nil {
		t.Error("got no error")
	}
	if after := settings(t, slave); after != before {
		t.Errorf("the terminal has %+v, want %+v", after, before)
	}
}

// A process that exits at once gives the terminal back, and only one that has it.
func TestRelease(t *testing.T) {
	slave := openTerminal(t)
	out, err := os.Create(t.TempDir() + "/screen")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	before := settings(t, slave)
	terminal := &Terminal{out: out, input: slave, stopped: make(chan struct{})}
	terminal.Release()
	if _, err := terminal.enter(); err != nil {
		t.Fatal(err)
	}
	if settings(t, slave) == before {
		t.Error("the keyboard is not read")
	}
	terminal.Release()
	if after := settings(t, slave); after != before {
		t.Errorf("the terminal has %+v, want %+v", after, before)
	}
	if err := terminal.leave(); err != nil {
		t.Error(err)
	}
	terminal.Release()
	written, err := os.ReadFile(out.Name())
	if want := "\x1b[?1049h\x1b[?25l\x1b[?7l" + "\x1b[?7h\x1b[?25h\x1b[?1049l" + "\x1b[?7h\x1b[?25h\x1b[?1049l"; err != nil || string(written) != want {
		t.Errorf("got %q, %v; want %q", written, err, want)
	}
}
