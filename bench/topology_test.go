package bench

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
)

// compose is the part of docker-compose.yml that says what runs.
type compose struct {
	Services map[string]struct {
		Command     []string
		Environment map[string]string
	}
}

// TestTopologyOfCompose runs what docker-compose.yml describes as processes: Redis with an append-only file, Consul, three
// replicas, nginx with deploy/nginx.conf in front, two simulated engines that register themselves. Then a replica, and
// an engine, are killed under load: nobody gets a wrong answer.
func TestTopologyOfCompose(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file compose
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	redis := lab.Redis(t, file.Services["redis"].Command[1:]...)
	if got := redis.CLI("CONFIG", "GET", "appendonly"); !strings.HasSuffix(got, "yes") {
		t.Fatalf("the append-only file is off: %s", got)
	}
	consul := lab.Consul(t)
	catalogue, err := os.ReadFile("../deploy/catalogue.yaml")
	if err != nil {
		t.Fatal(err)
	}
	engines := map[string]*exec.Cmd{}
	var replicas int
	for name, service := range file.Services {
		switch {
		case strings.HasPrefix(name, "engine"):
			engines[name] = startEngine(t, name, service.Command, consul.Addr)
		case strings.HasPrefix(name, "headgate"):
			replicas++
		}
	}
	if replicas != 3 || len(engines) != 2 {
		t.Fatalf("%d replicas and %d engines in docker-compose.yml, want 3 and 2", replicas, len(engines))
	}
	f := fleet.Start(t, fleet.Options{Replicas: replicas, Redis: redis.URL(), Consul: consul.Addr, Catalogue: string(catalogue)})
	for _, r := range f.Replicas {
		lab.Eventually(t, 30*time.Second, func() bool { return r.Metric(`headgate_backends{pool="qwen-7b",state="healthy"}`) == 2 }, "%s uses both engines", r.Name)
	}
	front := startBalancer(t, f)
	key := f.Key("--tenant", "acme", "--name", "first", "--rpm", "1000", "--budget", "5/day")
	asked := 0
	burst := func(what string, n int) {
		t.Helper()
		asked += n
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				stream := i%2 == 0
				a := fleet.Ask(t, front, key, fleet.Chat("qwen-7b", fmt.Sprint(what, i), fmt.Sprintf(`"stream":%v,"max_tokens":4`, stream)))
				if a.Status != 200 || a.Err != nil || stream && !strings.HasSuffix(a.Body, "data: [DONE]\n\n") {
					t.Errorf("%s, request %d: %d %v %s", what, i, a.Status, a.Err, a.Body)
				}
			})
		}
		wg.Wait()
	}
	burst("all up", 30)
	served := map[string]int{}
	for _, l := range f.WaitLines(asked) {
		served[l.Replica]++
	}
	if len(served) != 3 {
		t.Errorf("the balancer used %d replicas of 3: %v", len(served), served)
	}
	f.Replicas[0].Kill()
	burst("a replica is gone", 30)
	_ = engines["engine1"].Process.Kill()
	burst("an engine is gone", 30)

	lab.Eventually(t, 30*time.Second, func() bool {
		return redis.CLI("HLEN", "hg:{t:acme}:open") == "0" && redis.CLI("HGET", "hg:{p:qwen-7b}:backend:engine2", "held") == "0"
	}, "nothing is left reserved or held")
	if n := len(f.Lines()); n != asked {
		t.Errorf("%d usage lines for %d requests", n, asked)
	}
}

// startEngine runs a compose service's command with this test's addresses in place of the service names.
func startEngine(t *testing.T, name string, command []string, consul string) *exec.Cmd {
	t.Helper()
	addr := lab.FreeAddr(t)
	args := make([]string, len(command))
	for i, a := range command {
		args[i] = map[string]string{":8000": addr, "consul:8500": consul, name + ":8000": addr}[a]
		if args[i] == "" {
			args[i] = a
		}
	}
	return start(t, exec.Command(fleet.Binary(t), append(args, "--speed", "20")...))
}

// startBalancer runs nginx with the deployment's configuration on this test's ports and returns its URL.
func startBalancer(t *testing.T, f *fleet.Fleet) string {
	t.Helper()
	text, err := os.ReadFile("../deploy/nginx.conf")
	if err != nil {
		t.Fatal(err)
	}
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		if nginx, err = exec.LookPath("/usr/sbin/nginx"); err != nil {
			t.Fatalf("%v: run `make tools`", err)
		}
	}
	addr := lab.FreeAddr(t)
	conf := string(text)
	replace := func(old, with string) {
		if !strings.Contains(conf, old) {
			t.Fatalf("deploy/nginx.conf has no %q", old)
		}
		conf = strings.ReplaceAll(conf, old, with)
	}
	for i, r := range f.Replicas {
		replace(fmt.Sprintf("headgate%d:8080", i+1), strings.TrimPrefix(r.URL, "http://"))
	}
	replace("listen 8080", "listen "+addr)
	replace("/tmp/", t.TempDir()+"/")
	path := filepath.Join(t.TempDir(), "nginx.conf")
	if err := os.WriteFile(path, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, exec.Command(nginx, "-c", path, "-g", "daemon off;"))
	lab.Eventually(t, 10*time.Second, func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	}, "nginx listens")
	return "http://" + addr
}

// start runs a process until the test ends.
func start(t *testing.T, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Signal(syscall.SIGTERM); _ = cmd.Wait() })
	return cmd
}
