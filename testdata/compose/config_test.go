package compose

import (
	"encoding/json"
	"net"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// composeConfig is what `docker compose config` prints.
type composeConfig struct {
	Services map[string]struct {
		Image    string
		Restart  string
		Ports    []port
		Volumes  []mount
		Networks map[string]*struct{ Aliases []string }
	}
	Volumes map[string]any
}

type port struct {
	HostIP    string `json:"host_ip"`
	Published string
}

type mount struct {
	Type, Source, Target string
	ReadOnly             bool `json:"read_only"`
}

// TestConfig checks what holds for every service, also for those whose images cannot be built here.
func TestConfig(t *testing.T) {
	pinned := regexp.MustCompile(`^[a-z0-9./-]+:v?[0-9]+\.[0-9]+\.[0-9]+(-[a-z]+)?$`)
	for profile, want := range map[string][]string{
		"single":  {"appbridge", "grafana", "nats", "prometheus"},
		"cluster": {"appbridge-cluster", "grafana", "nats-1", "nats-2", "nats-3", "prometheus"},
	} {
		t.Run(profile, func(t *testing.T) {
			c := readConfig(t, profile)
			var services []string
			for name, s := range c.Services {
				services = append(services, name)
				if !pinned.MatchString(s.Image) && s.Image != "appbridge/appbridge:dev" {
					t.Errorf("%s: image %q is not pinned to a version", name, s.Image)
				}
				if s.Restart != "unless-stopped" {
					t.Errorf("%s: restart policy %q, want unless-stopped", name, s.Restart)
				}
				if len(s.Ports) == 0 {
					t.Errorf("%s: no port is published", name)
				}
				for _, p := range s.Ports {
					if p.HostIP != "127.0.0.1" {
						t.Errorf("%s: port %s is published at %q, want 127.0.0.1", name, p.Published, p.HostIP)
					}
				}
				for _, m := range s.Volumes {
					checkMount(t, name, m, c.Volumes)
				}
			}
			slices.Sort(services)
			if !slices.Equal(services, want) {
				t.Errorf("services of profile %s: got %q, want %q", profile, services, want)
			}
		})
	}
}

// checkMount checks that what is mounted exists: the engine would create a folder of that name.
func checkMount(t *testing.T, service string, m mount, volumes map[string]any) {
	t.Helper()
	if m.Type == "volume" {
		if _, ok := volumes[m.Source]; !ok {
			t.Errorf("%s: volume %q is not declared", service, m.Source)
		}
		return
	}
	if !m.ReadOnly {
		t.Errorf("%s: %s is mounted writable", service, m.Source)
	}
	if _, err := os.Stat(m.Source); err != nil {
		t.Errorf("%s: mounted at %s: %v", service, m.Target, err)
	}
}

// readConfig is docker-compose.yaml alone as compose reads it.
func readConfig(t *testing.T, profile string) composeConfig {
	t.Helper()
	p := newProject(t, profile, anyKubeconfig(t))
	p.files = []string{"docker-compose.yaml"}
	var c composeConfig
	text := p.compose(t, "config", "--format", "json")
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatalf("decode compose config: %v\n%s", err, text)
	}
	return c
}

// mounted is the file that a service sees at a path, or in a folder.
func (c composeConfig) mounted(t *testing.T, service string, match func(target string) bool) (m mount) {
	t.Helper()
	for _, m := range c.Services[service].Volumes {
		if m.Type == "bind" && match(m.Target) {
			return m
		}
	}
	t.Fatalf("%s: no such mount among %+v", service, c.Services[service].Volumes)
	return m
}

// answers fails unless an address inside the containers' network is one of the project's services.
func (c composeConfig) answers(t *testing.T, address string) {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range c.Services {
		if network := s.Networks["default"]; name != host && (network == nil || !slices.Contains(network.Aliases, host)) {
			continue
		}
		// The port inside the container is the one that is published by default.
		if len(s.Ports) != 1 || s.Ports[0].Published != port {
			t.Errorf("%s: service %s listens on %+v", address, name, s.Ports)
		}
		return
	}
	t.Errorf("%s: no service has this name", address)
}

// TestVersions checks that the images have the versions of the modules that the tests build.
func TestVersions(t *testing.T) {
	server := run(t, "go", "list", "-m", "-f", "{{.Version}}", "github.com/nats-io/nats-server/v2")
	if got, want := imageOf(t, "nats"), "nats:"+strings.TrimPrefix(server, "v")+"-scratch"; got != want {
		t.Errorf("image %s, want %s as in go.mod", got, want)
	}
	module := run(t, "go", "list", "-modfile=.ci/prometheus.mod", "-m", "-f", "{{.Version}}", "github.com/prometheus/prometheus")
	// Prometheus 3.16.0 is version 0.316.0 of its module.
	v := regexp.MustCompile(`^v0\.([0-9])([0-9]{2})\.([0-9]+)$`).FindStringSubmatch(module)
	if v == nil {
		t.Fatalf("module version %s", module)
	}
	want := "prom/prometheus:v" + v[1] + "." + strings.TrimPrefix(v[2], "0") + "." + v[3]
	if got := imageOf(t, "prom/prometheus"); got != want {
		t.Errorf("image %s, want %s as in .ci/prometheus.mod", got, want)
	}
}

func TestGrafana(t *testing.T) {
	c := readConfig(t, "single")
	in := func(folder string) func(string) bool {
		return func(target string) bool { return path.Dir(target) == folder }
	}
	var sources struct {
		Datasources []struct{ Type, URL string }
	}
	readYAML(t, c.mounted(t, "grafana", in("/etc/grafana/provisioning/datasources")).Source, &sources)
	if len(sources.Datasources) != 1 || sources.Datasources[0].Type != "prometheus" {
		t.Fatalf("data sources: got %+v, want one of type prometheus", sources.Datasources)
	}
	u, err := url.Parse(sources.Datasources[0].URL)
	if err != nil {
		t.Fatal(err)
	}
	c.answers(t, u.Host)

	var dashboards struct {
		Providers []struct {
			Type    string
			Options struct{ Path string }
		}
	}
	readYAML(t, c.mounted(t, "grafana", in("/etc/grafana/provisioning/dashboards")).Source, &dashboards)
	if len(dashboards.Providers) != 1 || dashboards.Providers[0].Type != "file" {
		t.Fatalf("providers: got %+v, want one of type file", dashboards.Providers)
	}
	dashboard := c.mounted(t, "grafana", in(dashboards.Providers[0].Options.Path))
	text, err := os.ReadFile(dashboard.Source)
	if err != nil {
		t.Fatal(err)
	}
	var content struct {
		Title  string
		Panels []any
	}
	if err := json.Unmarshal(text, &content); err != nil || content.Title == "" || len(content.Panels) == 0 {
		t.Errorf("dashboard %q of %d panels: %v", content.Title, len(content.Panels), err)
	}
	if path.Ext(dashboard.Target) != ".json" {
		t.Errorf("%s: Grafana reads files with the ending .json", dashboard.Target)
	}
}

func readYAML(t *testing.T, file string, into any) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(content, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}
