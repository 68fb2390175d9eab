package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/appbridge/appbridge/testdata/testenv/network"
)

// guardScript outlives a parent that was killed: its standard input closes with
// the parent, whatever ended it. It then kills every process that left a pid
// file and removes the folder, which may take a second try while the last of
// them is still going down.
const guardScript = `
while read -r _; do :; done
for f in "$1"/*.pid; do
	[ -e "$f" ] && kill -KILL "$(cat "$f")" 2>/dev/null
done
rm -rf "$1" 2>/dev/null || { sleep 1; rm -rf "$1"; }
`

// guard makes sure that neither processes nor files stay behind.
type guard struct {
	dir   string
	cmd   *exec.Cmd
	alive *os.File // closing it, or the end of this process, sets the guard off
	ports []func() // releases them
}

// newGuard makes a fresh folder and starts the process that watches over it.
func newGuard() (*guard, error) {
	dir, err := os.MkdirTemp("", "appbridge-cluster-")
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	cmd := exec.Command("/bin/sh", "-c", guardScript, "guard", dir)
	cmd.Stdin = r
	// A Ctrl-C goes to the whole process group of the terminal; the guard has to survive it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Start()
	err = errors.Join(err, r.Close())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the guard: %w", err), w.Close(), os.RemoveAll(dir))
	}
	return &guard{dir: dir, cmd: cmd, alive: w}, nil
}

func (g *guard) pidFile(name string) string { return filepath.Join(g.dir, name+".pid") }

// wrap writes a launcher that notes its process id and becomes the binary, since
// envtest keeps the ids of what it starts to itself. envtest also asks each
// binary for its flags before every start; only one answer matters to it, and
// the API server alone needs half a second to give all.
func (g *guard) wrap(name, path string) (string, error) {
	script := fmt.Sprintf(`#!/bin/sh
if [ "$1" = --help ]; then
	echo "  --unsafe-no-fsync"
	exit
fi
echo $$ >%s
exec %s "$@"
`, quote(g.pidFile(name)), quote(path))
	launcher := filepath.Join(g.dir, name)
	if err := writeProgram(launcher, script); err != nil {
		return "", fmt.Errorf("write the launcher of %s: %w", name, err)
	}
	return launcher, nil
}

// writeProgram writes a file that is to be executed. No other goroutine starts a process meanwhile:
// it would inherit the file, open for writing, and the system executes no such file ("text file
// busy"). envtest tries again, but leaves a goroutine behind.
func writeProgram(path, script string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, []byte(script), 0o700)
}

// adopt has the guard end a process that was started elsewhere.
func (g *guard) adopt(name string, pid int) error {
	return os.WriteFile(g.pidFile(name), []byte(strconv.Itoa(pid)), 0o600)
}

// pid is the process id that a launcher noted.
func (g *guard) pid(name string) (int, error) {
	text, err := os.ReadFile(g.pidFile(name))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// kill ends a process that a launcher noted, if it still runs, without asking it.
func (g *guard) kill(name string) error {
	pid, err := g.pid(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return signal(pid, syscall.SIGKILL)
}

// signal is kill(2); a process that is gone is no error.
func signal(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal process %d: %w", pid, err)
	}
	return nil
}

// ended takes a process out of the guard's care: its id may soon be another's.
func (g *guard) ended(name string) error {
	if err := os.Remove(g.pidFile(name)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// address reserves an address for a server until close. The server keeps it over restarts.
func (g *guard) address() (string, error) {
	address, release, err := network.ReserveAddress()
	if err == nil {
		g.ports = append(g.ports, release)
	}
	return address, err
}

// close sets the guard off, for what is left, and waits until it has finished.
func (g *guard) close() error {
	err := errors.Join(g.alive.Close(), g.cmd.Wait())
	for _, release := range g.ports {
		release()
	}
	g.ports = nil
	return err
}

// errAddressInUse is the error of a server that found its address taken, by a program that does not
// reserve what it takes.
var errAddressInUse = errors.New("address already in use")

// inUse returns errAddressInUse if a server's log has that.
func inUse(log string) error {
	if text, err := os.ReadFile(log); err == nil && strings.Contains(string(text), errAddressInUse.Error()) {
		return errAddressInUse
	}
	return nil
}

// startAgain starts servers, a few times while the address of one is in use: each start has others.
func startAgain(start func() error) error {
	const tries = 5
	for try := 1; ; try++ {
		if err := start(); !errors.Is(err, errAddressInUse) || try == tries {
			return err
		}
	}
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
