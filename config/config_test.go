package config_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/config"
)

func TestLoadDefaults(t *testing.T) {
	t.Parallel()
	c, err := config.Load([]string{"PATH=/bin", "HG_QUEUE_WAIT=", "HG_CATALOG=  "})
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != ":8080" || c.AdminListen != "127.0.0.1:9090" || c.RedisTimeout != 450*time.Millisecond ||
		c.ConsulService != "vllm" || c.OnRedisDown != config.Reject || c.Attempts != 2 || c.QueueWait != 30*time.Second ||
		c.MaxBodyBytes != 32<<20 || c.UsageLog != "stdout" || c.ReplicaID == "" ||
		c.SpoolDir != filepath.Join(os.TempDir(), config.SpoolDirName) {
		t.Errorf("%+v", c)
	}
	if c.IsSet("HG_QUEUE_WAIT") || c.IsSet("HG_CATALOG") || c.IsSet("HG_REDIS_URL") { // C4
		t.Error("what is set to nothing counts as set")
	}
}

func TestLoadReadsEveryVariable(t *testing.T) {
	t.Parallel()
	environ := map[string]string{
		"HG_LISTEN": "127.0.0.1:1", "HG_ADMIN_LISTEN": "0.0.0.0:2", "HG_ADMIN_TOKEN": "secret-token",
		"HG_TLS_CERT": "cert.pem", "HG_TLS_KEY": "key.pem", "HG_CA_FILE": "ca.pem",
		"HG_REDIS_URL": "rediss://user:p%40ss@a:1,[::1]:2/0", "HG_CACHE_REDIS_URL": "redis://s1:26379,s2:26379/3?sentinel=main",
		"HG_REDIS_TIMEOUT": "300ms", "HG_ON_REDIS_DOWN": "serve", "HG_CONSUL_ADDR": "127.0.0.1:8500",
		"HG_CONSUL_SERVICE": "engines", "HG_CATALOG": "models.yaml", "HG_USAGE_LOG": "usage.log", "HG_SPOOL_DIR": "spool",
		"HG_REPLICA_ID": "gw-a", "HG_LOG_LEVEL": "debug", "HG_MAX_BODY_BYTES": "1000",
		"HG_CORS_ORIGINS": "https://a.example, http://localhost:3000", "HG_NOTICE_TIME": "0s", "HG_DRAIN_TIME": "2s",
		"HG_FIRST_TOKEN_TIMEOUT": "3s", "HG_STREAM_SILENCE": "4s", "HG_REQUEST_TIMEOUT": "5s", "HG_QUEUE_LIMIT": "0",
		"HG_QUEUE_WAIT": "1s", "HG_ATTEMPTS": "3", "HG_PROBE_IDLE": "0s",
		"HG_BACKENDS": "qwen=http://127.0.0.1:8000/;slots=8;id=b1, qwen=https://[::1]/base,",
	}
	c, err := config.Load(list(environ))
	if err != nil {
		t.Fatal(err)
	}
	v := reflect.ValueOf(c)
	for i := range v.NumField() {
		name := v.Type().Field(i).Tag.Get("env")
		if name == "" {
			continue
		}
		if _, ok := environ[name]; !ok {
			t.Errorf("this test says nothing about %s", name)
		}
		if !c.IsSet(name) {
			t.Errorf("%s counts as not set", name)
		}
	}
	want := config.StaticBackends{
		{Pool: "qwen", URL: "http://127.0.0.1:8000", Slots: 8, ID: "b1"},
		{Pool: "qwen", URL: "https://[::1]/base", Slots: config.DefaultSlots, ID: "[::1]:443"},
	}
	if !reflect.DeepEqual(c.Backends, want) {
		t.Errorf("backends %+v", c.Backends)
	}
	if c.RequestTimeout != 5*time.Second || c.QueueLimit != 0 || c.MaxBodyBytes != 1000 || c.OnRedisDown != config.Serve ||
		!reflect.DeepEqual(c.CORSOrigins, config.Origins{"https://a.example", "http://localhost:3000"}) {
		t.Errorf("%+v", c)
	}
}

