package config

import (
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// maxRedisTimeout stays below the 8 s after which a replica without an
	// acknowledged beat has to place again. Above 900 ms a request is no longer
	// answered within a second while Redis is away.
	maxRedisTimeout = 5 * time.Second
	minRedisTimeout = 5 * time.Millisecond
	maxAttempts     = 10
	maxQueueLimit   = 1_000_000
	maxBody         = 2 << 30
	maxTime         = 24 * time.Hour
)

var (
	logLevels   = []string{"trace", "debug", "info", "warn", "error"}
	replicaForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)
	serviceForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)
)

// check holds every value to its bounds, and values against each other. A
// variable that is already at fault is not looked at again.
func (c *Config) check(already []fault) []fault {
	k := checker{}
	for _, f := range already {
		k.skip = append(k.skip, f.name)
	}
	c.checkListen(&k)
	c.checkStores(&k)
	c.checkClocks(&k)
	k.is("HG_QUEUE_LIMIT", 0 <= c.QueueLimit && c.QueueLimit <= maxQueueLimit, "must be from 0 to %d", maxQueueLimit)
	k.is("HG_ATTEMPTS", 1 <= c.Attempts && c.Attempts <= maxAttempts, "must be from 1 to %d", maxAttempts)
	k.is("HG_MAX_BODY_BYTES", 1 <= c.MaxBodyBytes && c.MaxBodyBytes <= maxBody, "must be from 1 to %d", int64(maxBody))
	k.is("HG_REPLICA_ID", replicaForm.MatchString(c.ReplicaID),
		"must be 1 to 64 of [A-Za-z0-9._-] (default: this host's name)")
	k.is("HG_LOG_LEVEL", slices.Contains(logLevels, c.LogLevel), "must be one of %s", strings.Join(logLevels, ", "))
	return k.faults
}

// fit shortens defaults that a value the operator did set would contradict.
func (c *Config) fit() {
	shorten := func(name string, value *time.Duration, most time.Duration) {
		if !c.set[name] && most > 0 {
			*value = min(*value, most)
		}
	}
	shorten("HG_FIRST_TOKEN_TIMEOUT", &c.FirstTokenTimeout, c.RequestTimeout)
	shorten("HG_QUEUE_WAIT", &c.QueueWait, c.RequestTimeout)
}

// checker collects faults.
type checker struct {
	skip   []string
	faults []fault
}

func (k *checker) is(name string, good bool, format string, args ...any) {
	if !good && !slices.Contains(k.skip, name) {
		k.faults = append(k.faults, fault{name, fmt.Sprintf(format, args...)})
	}
}

// both is is for a rule between two variables: it is not judged when the other
// one is already at fault.
func (k *checker) both(name, other string, good bool, format string, args ...any) {
	if !slices.Contains(k.skip, other) {
		k.is(name, good, format, args...)
	}
}

func (c *Config) checkListen(k *checker) {
	const form = "must be host:port, like :8080"
	k.is("HG_LISTEN", validListen(c.Listen), form)
	k.is("HG_ADMIN_LISTEN", validListen(c.AdminListen), form)
	k.both("HG_ADMIN_LISTEN", "HG_LISTEN", c.AdminListen != c.Listen || strings.HasSuffix(c.Listen, ":0"),
		"must differ from HG_LISTEN")
	k.both("HG_TLS_CERT", "HG_TLS_KEY", c.TLSCert != "" || c.TLSKey == "", "must be set where HG_TLS_KEY is")
	k.both("HG_TLS_KEY", "HG_TLS_CERT", c.TLSKey != "" || c.TLSCert == "", "must be set where HG_TLS_CERT is")
	if c.AdminToken == "" {
		k.both("HG_ADMIN_TOKEN", "HG_ADMIN_LISTEN", !validListen(c.AdminListen) || isLoopback(c.AdminListen),
			"must be set unless HG_ADMIN_LISTEN is a loopback address")
		return
	}
	k.is("HG_ADMIN_TOKEN", !strings.ContainsFunc(c.AdminToken, func(r rune) bool { return r <= ' ' || r >= 0x7f }),
		"must be printable ASCII without spaces")
}

func (c *Config) checkStores(k *checker) {
	for name, raw := range map[string]string{"HG_REDIS_URL": c.RedisURL, "HG_CACHE_REDIS_URL": c.CacheRedisURL} {
		text := redisFault(raw)
		k.is(name, text == "", "%s", text)
	}
	k.is("HG_REDIS_TIMEOUT", minRedisTimeout <= c.RedisTimeout && c.RedisTimeout <= maxRedisTimeout,
		"must be from %v to %v", minRedisTimeout, maxRedisTimeout)
	k.is("HG_ON_REDIS_DOWN", c.OnRedisDown == Reject || c.OnRedisDown == Serve, "must be reject or serve")
	k.is("HG_CONSUL_ADDR", c.ConsulAddr == "" || validConsul(c.ConsulAddr),
		"must be host:port, or a URL with http, https or unix and no credentials")
	k.is("HG_CONSUL_SERVICE", serviceForm.MatchString(c.ConsulService), "must be a service's name")
}

