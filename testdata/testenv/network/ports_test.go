package network_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/appbridge/appbridge/testdata/testenv/network"
)

func TestFreeAddress(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	other, err := network.FreeAddress(taken.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if other == taken.Addr().String() {
		t.Errorf("got %s, which is taken", other)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := network.FreeAddress(taken.Addr().String()); err != nil || got != taken.Addr().String() {
		t.Errorf("got %s, %v, want the free one that was asked for", got, err)
	}
	if got, err := network.FreeAddress(""); err != nil || !strings.HasPrefix(got, "127.0.0.1:") {
		t.Errorf("got %s, %v, want one of the loopback interface", got, err)
	}
}

// portToLock is the environment variable with the port that TestLockPort reserves.
const portToLock = "NETWORK_PORT"

// A reserved port is another's only once it is released.
func TestReserveAddress(t *testing.T) {
	address, release, err := network.ReserveAddress()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	got := map[string]bool{address: true}
	for range 1000 {
		other, release, err := network.ReserveAddress()
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
	if err := network.LockPort(port); errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) {
		t.Fatalf("port %d is reserved", port)
	} else if err != nil {
		t.Fatal(err)
	}
}
