package testenv

import (
	"path/filepath"

	"github.com/appbridge/appbridge/testdata/testenv/network"
)

// Traces are the folder and the processes of a cluster.
func Traces(c *Cluster) (dir string, pids []int, err error) {
	for _, name := range []string{etcdName, apiServerName} {
		pid, err := c.guard.pid(name)
		if err != nil {
			return "", nil, err
		}
		pids = append(pids, pid)
	}
	return filepath.Clean(c.guard.dir), pids, nil
}

// Settled calls what stops a server of envtest's.
func Settled(stop func() error) error { return settled(stop) }

// WriteProgram writes a file that is to be executed.
func WriteProgram(path, script string) error { return writeProgram(path, script) }

// LoseParent is what the guard sees when the process of the cluster is killed.
func LoseParent(c *Cluster) error {
	err := c.guard.close()
	c.guard = nil
	return err
}

// NATSTraces are the folder and the processes of NATS servers.
func NATSTraces(n *NATS) (dir string, pids []int, err error) {
	for _, s := range n.servers {
		pid, err := n.guard.pid(s.name)
		if err != nil {
			return "", nil, err
		}
		pids = append(pids, pid)
	}
	return filepath.Clean(n.guard.dir), pids, nil
}

// NATSLoseParent is what the guard sees when the process of the servers is killed.
func NATSLoseParent(n *NATS) error {
	err := n.guard.close()
	n.guard = nil
	return err
}

// takenFirst gives out an address that is in use as number n, and free ones before and after.
func takenFirst(taken string, n int) func() (string, error) {
	return func() (string, error) {
		if n--; n == 0 {
			return taken, nil
		}
		return network.FreeAddress("")
	}
}

// WithTakenAddress has the first start find its third address in use: that of the monitor.
func (o NATSOptions) WithTakenAddress(taken string) NATSOptions {
	o.address = takenFirst(taken, 3)
	return o
}

// WithTakenAddress has the first start find its second address in use: that of etcd for peers.
func (o Options) WithTakenAddress(taken string) Options {
	o.address = takenFirst(taken, 2)
	return o
}
