package check

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/headgate/headgate/catalogue"
	"github.com/rs/zerolog"
)

type composeService struct {
	Image       string
	Build       *struct{ Args map[string]string }
	Command     []string
	Environment map[string]string
	DependsOn   any `yaml:"depends_on"`
	Volumes     []string
	Ports       []string
	Healthcheck struct{ Test []string }
}

func composeFile(t *testing.T) map[string]composeService {
	t.Helper()
	var file struct {
		Services map[string]composeService
		Volumes  map[string]any
	}
	if err := yaml.Unmarshal([]byte(read(t, "docker-compose.yml")), &file); err != nil {
		t.Fatalf("docker-compose.yml: %s", err)
	}
	for name, s := range file.Services {
		for _, v := range s.Volumes {
			source, _, _ := strings.Cut(v, ":")
			if _, named := file.Volumes[source]; named {
				continue
			}
			if info, err := os.Stat(filepath.Join(root, source)); err != nil || !info.IsDir() {
				t.Errorf("%s mounts %s, which is no directory: an editor replaces files", name, source)
			}
		}
	}
	return file.Services
}

func (s composeService) dependsOn() map[string]bool {
	out := map[string]bool{}
	switch d := s.DependsOn.(type) {
	case map[string]any:
		for name := range d {
			out[name] = true
		}
	case []any:
		for _, name := range d {
			out[name.(string)] = true
		}
	}
	return out
}

func TestComposeIsTheFleetOfTheReadme(t *testing.T) {
	services := composeFile(t)
	replicas := map[string]bool{}
	engines := map[string]bool{}
	for name, s := range services {
		if s.Image == "" {
			t.Errorf("%s has no image", name)
		}
		for other := range s.dependsOn() {
			if _, ok := services[other]; !ok {
				t.Errorf("%s depends on %s, which is not there", name, other)
			}
		}
		switch id := s.Environment["HG_REPLICA_ID"]; {
		case id != "":
			replicas[id] = true
			if !s.dependsOn()["redis"] || !s.dependsOn()["consul"] || !slices.Equal(s.Healthcheck.Test, []string{"CMD", "/headgate", "ready"}) {
				t.Errorf("replica %s: %+v", name, s)
			}
			if host, _, _ := strings.Cut(s.Environment["HG_ADMIN_LISTEN"], ":"); host != "" || s.Environment["HG_ADMIN_TOKEN"] == "" {
				t.Errorf("the admin port of %s cannot be reached from outside its container: %v", name, s.Environment)
			}
		case len(s.Command) > 0 && s.Command[0] == "sim":
			engines[name] = true
			if !s.dependsOn()["consul"] || !hasPair(s.Command, "--id", name) || !hasPair(s.Command, "--advertise", name+":8000") {
				t.Errorf("engine %s: %v", name, s.Command)
			}
		}
	}
	if len(replicas) != 3 || len(engines) != 2 {
		t.Errorf("replicas %v, engines %v", replicas, engines)
	}
	built := 0
	for _, s := range services {
		if s.Build != nil {
			if built++; s.Build.Args["VERSION"] == "" {
				t.Error("the image is built without its version")
			}
		}
	}
	if built != 1 {
		t.Errorf("the image is built %d times", built)
	}
	for replica := range replicas {
		if on, _ := services["balancer"].DependsOn.(map[string]any)[replica].(map[string]any); on["condition"] != "service_healthy" {
			t.Errorf("the balancer does not wait for %s", replica)
		}
	}
	if redis := services["redis"].Command; !hasPair(redis, "--appendonly", "yes") || !hasPair(redis, "--maxmemory-policy", "noeviction") {
		t.Errorf("redis runs as %v", redis)
	}
	for replica := range replicas {
		if !strings.Contains(read(t, "deploy/nginx.conf"), "server "+replica+":8080 ") {
			t.Errorf("the balancer does not know %s", replica)
		}
	}
}

func hasPair(command []string, option, value string) bool {
	for i := range command[:max(0, len(command)-1)] {
		if command[i] == option && command[i+1] == value {
			return true
		}
	}
	return false
}

// Names the compose file uses are names the binary knows.
func TestComposeUsesNamesThatExist(t *testing.T) {
	var settings, commands bytes.Buffer
	for _, path := range files(t, ".go") {
		switch {
		case strings.HasSuffix(path, "_test.go"):
		case strings.HasPrefix(path, "config/"):
			settings.WriteString(read(t, path))
		case strings.HasPrefix(path, "cmd/headgate/"):
			commands.WriteString(read(t, path))
		}
	}
	for name, s := range composeFile(t) {
		for variable := range s.Environment {
			if !strings.Contains(settings.String(), `env:"`+variable+`"`) {
				t.Errorf("%s sets %s, which config does not read", name, variable)
			}
		}
		if len(s.Command) == 0 || s.Command[0] != "sim" {
			continue
		}
		for _, word := range s.Command {
			if flag, ok := strings.CutPrefix(word, "--"); ok && !strings.Contains(commands.String(), `"`+flag+`"`) {
				t.Errorf("%s passes %s, which sim does not take", name, word)
			}
		}
	}
}

func TestDeployedCatalogueIsValidAndServesTheEngines(t *testing.T) {
	store, err := catalogue.Open(filepath.Join(root, "deploy/catalogue.yaml"), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range composeFile(t) {
		for i, word := range s.Command {
			if word != "--model" {
				continue
			}
			if m, ok := store.Current().Resolve(s.Command[i+1]); !ok || !m.Priced {
				t.Errorf("%s serves %s, which the catalogue does not price", name, s.Command[i+1])
			}
		}
	}
}

func TestBalancerPassesStreamsAndRepeatsNothing(t *testing.T) {
	conf := read(t, "deploy/nginx.conf")
	for _, line := range []string{"proxy_buffering off;", "proxy_request_buffering off;", "keepalive 256;", `proxy_set_header Connection "";`,
		"proxy_http_version 1.1;", "client_max_body_size 0;"} {
		if !strings.Contains(conf, line) {
			t.Errorf("deploy/nginx.conf lacks %s", line)
		}
	}
	for line := range strings.Lines(conf) {
		if strings.HasPrefix(strings.TrimSpace(line), "proxy_next_upstream ") && strings.Contains(line, "non_idempotent") {
			t.Errorf("the balancer would send a request twice: %s", line)
		}
	}
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		return // what can be held without it has been held
	}
	local := regexp.MustCompile(`headgate(\d):8080`).ReplaceAllString(conf, "127.0.0.1:1808$1")
	local = strings.ReplaceAll(local, "/tmp/nginx", t.TempDir()+"/nginx")
	path := filepath.Join(t.TempDir(), "nginx.conf")
	if err := os.WriteFile(path, []byte(local), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(nginx, "-t", "-q", "-c", path).CombinedOutput(); err != nil {
		t.Errorf("nginx -t: %v\n%s", err, out)
	}
}

func TestImageIsStaticAndNotRoot(t *testing.T) {
	text := read(t, "Dockerfile")
	_, final, ok := strings.Cut(text, "\nFROM scratch\n")
	if !ok || !strings.Contains(text, "CGO_ENABLED=0") || !regexp.MustCompile(`(?m)^USER [1-9]\d*:`).MatchString(final) ||
		!strings.Contains(final, "ca-certificates.crt") || !strings.Contains(final, "COPY --from=build /headgate /headgate") {
		t.Errorf("Dockerfile:\n%s", text)
	}
}