func (c *Config) checkClocks(k *checker) {
	for _, t := range []struct {
		name  string
		value time.Duration
		least time.Duration
	}{
		{"HG_NOTICE_TIME", c.NoticeTime, 0},
		{"HG_DRAIN_TIME", c.DrainTime, 0},
		{"HG_FIRST_TOKEN_TIMEOUT", c.FirstTokenTimeout, time.Millisecond},
		{"HG_STREAM_SILENCE", c.StreamSilence, time.Millisecond},
		{"HG_REQUEST_TIMEOUT", c.RequestTimeout, time.Millisecond},
		{"HG_QUEUE_WAIT", c.QueueWait, 0},
		{"HG_PROBE_IDLE", c.ProbeIdle, 0},
	} {
		k.is(t.name, t.least <= t.value && t.value <= maxTime, "must be from %v to %v", t.least, maxTime)
	}
	// What was spent is still to be written when the drain ends.
	k.both("HG_DRAIN_TIME", "HG_REDIS_TIMEOUT", c.DrainTime < 0 || c.DrainTime >= c.RedisTimeout,
		"must not be shorter than HG_REDIS_TIMEOUT (%v)", c.RedisTimeout)
	k.both("HG_FIRST_TOKEN_TIMEOUT", "HG_REQUEST_TIMEOUT", c.RequestTimeout <= 0 || c.FirstTokenTimeout <= c.RequestTimeout,
		"must not be longer than HG_REQUEST_TIMEOUT (%v)", c.RequestTimeout)
	k.both("HG_QUEUE_WAIT", "HG_REQUEST_TIMEOUT", c.RequestTimeout <= 0 || c.QueueWait <= c.RequestTimeout,
		"must not be longer than HG_REQUEST_TIMEOUT (%v)", c.RequestTimeout)
}

func validListen(s string) bool {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

func isLoopback(listen string) bool {
	host, _, _ := net.SplitHostPort(listen)
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func validConsul(s string) bool {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		_, _, err := net.SplitHostPort(s)
		return err == nil
	}
	if scheme == "unix" {
		return strings.HasPrefix(rest, "/")
	}
	u, err := url.Parse(s)
	return err == nil && (scheme == "http" || scheme == "https") && u.Host != "" && u.User == nil
}

// redisFault says what is wrong with a Redis URL without quoting it. (C2)
func redisFault(raw string) string {
	if raw == "" {
		return ""
	}
	const form = "must be redis://host:port/0, several hosts for a cluster, ?sentinel=name for Sentinel, or the same with rediss"
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || scheme != "redis" && scheme != "rediss" {
		return form
	}
	rest, query, _ := strings.Cut(rest, "?")
	rest, db, _ := strings.Cut(rest, "/")
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		if _, err := url.Parse("redis://" + rest[:at] + "@h"); err != nil {
			return "the user or password must be percent-encoded"
		}
		rest = rest[at+1:]
	}
	hosts := strings.Split(rest, ",")
	for i, host := range hosts {
		if !validHost(host) {
			return fmt.Sprintf("host %d is not host:port", i+1)
		}
	}
	return redisTailFault(db, query, len(hosts))
}

func redisTailFault(db, query string, hosts int) string {
	values, err := url.ParseQuery(query)
	if err != nil {
		return "what follows ? cannot be read"
	}
	for name := range values {
		if name != "sentinel" {
			return "only sentinel may follow ?"
		}
	}
	if values.Has("sentinel") && values.Get("sentinel") == "" {
		return "sentinel needs the name of a primary"
	}
	number := 0
	if db != "" {
		if number, err = strconv.Atoi(db); err != nil || number < 0 || number > 1<<16 {
			return "what follows / must be the number of a database"
		}
	}
	if hosts > 1 && number != 0 && !values.Has("sentinel") {
		return "a cluster has no database but 0"
	}
	return ""
}

// validHost takes host or host:port, IPv6 in brackets.
func validHost(s string) bool {
	host, port := s, "6379"
	if strings.Contains(strings.TrimLeft(s, "["), ":") && !strings.HasSuffix(s, "]") {
		var err error
		if host, port, err = net.SplitHostPort(s); err != nil {
			return false
		}
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return false
	}
	return host != "" && !strings.ContainsAny(host, " \t/@%?#")
}
