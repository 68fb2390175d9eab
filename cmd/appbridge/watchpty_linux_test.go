package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// screen is a terminal with `appbridge watch` in it.
type screen struct {
	tb     testing.TB
	master *os.File
	slave  *os.File
	out    *output
	cmd    *exec.Cmd
	read   chan struct{} // closed when the terminal is

	before   syscall.Termios // what a shell has set
	taking   int32           // keys that waited when it was last looked at
	hold     sync.Mutex      // keeps the terminal from being read
	mu       sync.Mutex
	arrivals []arrival
}

// arrival is when the output had so many bytes.
type arrival struct {
	at     time.Time
	length int
}

// terminalSettings are those that a shell would find.
func terminalSettings(tb testing.TB, f *os.File) syscall.Termios {
	tb.Helper()
	var settings syscall.Termios
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TCGETS, uintptr(unsafe.Pointer(&settings))); errno != 0 {
		tb.Fatal(errno)
	}
	return settings
}

func (s *screen) resize(columns, rows uint16) {
	s.tb.Helper()
	size := [4]uint16{rows, columns}
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, s.master.Fd(), syscall.TIOCSWINSZ, uintptr(unsafe.Pointer(&size))); errno != 0 {
		s.tb.Fatal(errno)
	}
}

// watchOnScreen starts the command in a terminal of this size.
func watchOnScreen(tb testing.TB, columns, rows uint16, env []string, args ...string) *screen {
	tb.Helper()
	s := &screen{tb: tb, out: &output{}, read: make(chan struct{})}
	s.master, s.slave = openTerminal(tb)
	s.before = terminalSettings(tb, s.slave)
	s.resize(columns, rows)
	binary, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	s.cmd = exec.Command(binary, append([]string{"watch"}, args...)...)
	s.cmd.Env = slices.Concat(env, []string{"TERM=xterm"})
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = s.slave, s.slave, s.slave
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	go func() {
		defer close(s.read)
		buf := make([]byte, 64<<10)
		for length := 0; ; {
			s.hold.Lock()
			n, err := s.master.Read(buf)
			s.hold.Unlock()
			_, _ = s.out.Write(buf[:n])
			length += n
			s.mu.Lock()
			s.arrivals = append(s.arrivals, arrival{time.Now(), length})
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	tb.Cleanup(func() {
		_ = s.cmd.Process.Kill() // it may have ended
		_ = s.cmd.Wait()
		_ = s.slave.Close()
		_ = s.master.Close()
		<-s.read
	})
	return s
}

// lines are what the terminal shows: the newest screen.
func (s *screen) lines() []string { return screenLines(s.out.String()) }

// screenLines are the newest screen of an output.
func screenLines(all string) []string {
	at := strings.LastIndex(all, "\x1b[H")
	if at < 0 {
		return nil
	}
	text := strings.ReplaceAll(strings.ReplaceAll(all[at+len("\x1b[H"):], "\x1b[K", ""), "\x1b[0m", "")
	for _, color := range []string{"1", "2", "31", "32", "33"} {
		text = strings.ReplaceAll(text, "\x1b["+color+"m", "")
	}
	return strings.Split(text, "\r\n")
}

// shownAt is when a screen was there for the first time. The poll of shows is no part of it.
func (s *screen) shownAt(what string, ok func(lines []string) bool) time.Time {
	s.tb.Helper()
	s.shows(what, ok)
	all := s.out.String()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.arrivals {
		if ok(screenLines(all[:min(a.length, len(all))])) {
			return a.at
		}
	}
	s.tb.Fatalf("the terminal did not show %s", what)
	return time.Time{}
}

// shows waits for a screen.
func (s *screen) shows(what string, ok func(lines []string) bool) {
	s.tb.Helper()
	suite.Eventually(s.tb, suite.Patience, "the terminal shows "+what, func() error {
		if lines := s.lines(); !ok(lines) {
			return errors.New(strings.Join(lines, "\n"))
		}
		return nil
	})
}

func (s *screen) press(keys string) {
	s.tb.Helper()
	if _, err := s.master.WriteString(keys); err != nil {
		s.tb.Fatal(err)
	}
}

// last is the footer.
func last(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return lines[len(lines)-1]
}

// The table fits the terminal, follows its size, the keys, the apps and the server, and leaves the
// terminal as it was.
func TestWatchOnATerminal(t *testing.T) {
	t.Parallel()
	port, dir := suite.FreePort(t), t.TempDir()
	begin := func() *server.Server {
		return suite.NATS(t, &server.Options{JetStream: true, StoreDir: dir, Port: port})
	}
	nats := begin()
	p := newPublishedApps(t, nats.ClientURL())
	p.apps(100)
	s := watchOnScreen(t, 90, 20, isolatedEnviron(t), "--nats-url", nats.ClientURL())
	s.shows("the first apps", func(lines []string) bool {
		return len(lines) == 20 && strings.HasPrefix(lines[0], "PROJECT") && strings.Contains(lines[1], "app-00000") && strings.Contains(last(lines), "100 apps: 50 ACTIVE, 25 FAILED, 25 STOPPED · 1-18 shown")
	})
	s.press("G")
	s.shows("the last app", func(lines []string) bool { return len(lines) == 20 && strings.Contains(lines[18], "app-00099") })
	s.press("\x1b[A")
	s.shows("the last but one", func(lines []string) bool { return len(lines) == 20 && strings.Contains(lines[18], "app-00079") })
	s.press("g")
	s.resize(60, 8)
	s.shows("a smaller table", func(lines []string) bool { return len(lines) == 8 && strings.Contains(last(lines), "1-6 shown") })
	s.resize(120, 40)
	s.shows("a larger table", func(lines []string) bool { return len(lines) == 40 && strings.Contains(last(lines), "1-38 shown") })

	p.put(subjects.AppID{Project: "a", Domain: "b", Name: "evil\x1b[2J"}, "PENDING", 101)
	p.flush()
	s.shows("the new app", func(lines []string) bool {
		return len(lines) == 40 && strings.HasPrefix(lines[1], `a           b           evil\x1b[2J`) && strings.Contains(last(lines), "101 apps")
	})

	// Another program has written over the screen, or the shell has had the terminal meanwhile.
	for _, happens := range []struct {
		name, text string
		do         func()
	}{
		{"Ctrl-L", "\x1b[H", func() { s.press("\x0c") }},
		{"SIGCONT", "\x1b[?1049h", func() { s.signal(syscall.SIGCONT) }},
	} {
		count := func() int { return strings.Count(s.out.String(), happens.text) }
		begin := count()
		happens.do()
		suite.Eventually(t, suite.Patience, "another screen after "+happens.name, func() error {
			if count() == begin {
				return errors.New("there is none")
			}
			return nil
		})
	}

	nats.Shutdown()
	nats.WaitForShutdown()
	s.shows("the lost connection", func(lines []string) bool { return strings.HasPrefix(last(lines), "no connection for ") })
	begin()
	s.shows("the connection", func(lines []string) bool { return strings.HasPrefix(last(lines), "101 apps") })

	s.press("\x03")
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
	suite.Eventually(t, suite.Patience, "the end", func() error {
		if out := s.out.String(); !strings.HasSuffix(out, "\x1b[?7h\x1b[?25h\x1b[?1049l101 apps: 50 ACTIVE, 25 FAILED, 25 STOPPED, 1 PENDING\r\n") {
			return fmt.Errorf("it ends with %q", out[max(0, len(out)-200):])
		}
		return nil
	})
	if after := terminalSettings(t, s.slave); after != s.before {
		t.Errorf("the terminal has %+v, want %+v", after, s.before)
	}
}

func (s *screen) signal(sig syscall.Signal) {
	s.tb.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.tb.Fatal(err)
	}
}

// A process that is stuck, since nobody reads its terminal, gives it back before it exits.
func TestWatchOnATerminalThatIsStuck(t *testing.T) {
	t.Parallel()
	nats := jetStreamServer(t)
	p := newPublishedApps(t, nats.ClientURL())
	p.apps(100)
	s := watchOnScreen(t, 200, 60, isolatedEnviron(t), "--nats-url", nats.ClientURL())
	s.shows("the first apps", func(lines []string) bool { return len(lines) == 60 && strings.Contains(last(lines), "100 apps") })
	s.press("\x0c") // the reader of the terminal is in Read: this ends it
	s.hold.Lock()
	defer s.hold.Unlock()
	if terminalSettings(t, s.slave) == s.before {
		t.Fatal("the keyboard is not read")
	}
	s.press(strings.Repeat("\x0c", 1000))
	// It is stuck in a write once it takes no more keys.
	suite.Eventually(t, suite.Patience, "a terminal that takes no more", func() error {
		var waiting int32
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, s.slave.Fd(), syscall.TIOCINQ, uintptr(unsafe.Pointer(&waiting))); errno != 0 {
			t.Fatal(errno)
		}
		if s.taking != waiting || waiting == 0 {
			s.taking = waiting
			return fmt.Errorf("it takes keys, %d wait", waiting)
		}
		return nil
	})
	s.signal(syscall.SIGTERM)
	_ = s.cmd.Wait() // the code is that of the other tests
	if after := terminalSettings(t, s.slave); after != s.before {
		t.Errorf("the terminal has %+v, want %+v", after, s.before)
	}
}

