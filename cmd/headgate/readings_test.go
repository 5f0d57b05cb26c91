package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
)

// TestReadingsReachTheRecords: what an engine says of itself stands in its record in Redis, as the fleet's knowledge.
func TestReadingsReachTheRecords(t *testing.T) {
	t.Parallel()
	redis := lab.Redis(t)
	page := "vllm:num_requests_running{engine=\"0\"} 3\nvllm:num_requests_running{engine=\"1\"} 2\nvllm:num_requests_waiting 1\n" +
		"vllm:kv_cache_usage_perc 0.4251\nprocess_start_time_seconds 1.7e9\nvllm:cache_config_info{kv_cache_size_tokens=\"9000\"} 1\n"
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"qwen"}]}`)
		case "/metrics":
			fmt.Fprint(w, page)
		}
	}))
	defer engine.Close()
	p := start(t, []string{"HG_LISTEN=127.0.0.1:0", "HG_ADMIN_LISTEN=127.0.0.1:0", "HG_REDIS_URL=" + redis.URL(),
		"HG_BACKENDS=qwen=" + engine.URL + ";id=b1", "HG_USAGE_LOG=stdout"}, "serve")
	want := map[string]string{"running": "5", "waiting": "1", "external": "6", "kv": "4251", "kv_tokens": "9000", "restarts": "0", "started": "1700000000.000"}
	for field, value := range want {
		lab.Eventually(t, 30*time.Second, func() bool { return redis.CLI("HGET", "hg:{p:qwen}:backend:b1", field) == value }, "%s is %s", field, value)
	}
	if status := p.end(syscall.SIGINT); status != 0 || strings.Contains(p.stderr.String(), "metrics failed") {
		t.Errorf("status %d: %s", status, p.stderr.String())
	}
}

// TestReplicasRegisterThemselves: where Consul is, a load balancer finds the replica there once it is ready, and finds it gone
// as soon as it begins to leave.
func TestReplicasRegisterThemselves(t *testing.T) {
	t.Parallel()
	redis, consul := lab.Redis(t), lab.Consul(t)
	p := start(t, []string{"HG_LISTEN=:0", "HG_ADMIN_LISTEN=127.0.0.1:0", "HG_REDIS_URL=" + redis.URL(), "HG_CONSUL_ADDR=" + consul.Addr,
		"HG_REPLICA_ID=one", "HG_NOTICE_TIME=60s"}, "serve")
	port := p.find(&p.stderr, `"listen":"[^"]*:(\d+)"`)[1]
	registered := func() string {
		_, body := fetch(t, "http://"+consul.Addr+"/v1/health/service/headgate?passing")
		var found []struct {
			Node    struct{ Address string }
			Service struct {
				ID, Address string
				Port        int
			}
		}
		if err := json.Unmarshal([]byte(body), &found); err != nil || len(found) != 1 {
			return fmt.Sprintf("%d entries, %v", len(found), err)
		}
		s := found[0].Service
		if s.Address != "" || !strings.HasPrefix(s.ID, "one-") {
			return fmt.Sprintf("%+v", s)
		}
		return net.JoinHostPort(found[0].Node.Address, fmt.Sprint(s.Port))
	}
	lab.Eventually(t, 30*time.Second, func() bool { return registered() == "127.0.0.1:"+port }, "registered at port %s", port)
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, 30*time.Second, func() bool { return registered() == "0 entries, <nil>" }, "deregistered")
	if status, body := fetch(t, "http://127.0.0.1:"+port+"/v1/models"); status != 401 {
		t.Errorf("behind its deregistration it does not serve on: %d %s", status, body)
	}
	p.again(syscall.SIGTERM, `"message":"ending at once`)
	if status := p.wait(); status != 1 {
		t.Errorf("cut short: status %d", status)
	}
}
