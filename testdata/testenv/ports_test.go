package testenv_test

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/appbridge/appbridge/testdata/testenv"
)

func TestFreeAddress(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	other, err := testenv.FreeAddress(taken.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if other == taken.Addr().String() {
		t.Errorf("got %s, which is taken", other)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := testenv.FreeAddress(taken.Addr().String()); err != nil || got != taken.Addr().String() {
		t.Errorf("got %s, %v, want the free one that was asked for", got, err)
	}
	if got, err := testenv.FreeAddress(""); err != nil || !strings.HasPrefix(got, "127.0.0.1:") {
		t.Errorf("got %s, %v, want one of the loopback interface", got, err)
	}
}

// portToLock is the environment variable with the port that TestLockPort reserves.
const portToLock = "TESTENV_PORT"

// A reserved port is another's only once it is released.
func TestReserveAddress(t *testing.T) {
	address, release, err := testenv.ReserveAddress()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	got := map[string]bool{address: true}
	for range 1000 {
		other, release, err := testenv.ReserveAddress()
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		if got[other] {
			t.Fatalf("%s was reserved twice", other)
		}
		got[other] = true
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	if err := lockElsewhere(t, port); err == nil {
		t.Error("another process gets the port")
	}
	release()
	if err := lockElsewhere(t, port); err != nil {
		t.Errorf("another process does not get the port once it is released: %v", err)
	}
}

// lockElsewhere has another process reserve a port.
func lockElsewhere(t *testing.T, port string) error {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLockPort$")
	cmd.Env = append(os.Environ(), portToLock+"="+port)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// TestLockPort reserves a port if TestReserveAddress has started this process.
func TestLockPort(t *testing.T) {
	wanted := os.Getenv(portToLock)
	if wanted == "" {
		return
	}
	port, err := strconv.Atoi(wanted)
	if err != nil {
		t.Fatal(err)
	}
	if err := testenv.LockPort(port); errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) {
		t.Fatalf("port %d is reserved", port)
	} else if err != nil {
		t.Fatal(err)
	}
}

// taken is an address that a program uses without reserving it.
func taken(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}

// Servers that find an address in use start again with others.
func TestAddressInUse(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{1, 3} {
		n := startNATS(t, testenv.NATSOptions{Servers: servers}.WithTakenAddress(taken(t)))
		healthy(t, n)
	}
	c := start(t, testenv.Options{NoCRDs: true}.WithTakenAddress(taken(t)))
	if err := c.RestartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	at, err := url.Parse(c.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	if port, err := strconv.Atoi(at.Port()); err != nil || port >= 32000 {
		t.Errorf("the API server is at %s, a port that the system takes for connections", c.Config.Host)
	}
}
