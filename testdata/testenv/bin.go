package testenv

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	ownModule     = "github.com/appbridge/appbridge"
	servingModule = "knative.dev/serving"
)

// BinDir is the folder of the binaries that testdata/cluster builds:
// kube-apiserver, kubectl, etcd, kwok, nats, nats-server and promtool. An error reports that the
// servers are missing and how to build them. The working directory has to be inside this
// module.
func BinDir() (string, error) {
	dir, err := binDir()
	if err != nil {
		return "", err
	}
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if _, err := binary(dir, name); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// Root is the folder of the root module, also for a test of a nested module.
func Root() (string, error) { return moduleDir(ownModule) }

// binDir asks the build script for the folder.
func binDir() (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	out, err := output(exec.Command(filepath.Join(root, "testdata", "cluster", "build.sh"), "--print"))
	if err != nil {
		return "", fmt.Errorf("ask for the folder of the cluster's binaries: %w", err)
	}
	return strings.TrimSpace(out), nil
}

// NATSCLI is the path of the nats command-line client in [BinDir].
func NATSCLI() (string, error) { return built("nats") }

// Kubectl is the path of kubectl in [BinDir], of the API server's own release.
func Kubectl() (string, error) { return built("kubectl") }

// Promtool is the path of promtool in [BinDir].
func Promtool() (string, error) { return built("promtool") }

// NATSServer is the path of the stock nats-server in [BinDir], at the version
// that this module embeds.
func NATSServer() (string, error) { return built("nats-server") }

// OlderNATSServer is the path of the stock nats-server at a version, such as "2.11.0", in [BinDir].
// testdata/cluster has a module file for each that is to be had.
func OlderNATSServer(version string) (string, error) {
	dir, err := binDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "nats-server-"+version)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("no nats-server %s: run `make compat-bin COMPAT_SERVERS=%s`: %w", version, version, err)
	}
	return path, nil
}

// Kwok is the path of kwok in [BinDir].
func Kwok() (string, error) { return built("kwok") }

// KnativeDir is the folder with what testdata/cluster/knative builds: Knative's reconcilers and
// webhooks as the program knative, kube-controller-manager, and below config the definitions and
// config maps of Knative's modules. An error reports that it is missing and how to build it.
func KnativeDir() (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	out, err := output(exec.Command(filepath.Join(root, "testdata", "cluster", "knative", "build.sh"), "--print"))
	if err != nil {
		return "", fmt.Errorf("ask for the folder of Knative's binaries: %w", err)
	}
	dir := strings.TrimSpace(out)
	for _, name := range []string{"knative", "kube-controller-manager", "config"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return "", fmt.Errorf("no %s in %s: run `make knative-bin` (minutes the first time, nothing after that)", name, dir)
		}
	}
	return dir, nil
}

func built(name string) (string, error) {
	dir, err := binDir()
	if err != nil {
		return "", err
	}
	return binary(dir, name)
}

func binary(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	if info, err := os.Stat(path); err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
		return "", fmt.Errorf("no %s in %s: run `make cluster-bin` (minutes the first time, nothing after that)", name, dir)
	}
	return path, nil
}

// moduleDir is where the source of a module lies that this build uses.
func moduleDir(module string) (string, error) {
	out, err := output(exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module))
	if err != nil {
		return "", fmt.Errorf("find the source of %s: %w", module, err)
	}
	dir := strings.TrimSpace(out)
	if dir == "" {
		return "", fmt.Errorf("find the source of %s: not downloaded", module)
	}
	return dir, nil
}

// output is cmd.Output with what the command complained about in the error.
func output(cmd *exec.Cmd) (string, error) {
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return "", fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	return string(out), err
}
