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

// LoseParent is what the guard sees when the process of the cluster is killed.
func LoseParent(c *Cluster) error {
	err := c.guard.close()
	c.guard = nil
	return err
}
