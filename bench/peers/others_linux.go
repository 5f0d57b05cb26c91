package peers

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// RedisServer starts a Redis of its own on the other core, without persistence; cluster makes it a node without slots.
func (s *Site) RedisServer(cluster bool) (*Process, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	port := strconv.Itoa(int(addr.Port()))
	args := []string{"redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction"}
	if cluster {
		args = append(args, "--cluster-enabled", "yes", "--cluster-config-file", filepath.Join(s.dir, "nodes-"+port+".conf"), "--cluster-port", strconv.Itoa(busPort(addr.Port())))
	}
	return s.start(command{name: "redis", core: s.Rest, addr: addr, args: args})
}

// Headgate starts a replica of the program at s.Binary: three scopes with limits and budgets, all checks on. env are
// further HG_ variables; pools name the models beside qwen-7b that the same engines serve.
func (s *Site) Headgate(name, redisURL string, env ...string) (*Process, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	admin, err := freeAddr()
	if err != nil {
		return nil, err
	}
	catalogue := filepath.Join(s.dir, "models.yaml")
	if err := os.WriteFile(catalogue, []byte(s.models()), 0o600); err != nil {
		return nil, err
	}
	all := append([]string{
		"HG_REDIS_URL=" + redisURL, "HG_LISTEN=" + addr.String(), "HG_ADMIN_LISTEN=" + admin.String(), "HG_REPLICA_ID=" + name,
		"HG_USAGE_LOG=" + s.HeadgateUsage(name), "HG_SPOOL_DIR=" + filepath.Join(s.dir, "spool-"+name),
		"HG_CATALOG=" + catalogue, "HG_BACKENDS=" + s.backends(), "HG_LOG_LEVEL=error",
		"HG_REDIS_TIMEOUT=3s", // Redis shares its processor with the clients: a wait for it is no failure here
	}, env...)
	return s.start(command{name: "headgate-" + name, core: s.Core, addr: addr, env: all, args: []string{s.Binary, "serve"},
		ready: func() error { return gets("http://" + admin.String() + "/readyz") }})
}

// gets is nil when that page answers 200.
func gets(url string) error {
	answer, err := http.Get(url)
	if err != nil {
		return err
	}
	answer.Body.Close()
	if answer.StatusCode != 200 {
		return errors.New(answer.Status)
	}
	return nil
}

// HeadgateUsage is where that replica writes its usage lines.
func (s *Site) HeadgateUsage(name string) string { return filepath.Join(s.dir, "usage-"+name+".jsonl") }

func (s *Site) models() string {
	var b strings.Builder
	b.WriteString("models:\n")
	for i := range s.Pools + 1 {
		fmt.Fprintf(&b, "  %s:\n    pool: %s\n    price: {prompt: 0.20, cached: 0.05, completion: 0.60}\n", ModelName(i), ModelName(i))
	}
	return b.String()
}

// ModelName is that of pool i; the first is what all peers serve.
func ModelName(i int) string {
	if i == 0 {
		return "qwen-7b"
	}
	return "qwen-7b-" + strconv.Itoa(i)
}

func (s *Site) backends() string {
	var all []string
	for i := range s.Pools + 1 {
		for j, e := range s.Engines {
			all = append(all, fmt.Sprintf("%s=http://%s;slots=%d;id=b%d-%d", ModelName(i), e, slots, i, j+1))
		}
	}
	return strings.Join(all, ",")
}

// CreateKey makes a key with three scopes, each with limits and a budget none of which is reached.
func (s *Site) CreateKey(redisURL, tenant string) (string, error) {
	env := []string{"HG_REDIS_URL=" + redisURL}
	limits := []string{"--rpm", "1000000000", "--tpm", "1000000000000", "--budget", "900000/month"}
	for _, scope := range [][]string{{"tenants", "create", tenant}, {"teams", "create", "search", "--tenant", tenant}} {
		if _, err := run(env, append(append([]string{s.Binary}, scope...), limits...)...); err != nil {
			return "", err
		}
	}
	return run(env, append([]string{s.Binary, "keys", "create", "--tenant", tenant, "--team", "search", "--name", "bench"}, limits...)...)
}

// StartLiteLLM starts the proxy with one worker: a model list with all engines, a master key, usage-based routing in Redis.
func (s *Site) StartLiteLLM() (*Process, error) {
	if s.LiteLLM == "" {
		return nil, errors.New("LiteLLM is not installed")
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	host, port, _ := strings.Cut(s.Redis, ":")
	if err := place(s.dir, "litellm.yaml.tmpl", "litellm.yaml", map[string]any{"Key": s.Key, "Engines": s.Engines, "RedisHost": host, "RedisPort": port}); err != nil {
		return nil, err
	}
	return s.start(command{name: "litellm", core: s.Core, addr: addr, wait: 3 * time.Minute,
		env:   []string{"LITELLM_LOG=ERROR", "DO_NOT_TRACK=1", "LITELLM_TELEMETRY=False", "LITELLM_LOCAL_MODEL_COST_MAP=True", "NO_DOCS=True"},
		args:  []string{s.LiteLLM, "--config", filepath.Join(s.dir, "litellm.yaml"), "--host", "127.0.0.1", "--port", strconv.Itoa(int(addr.Port())), "--num_workers", "1", "--telemetry", "False"},
		ready: func() error { return gets("http://" + addr.String() + "/health/liveliness") }})
}
