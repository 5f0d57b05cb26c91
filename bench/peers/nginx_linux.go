package peers

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Kinds of nginx.
const (
	Bare     = "bare"
	Lua      = "lua"
	LuaRedis = "lua-redis"
)

// slots each engine has: none waits in these benchmarks.
const slots = 20_000

// Nginx starts one. LuaRedis needs s.Redis.
func (s *Site) Nginx(kind string) (*Process, error) {
	dir := filepath.Join(s.dir, "nginx-"+kind)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	modules, err := nginxModules(kind)
	if err != nil {
		return nil, err
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	if err := place(dir, "nginx.conf.tmpl", "nginx.conf", map[string]any{
		"Kind": kind, "Dir": dir, "Modules": modules, "Port": addr.Port(), "Key": s.Key, "Engines": s.Engines,
	}); err != nil {
		return nil, err
	}
	if kind != Bare {
		if err := s.placeGate(dir, kind); err != nil {
			return nil, err
		}
	}
	return s.start(command{name: "nginx-" + kind, core: s.Core, addr: addr,
		args: []string{nginxBinary(), "-p", dir, "-c", filepath.Join(dir, "nginx.conf")}})
}

// UsageLog is where nginx of that kind writes its usage lines.
func (s *Site) UsageLog(kind string) string {
	return filepath.Join(s.dir, "nginx-"+kind, "usage.log")
}

func nginxBinary() string {
	if path, err := exec.LookPath("nginx"); err == nil {
		return path
	}
	return "/usr/sbin/nginx"
}

// nginxModules is the directory of the Lua module.
func nginxModules(kind string) (string, error) {
	if kind == Bare {
		return "", nil
	}
	for _, dir := range []string{"/usr/lib/nginx/modules", "/usr/lib64/nginx/modules"} {
		if _, err := os.Stat(filepath.Join(dir, "ngx_http_lua_module.so")); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("nginx has no Lua module here (Debian: libnginx-mod-http-lua, lua-cjson)")
}

// placeGate writes the Lua files and what they have to know.
func (s *Site) placeGate(dir, kind string) error {
	if err := place(dir, "gate.lua", "gate.lua", nil); err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "return { hash = %q, slots = %d, log = %q, engines = {", hashOf(s.Key), slots, filepath.Join(dir, "usage.log"))
	for _, e := range s.Engines {
		host, port, _ := net.SplitHostPort(e)
		fmt.Fprintf(&b, " { %q, %s },", host, port)
	}
	b.WriteString(" }")
	if kind == LuaRedis {
		if err := place(dir, "store.lua", "store.lua", nil); err != nil {
			return err
		}
		host, port, _ := net.SplitHostPort(s.Redis)
		fmt.Fprintf(&b, ", redis = { %q, %s }, sha = {", host, port)
		for _, name := range []string{"admit", "settle", "place", "release"} {
			sha, err := s.loadNaive(name)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %s = %q,", name, sha)
		}
		b.WriteString(" }")
		if err := s.seedNaive(); err != nil {
			return err
		}
	}
	b.WriteString(" }\n")
	return os.WriteFile(filepath.Join(dir, "site.lua"), []byte(b.String()), 0o600)
}

func (s *Site) loadNaive(name string) (sha string, err error) {
	text, err := files.ReadFile("naive-" + name + ".lua")
	if err != nil {
		return "", err
	}
	return s.redis("SCRIPT", "LOAD", string(text))
}

// seedNaive writes the policies of three scopes as the naive scripts read them.
func (s *Site) seedNaive() error {
	const root = "peer:{t:acme}"
	limits := []string{"rpm", "1000000000", "tpm", "1000000000000", "budget_nusd", "1000000000000000", "period", "month"}
	for key, fields := range map[string][]string{
		root + ":key:" + hashOf(s.Key): append([]string{"id", "key_1", "team", "search"}, limits...),
		root + ":team:search":          append([]string{"id", "search"}, limits...),
		root:                           append([]string{"id", "acme"}, limits...),
	} {
		if _, err := s.redis(append([]string{"HSET", key}, fields...)...); err != nil {
			return err
		}
	}
	return nil
}

func (s *Site) redis(args ...string) (string, error) {
	host, port, err := net.SplitHostPort(s.Redis)
	if err != nil {
		return "", fmt.Errorf("redis: %w", err)
	}
	return run(nil, append([]string{"redis-cli", "-e", "-h", host, "-p", port}, args...)...)
}
