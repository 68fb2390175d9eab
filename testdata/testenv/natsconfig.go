package testenv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/appbridge/appbridge/testdata/testenv/network"
)

const (
	// natsPing is when a silent connection is asked for a sign of life; the
	// second question without an answer ends it.
	natsPing = 2 * time.Second
	// nobody is where no server listens. Servers of a cluster tell each other
	// where they can be reached; this keeps them from a way around the proxies.
	nobody = "127.0.0.1:1"
)

const (
	// natsAccount is the account of NATSOptions.Account, and the user of clients without
	// credentials.
	natsAccount = "apps"
	// natsLimited is another user of that account: the one that NATSLimits.Deny concerns.
	natsLimited = "limited"
)

// NATSLimits are the limits of the servers that a restart can change, or Reload.
type NATSLimits struct {
	// MaxPayload is the largest message in bytes. 0: the server's own default.
	MaxPayload int32
	// FileStore is the disk space in bytes that JetStream may use on each server. 0: 4 GB.
	FileStore int64
	// AccountStore is the disk space in bytes that the clients' account may use in JetStream, all
	// replicas counted. 0: no limit. It needs NATSOptions.Account.
	AccountStore int64
	// AccountConsumers is how many consumers the clients' account may have. 0: no limit. It needs
	// NATSOptions.Account.
	AccountConsumers int
	// NoJetStream takes JetStream from the clients' account. It needs NATSOptions.Account.
	NoJetStream bool
	// Deny are the subjects that the clients of LimitedURL may neither publish to nor subscribe to.
	// It needs NATSOptions.Account.
	Deny []string
}

// needAccount reports whether some of the limits are those of an account.
func (l NATSLimits) needAccount() bool {
	return l.AccountStore != 0 || l.AccountConsumers != 0 || l.NoJetStream || len(l.Deny) > 0
}

// LimitedURL is URL for clients that NATSLimits.Deny concerns. It needs NATSOptions.Account.
func (n *NATS) LimitedURL() string {
	return strings.ReplaceAll(n.URL(), "nats://", "nats://"+LimitedUser+"@")
}

// LimitedUser is the user and password of clients that NATSLimits.Deny concerns, as a URL has them.
const LimitedUser = natsLimited + ":" + natsLimited

// Reload has all servers that run read their configuration again.
func (n *NATS) Reload() error { return n.signalAll(syscall.SIGHUP) }

// SetLimits writes limits into the configurations of all servers. A server reads its configuration
// when it starts, and on Reload.
func (n *NATS) SetLimits(limits NATSLimits) error {
	if limits.needAccount() && !n.account {
		return errors.New("set the limits of NATS: an account limit needs NATSOptions.Account")
	}
	for i, s := range n.servers {
		if err := os.WriteFile(s.config, []byte(n.config(i, limits)), 0o600); err != nil {
			return fmt.Errorf("write the configuration of %s: %w", s.name, err)
		}
	}
	return nil
}

// configure chooses addresses and writes a configuration for each server.
func (n *NATS) configure(opts NATSOptions) error {
	for i := range opts.Servers {
		s := &natsServer{name: fmt.Sprintf("n%d", i+1)}
		file := func(suffix string) string { return filepath.Join(n.guard.dir, s.name+suffix) }
		s.config, s.log, s.data = file(".conf"), file(".log"), file("-data")
		var err error
		for _, addr := range []*string{&s.client, &s.cluster, &s.monitor} {
			if *addr, err = opts.address(); err != nil {
				return err
			}
		}
		n.servers = append(n.servers, s)
	}
	for i := range n.servers {
		for j, to := range n.servers {
			if i == j {
				continue
			}
			proxy, err := network.NewProxy(to.cluster)
			if err != nil {
				return err
			}
			n.routes[[2]int{i, j}] = proxy
		}
	}
	return n.SetLimits(NATSLimits{MaxPayload: opts.MaxPayload})
}

func (n *NATS) config(i int, limits NATSLimits) string {
	s := n.servers[i]
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("server_name: %s", s.name)
	line("listen: %q", s.client)
	line("http: %q", s.monitor)
	line("ping_interval: %q", natsPing)
	line("ping_max: 2")
	line("no_fast_producer_stall: true") // as docs/logs.md wants it
	if limits.MaxPayload != 0 {
		line("max_payload: %d", limits.MaxPayload)
	}
	line("jetstream { store_dir: %q, max_memory_store: 256MB, max_file_store: %d }", s.data, cmp.Or(limits.FileStore, 4<<30))
	if n.account {
		account := ""
		if limits.AccountStore != 0 {
			account += fmt.Sprintf(" max_store: %d", limits.AccountStore)
		}
		if limits.AccountConsumers != 0 {
			account += fmt.Sprintf(" max_consumers: %d", limits.AccountConsumers)
		}
		store, rights := "enabled", ""
		switch {
		case limits.NoJetStream:
			store = "disabled"
		case account != "":
			store = "{" + account + " }"
		}
		if len(limits.Deny) > 0 {
			deny := quoted(limits.Deny)
			rights = fmt.Sprintf(", permissions: { publish: { deny: %s }, subscribe: { deny: %s } }", deny, deny)
		}
		line("accounts { %s: { jetstream: %s, users: [", natsAccount, store)
		line("  { user: %s, password: %s }", natsAccount, natsAccount)
		line("  { user: %s, password: %s%s }", natsLimited, natsLimited, rights)
		line("] } }")
		line("no_auth_user: %s", natsAccount)
	}
	if n.Size() == 1 {
		return b.String()
	}
	line("cluster {")
	line("  name: appbridge")
	line("  listen: %q", s.cluster)
	line("  advertise: %q", nobody)
	line("  no_advertise: true") // clients know all servers
	line("  pool_size: -1")      // one connection per pair
	line("  ping_interval: %q", natsPing)
	line("  ping_max: 2")
	line("  routes: [")
	for j := range n.servers {
		if proxy := n.routes[[2]int{i, j}]; proxy != nil {
			line("    %q", "nats://"+proxy.Addr())
		}
	}
	line("  ]")
	line("}")
	return b.String()
}

// quoted is a list of subjects as a configuration has it.
func quoted(names []string) string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = strconv.Quote(name)
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// accepts asks whether a NATS server greets those who connect.
func accepts(ctx context.Context, addr string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}