func TestWatchOnADumbTerminal(t *testing.T) {
	t.Parallel()
	nats := jetStreamServer(t)
	p := newPublishedApps(t, nats.ClientURL())
	p.apps(3)
	s := watchOnScreen(t, 90, 20, append(isolatedEnviron(t), "NO_COLOR=1"), "--nats-url", nats.ClientURL(), "--once")
	if err := s.cmd.Wait(); err != nil {
		t.Error(err)
	}
	suite.Eventually(t, suite.Patience, "the table", func() error {
		if out := s.out.String(); strings.Count(out, "\r\n") != 4 || strings.Contains(out, "\x1b") {
			return fmt.Errorf("got %q", out)
		}
		return nil
	})
}

// BenchmarkWatchFirstScreen is the time from the start of the process to a screen of apps, and to
// the one with all of them.
func BenchmarkWatchFirstScreen(b *testing.B) {
	const apps = 20_000
	nats := jetStreamServer(b)
	newPublishedApps(b, nats.ClientURL()).apps(apps)
	env := append(os.Environ(), asProgram+"="+beProgram)
	var first, complete time.Duration
	for b.Loop() {
		begin := time.Now()
		s := watchOnScreen(b, 120, 50, env, "--nats-url", nats.ClientURL())
		first += s.shownAt("apps", func(lines []string) bool { return len(lines) == 50 && strings.Contains(lines[48], "app-") }).Sub(begin)
		complete += s.shownAt("all apps", func(lines []string) bool {
			return strings.Contains(last(lines), fmt.Sprint(apps, " apps")) && !strings.Contains(last(lines), "reading")
		}).Sub(begin)
		s.press("q")
		if err := s.cmd.Wait(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(first.Milliseconds())/float64(b.N), "ms-to-first-screen")
	b.ReportMetric(float64(complete.Milliseconds())/float64(b.N), "ms-to-all-apps")
}
