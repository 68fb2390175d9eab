package e2e_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// Every command line that docs/logs.md shows first, run as it stands there.
func TestReadme(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	_, service := w.appNamed(t, "storefront")
	one, two := w.pod(t, service, "storefront-shop-production-1"), w.pod(t, service, "storefront-shop-production-2")
	one.Write("first life of 1")
	two.Write("first life of 2")
	for _, pod := range []interface{ Write(lines ...string) bool }{one, two} {
		pod.Write("error: disk full")
	}
	if err := one.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := two.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	one.WriteAt(time.Now().Add(-time.Hour), "an hour ago")
	for i := range 150 {
		one.Write(fmt.Sprintf("one %03d", i))
		two.Write(fmt.Sprintf("two %03d", i))
	}
	one.Write("panic: at the disco")

	const list = "# appbridge: replicas: storefront-shop-production-1, storefront-shop-production-2\n"
	var said atomic.Int64
	// later is what a follow must bring as it is written.
	later := func(t *testing.T, c *kubesuite.Command, wants ...string) {
		t.Helper()
		for _, want := range wants {
			c.WaitFor(want)
		}
		text := fmt.Sprintf("later %d", said.Add(1))
		one.Write(text)
		c.WaitFor("1 " + text + "\n")
		c.Interrupt()
	}
	ends := func(wants ...string) func(t *testing.T, c *kubesuite.Command) {
		return func(t *testing.T, c *kubesuite.Command) {
			t.Helper()
			got := c.Wait()
			for _, want := range wants {
				without, forbidden := strings.CutPrefix(want, "!")
				if strings.Contains(got, without) == forbidden {
					t.Errorf("want %q, got %d bytes that end with\n%s\nand on stderr\n%s", want, len(got), got[max(0, len(got)-500):], c.Stderr())
				}
			}
		}
	}
	checks := map[string]func(t *testing.T, c *kubesuite.Command){
		`logs.get.`: ends("\n1 one 149\n2 two 149\n1 panic: at the disco\n", "one 060", "!one 040", "!an hour ago"),
		`logs.tail.shop.production.storefront '{"follow": true}'`: func(t *testing.T, c *kubesuite.Command) {
			later(t, c, list, "\n1 one 000\n", "\n2 two 149\n")
		},
		`logs.open.`: func(t *testing.T, c *kubesuite.Command) {
			later(t, c, list, "\n1 one 000\n", "\n2 two 149\n")
		},
		`"replica": "storefront-shop-production-1"`: func(t *testing.T, c *kubesuite.Command) {
			c.WaitFor("# appbridge: replicas: storefront-shop-production-1\n")
			c.WaitFor("\none 000\n")
			if got := c.Interrupt(); strings.Contains(got, "two") {
				t.Errorf("got\n%s", got)
			}
		},
		`"since": "10m"`:   ends(list, "\n1 one 000\n", "1 panic: at the disco\n", "!an hour ago"),
		`"previous": true`: ends(list, "\n1 first life of 1\n", "2 first life of 2\n", "!one 000"),
		`"format": "json"`: ends("Z one 149\n", "Z two 149\n", "!{"),
		`storefront      `: ends("1 one 000\n", "2 two 149\n", "!# appbridge"),
		`-f --tail 20`:     func(t *testing.T, c *kubesuite.Command) { later(t, c, "2 two 149\n", "1 panic: at the disco\n") },
		`--since 10m`:      ends("1 panic: at the disco\n", "!one 0", "!first life"),
	}
	for _, line := range suite.Lines(t, filepath.Join("..", "..", "docs", "logs.md"), "## Read an app's logs", checks) {
		t.Run(strings.Trim(line.Key, `"' .`), func(t *testing.T) {
			t.Parallel()
			checks[line.Key](t, w.Start(t, "export NATS_TIMEOUT=5m; "+line.Text)) // the machine may be busy
		})
	}
}
