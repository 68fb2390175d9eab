//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/appbridge/appbridge/testdata/testenv/suite"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

const (
	// diskOf names the disk of a test that runs in a process of its own.
	diskOf    = "RUN_TEST_ON_DISK"
	diskTmpfs = "tmpfs"
	diskLimit = "limit"
	// cannotMount is the exit code of a process that may not mount.
	cannotMount   = 77
	smallDiskSize = 24 << 20
)

// smallDisk is a disk that really is full after fill, and has room after free.
type smallDisk struct {
	dir        string
	fill, free func(t *testing.T)
}

// onSmallDisk runs the test again in a process that has a small disk: a tmpfs in
// namespaces of its own, which needs no privilege, and where that is not
// allowed a limit on the size of files, which makes writes fail as well. It
// returns nil after that, and in that process the disk.
func onSmallDisk(t *testing.T) *smallDisk {
	t.Helper()
	switch os.Getenv(diskOf) {
	case diskTmpfs:
		return mountSmallDisk(t)
	case diskLimit:
		return limitFiles(t)
	}
	code := runOnDisk(t, diskTmpfs)
	if code == cannotMount {
		t.Log("no mount without privileges here: a limit on the size of files takes its place")
		code = runOnDisk(t, diskLimit)
	}
	if code != 0 {
		t.Errorf("the test on a small disk ended with %d", code)
	}
	return nil
}

func runOnDisk(t *testing.T, disk string) (code int) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), diskOf+"="+disk)
	if disk == diskTmpfs {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
	}
	output, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Logf("%s: %v", disk, err)
		return cannotMount
	}
	if code = cmd.ProcessState.ExitCode(); code != cannotMount {
		t.Logf("on %s:\n%s", disk, output)
	}
	return code
}

func mountSmallDisk(t *testing.T) *smallDisk {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("small", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=755", smallDiskSize)); err != nil {
		os.Exit(cannotMount)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	filler := filepath.Join(dir, "filler")
	return &smallDisk{
		dir: dir,
		fill: func(t *testing.T) {
			t.Helper()
			file, err := os.Create(filler)
			if err != nil {
				t.Fatal(err)
			}
			for err == nil {
				_, err = file.Write(make([]byte, 4096))
			}
			if closeErr := file.Close(); !errors.Is(err, syscall.ENOSPC) || closeErr != nil {
				t.Fatal(err, closeErr)
			}
		},
		free: func(t *testing.T) {
			t.Helper()
			if err := os.Remove(filler); err != nil {
				t.Fatal(err)
			}
		},
	}
}

func limitFiles(t *testing.T) *smallDisk {
	t.Helper()
	set := func(t *testing.T, soft uint64) {
		t.Helper()
		var limit syscall.Rlimit
		if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
			t.Fatal(err)
		}
		limit.Cur = min(soft, limit.Max)
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
			t.Fatal(err)
		}
	}
	return &smallDisk{
		dir:  t.TempDir(),
		fill: func(t *testing.T) { t.Helper(); set(t, 256<<10) },
		free: func(t *testing.T) { t.Helper(); set(t, ^uint64(0)) },
	}
}

// readyz is the answer to a question for the readiness.
func readyz(t *testing.T, s *serving) (status int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.http+"/readyz", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// TestFullDisk: the embedded server says that the disk is full, writes again when
// it is not, and has every message that it acknowledged.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	suite.Slow(t, "waits until the server checks its disk")
	disk := onSmallDisk(t)
	if disk == nil {
		return
	}
	core, logs := observer.New(zapcore.InfoLevel)
	cfg := testConfig(t)
	cfg.NATSEmbeddedDir = filepath.Join(disk.dir, "data")
	s := startServing(t, cfg, fakeBridge{run: untilDone}, zap.New(core))
	nc, err := nats.Connect(s.natsURLs[0], nats.Timeout(suite.Patience), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(suite.Patience))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.*"}}); err != nil {
		t.Fatal(err)
	}
	kept := map[uint64]string{} // the data of each sequence that was acknowledged
	next := 0
	publish := func(limit time.Duration) error {
		next++
		data := fmt.Sprintf("%d %s", next, strings.Repeat("x", 1000+next*7919%60000))
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		ack, err := js.Publish(ctx, fmt.Sprintf("s.%d", next%7), []byte(data))
		if err == nil {
			kept[ack.Sequence] = data
		}
		return err
	}
	for range 2 {
		for range 20 {
			if err := publish(suite.Patience); err != nil {
				t.Fatal(err)
			}
		}
		waitFor(t, "ready", func() bool { status, _ := readyz(t, s); return status == http.StatusOK })
		disk.fill(t)
		status, body := http.StatusOK, ""
		for full := false; !full; {
			err := publish(2 * time.Second)
			status, body = readyz(t, s)
			late := status == http.StatusOK && errors.Is(err, context.DeadlineExceeded) // the machine is busy
			full = err != nil && !late
		}
		if status != http.StatusServiceUnavailable || !strings.HasPrefix(body, "disk full: the embedded NATS server cannot write to "+cfg.NATSEmbeddedDir+": ") {
			t.Errorf("right after the write error: got %d and %q", status, body)
		}
		disk.free(t)
		waitFor(t, "ready with room on the disk", func() bool { status, _ := readyz(t, s); return status == http.StatusOK })
		waitFor(t, "the links", func() bool {
			// The connection may not know yet that the server has restarted.
			return nc.FlushTimeout(time.Second) == nil && s.nc.IsConnected()
		})
	}
	if err := publish(suite.Patience); err != nil {
		t.Errorf("with room on the disk: %v", err)
	}
	for sequence, want := range kept {
		stream, err := js.Stream(t.Context(), "S")
		if err != nil {
			t.Fatal(err)
		}
		if message, err := stream.GetMsg(t.Context(), sequence); err != nil || string(message.Data) != want {
			t.Errorf("the acknowledged message at sequence %d: %v", sequence, err)
		}
	}
	for message, want := range map[string]int{
		"disk full: the embedded NATS server cannot write":                 2,
		"the embedded NATS server starts again: there is room on the disk": 2,
		"the embedded NATS server can write again":                         2,
	} {
		if got := logs.FilterMessage(message).Len(); got != want {
			t.Errorf("got the line %q %d times, want %d", message, got, want)
		}
	}
	s.stop()
	if err := s.wait(t); err != nil {
		t.Error(err)
	}
}
