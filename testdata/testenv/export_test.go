package testenv

import "path/filepath"

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