func TestLoadNamesAllFaultsOnOneLine(t *testing.T) { // C1, C3
	t.Parallel()
	_, err := config.Load([]string{
		"HG_LISEN=:1", "HG_WHATEVER=x", "HG_ADMIN_TOKN=hunter2-hunter2", "HG_DRAIN_TIME=60", "HG_ATTEMPTS=0", "HG_QUEUE_LIMIT=many",
		"HG_REDIS_URL=redis://user:hunter2@:1", "HG_CACHE_REDIS_URL=http://hunter2", "HG_ADMIN_LISTEN=:9090",
		"HG_BACKENDS=a b=http://x:1,q=ftp://x,q=http://x:1;slots=0,q=http://x:1;weight=2,q=http://u:hunter2@x:1,q=http://y:1,q=http://y:1",
		"HG_REQUEST_TIMEOUT=10s", "HG_QUEUE_WAIT=20s", "HG_ON_REDIS_DOWN=explode", "HG_CORS_ORIGINS=https://x/path",
		"HG_LOG_LEVEL=loud\nline", "HG_REPLICA_ID=a|b", "HG_TLS_KEY=key.pem",
	})
	if err == nil {
		t.Fatal("accepted")
	}
	text := err.Error()
	if strings.ContainsAny(text, "\r\n") {
		t.Errorf("more than one line: %q", text)
	}
	if strings.Contains(text, "hunter2") { // C2
		t.Errorf("a secret is quoted: %s", text)
	}
	for _, want := range []string{
		"HG_LISEN: unknown variable; did you mean HG_LISTEN?", "HG_WHATEVER: unknown variable",
		"HG_ADMIN_TOKN: unknown variable; did you mean HG_ADMIN_TOKEN?",
		`HG_DRAIN_TIME: "60" is not a duration`, "HG_ATTEMPTS: must be from 1 to 10", `HG_QUEUE_LIMIT: "many" is not a whole number`,
		"HG_REDIS_URL: host 1 is not host:port", "HG_CACHE_REDIS_URL: must be redis://",
		"HG_ADMIN_TOKEN: must be set unless HG_ADMIN_LISTEN is a loopback address",
		`HG_BACKENDS: entry 1: "a b" is not a pool's name`, "entry 2: must have an http or https URL", "entry 3: slots must be from 1",
		`entry 4: unknown field "weight"`, "entry 5: the URL must have no credentials", `entry 7: the id "y:1" stands there twice`,
		"HG_QUEUE_WAIT: must not be longer than HG_REQUEST_TIMEOUT (10s)", "HG_ON_REDIS_DOWN: must be reject or serve",
		`HG_CORS_ORIGINS: "https://x/path" is not an origin`, "HG_LOG_LEVEL: must be one of", "HG_REPLICA_ID: must be 1 to 64", "HG_TLS_CERT: must be set where HG_TLS_KEY is",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in: %s", want, text)
		}
	}
}

func TestLoadJudgesNothingByAValueThatIsAtFault(t *testing.T) {
	t.Parallel()
	_, err := config.Load([]string{"HG_REQUEST_TIMEOUT=soon", "HG_QUEUE_WAIT=1h", "HG_ADMIN_LISTEN=nowhere"})
	if err == nil || strings.Contains(err.Error(), "HG_QUEUE_WAIT") || strings.Contains(err.Error(), "HG_ADMIN_TOKEN") {
		t.Errorf("%v", err)
	}
}

func TestLoadShortensDefaultsToFit(t *testing.T) {
	t.Parallel()
	c, err := config.Load([]string{"HG_REQUEST_TIMEOUT=2s"})
	if err != nil || c.QueueWait != 2*time.Second || c.FirstTokenTimeout != 2*time.Second {
		t.Errorf("%v: %+v", err, c)
	}
}

func TestLoadRedisURLForms(t *testing.T) {
	t.Parallel()
	for url, good := range map[string]bool{
		"redis://a:1,b:2/0": true, "redis://a": true, "redis://a/": true, "rediss://:pw@a:6379/15": true, "redis://[::1]:6379": true,
		"redis://[::1]": true, "redis://a:1,b:2?sentinel=main": true, "redis://a:1,b:2/4?sentinel=main": true,
		"redis://": false, "redis://a:x": false, "redis://a:1,": false, "redis://a:1,b:2/4": false, "redis://a/x": false,
		"redis://a?sentinel=": false, "redis://a?db=3": false, "a:6379": false, "unix:///x": false, "redis://::1:6379": false,
		"redis://a:70000": false, "redis://u:%zz@a:1": false,
	} {
		_, err := config.Load([]string{"HG_REDIS_URL=" + url})
		if (err == nil) != good {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestLoadAdminTokenIsOnlyOptionalOnLoopback(t *testing.T) {
	t.Parallel()
	for listen, good := range map[string]bool{
		"127.0.0.1:9": true, "[::1]:9": true, "localhost:9": true, ":9": false, "0.0.0.0:9": false, "10.0.0.1:9": false, "[::]:9": false,
	} {
		_, err := config.Load([]string{"HG_ADMIN_LISTEN=" + listen})
		if (err == nil) != good {
			t.Errorf("%s: %v", listen, err)
		}
		if _, err := config.Load([]string{"HG_ADMIN_LISTEN=" + listen, "HG_ADMIN_TOKEN=t0ken"}); err != nil {
			t.Errorf("%s with a token: %v", listen, err)
		}
	}
}

func FuzzLoad(f *testing.F) {
	f.Add("HG_BACKENDS", "q=http://x:1;slots=2;id=b")
	f.Add("HG_REDIS_URL", "redis://u:p@a:1,b:2/0?sentinel=x")
	f.Add("HG_X", "")
	f.Fuzz(func(t *testing.T, name, value string) {
		if _, err := config.Load([]string{name + "=" + value}); err != nil && strings.ContainsAny(err.Error(), "\r\n") {
			t.Errorf("more than one line: %q", err)
		}
	})
}

func list(m map[string]string) []string {
	var all []string
	for name, value := range m {
		all = append(all, name+"="+value)
	}
	return all
}

// TestSizesAreBytes: what many would write is told how.
func TestSizesAreBytes(t *testing.T) {
	if _, err := config.Load([]string{"HG_MAX_BODY_BYTES=32MiB"}); err == nil || err.Error() != `HG_MAX_BODY_BYTES: "32MiB" is not a whole number of bytes (32 MiB is 33554432)` {
		t.Fatal(err)
	}
	if c, err := config.Load([]string{"HG_MAX_BODY_BYTES=33554432", "HG_LISTEN="}); err != nil || c.MaxBodyBytes != 32<<20 || c.Listen != config.DefaultListen {
		t.Fatalf("%+v %v", c, err)
	}
}
