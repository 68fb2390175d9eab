package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// operatorLines are the command lines of the README's section about logs.
func operatorLines(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "\n## Read an app's logs\n")
	if !ok {
		t.Fatal("the README has no section about logs")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var lines []string
	for i, block := range strings.Split(section, "```") {
		if i%2 == 0 {
			continue
		}
		block = strings.TrimPrefix(block, "sh\n")
		for line := range strings.SplitSeq(strings.ReplaceAll(block, "|\n", "| "), "\n") {
			if line != "" && !strings.HasPrefix(line, "#") {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

// Every command line that the README shows to operators, run as it stands there.
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
	later := func(t *testing.T, c *command, wants ...string) {
		t.Helper()
		for _, want := range wants {
			c.waitFor(want)
		}
		text := fmt.Sprintf("later %d", said.Add(1))
		one.Write(text)
		c.waitFor("1 " + text + "\n")
		c.interrupt()
	}
	ends := func(wants ...string) func(t *testing.T, c *command) {
		return func(t *testing.T, c *command) {
			t.Helper()
			got := c.wait()
			for _, want := range wants {
				without, forbidden := strings.CutPrefix(want, "!")
				if strings.Contains(got, without) == forbidden {
					t.Errorf("want %q, got %d bytes that end with\n%s\nand on stderr\n%s", want, len(got), got[max(0, len(got)-500):], c.stderr())
				}
			}
		}
	}
	checks := map[string]func(t *testing.T, c *command){
		`logs.get.`: ends("\n1 one 149\n2 two 149\n1 panic: at the disco\n", "one 060", "!one 040", "!an hour ago"),
		`logs.tail.shop.production.storefront '{"follow": true}'`: func(t *testing.T, c *command) {
			later(t, c, list, "\n1 one 000\n", "\n2 two 149\n")
		},
		`logs.open.`: func(t *testing.T, c *command) {
			later(t, c, list, "\n1 one 000\n", "\n2 two 149\n")
		},
		`"replica": "storefront-shop-production-1"`: func(t *testing.T, c *command) {
			c.waitFor("# appbridge: replicas: storefront-shop-production-1\n")
			c.waitFor("\none 000\n")
			if got := c.interrupt(); strings.Contains(got, "two") {
				t.Errorf("got\n%s", got)
			}
		},
		`"since": "10m"`:   ends(list, "\n1 one 000\n", "1 panic: at the disco\n", "!an hour ago"),
		`"previous": true`: ends(list, "\n1 first life of 1\n", "2 first life of 2\n", "!one 000"),
		`"format": "json"`: ends("Z one 149\n", "Z two 149\n", "!{"),
		`storefront      `: ends("1 one 000\n", "2 two 149\n", "!# appbridge"),
		`-f --tail 20`:     func(t *testing.T, c *command) { later(t, c, "2 two 149\n", "1 panic: at the disco\n") },
		`--since 10m`:      ends("1 panic: at the disco\n", "!one 0", "!first life"),
	}
	used := map[string]bool{}
	for _, line := range operatorLines(t) {
		found := ""
		for key := range checks {
			if strings.Contains(line, key) {
				found = key
			}
		}
		if found == "" {
			t.Errorf("nothing is known of %s", line)
			continue
		}
		used[found] = true
		t.Run(strings.Trim(found, `"' .`), func(t *testing.T) {
			t.Parallel()
			checks[found](t, w.start(t, line))
		})
	}
	for key := range checks {
		if !used[key] {
			t.Errorf("the README has no line with %s", key)
		}
	}
}
