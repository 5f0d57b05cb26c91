// Package config reads the environment, once, into one validated Config.
//
// Invariants:
//
//	C1  An error is one line that names every fault by its variable.
//	C2  No error quotes a token, a password or a URL that may hold one.
//	C3  A name that begins with HG_ and is not known stops the start.
//	C4  A variable that is set to nothing counts as not set.
package config

import (
	"time"
)

// Config is what the environment says. Every duration is positive unless its
// comment says otherwise.
type Config struct {
	Listen      string `env:"HG_LISTEN"`       // host:port of the public port
	AdminListen string `env:"HG_ADMIN_LISTEN"` // host:port of the admin port
	AdminToken  string `env:"HG_ADMIN_TOKEN"`  // "" only where the admin port is on loopback

	TLSCert string `env:"HG_TLS_CERT"` // PEM file of the public port's certificate and its chain; "" = no TLS
	TLSKey  string `env:"HG_TLS_KEY"`  // PEM file of its key
	CAFile  string `env:"HG_CA_FILE"`  // PEM file of authorities that engines and rediss:// servers may be signed by, beside the system's; "" = none

	RedisURL      string        `env:"HG_REDIS_URL"`
	CacheRedisURL string        `env:"HG_CACHE_REDIS_URL"` // "" = the same Redis as RedisURL
	RedisTimeout  time.Duration `env:"HG_REDIS_TIMEOUT"`   // of one call
	OnRedisDown   OnRedisDown   `env:"HG_ON_REDIS_DOWN"`

	ConsulAddr    string         `env:"HG_CONSUL_ADDR"` // "" = no Consul
	ConsulService string         `env:"HG_CONSUL_SERVICE"`
	Backends      StaticBackends `env:"HG_BACKENDS"`
	Catalog       string         `env:"HG_CATALOG"` // path; "" = no file

	UsageLog  string `env:"HG_USAGE_LOG"` // "stdout" or a path
	SpoolDir  string `env:"HG_SPOOL_DIR"`
	ReplicaID string `env:"HG_REPLICA_ID"` // without the boot nonce
	LogLevel  string `env:"HG_LOG_LEVEL"`  // trace, debug, info, warn, error

	MaxBodyBytes int64   `env:"HG_MAX_BODY_BYTES"`
	CORSOrigins  Origins `env:"HG_CORS_ORIGINS"` // empty = no other origin; {"*"} = all

	NoticeTime time.Duration `env:"HG_NOTICE_TIME"` // from SIGTERM on: not ready but serving; 0 = none
	DrainTime  time.Duration `env:"HG_DRAIN_TIME"`  // after that: what runs may end

	FirstTokenTimeout time.Duration `env:"HG_FIRST_TOKEN_TIMEOUT"`
	StreamSilence     time.Duration `env:"HG_STREAM_SILENCE"` // between two events
	RequestTimeout    time.Duration `env:"HG_REQUEST_TIMEOUT"`

	QueueLimit int           `env:"HG_QUEUE_LIMIT"` // waiting requests per pool; 0 = nobody waits
	QueueWait  time.Duration `env:"HG_QUEUE_WAIT"`  // longest wait; 0 = nobody waits
	Attempts   int           `env:"HG_ATTEMPTS"`    // in all, the first included
	ProbeIdle  time.Duration `env:"HG_PROBE_IDLE"`  // 0 = no probes

	set map[string]bool
}

// Defaults of what the environment does not say.
const (
	DefaultListen            = ":8080"
	DefaultAdminListen       = "127.0.0.1:9090"
	DefaultRedisURL          = "redis://127.0.0.1:6379/0"
	DefaultRedisTimeout      = 450 * time.Millisecond
	DefaultConsulService     = "vllm"
	DefaultSlots             = 16
	DefaultUsageLog          = "stdout"
	DefaultLogLevel          = "info"
	DefaultMaxBodyBytes      = 32 << 20
	DefaultNoticeTime        = 5 * time.Second
	DefaultDrainTime         = 60 * time.Second
	DefaultFirstTokenTimeout = 120 * time.Second
	DefaultStreamSilence     = 60 * time.Second
	DefaultRequestTimeout    = 10 * time.Minute
	DefaultQueueLimit        = 1000
	DefaultQueueWait         = 30 * time.Second
	DefaultAttempts          = 2
	DefaultProbeIdle         = time.Minute

	// SpoolDirName is what HG_SPOOL_DIR is below the system's directory for
	// temporary files. Set it to a disk that outlives the machine where a bill
	// matters more than that.
	SpoolDirName = "headgate-spool"
)

// OnRedisDown is what happens to requests while Redis cannot be asked.
type OnRedisDown string

const (
	Reject OnRedisDown = "reject" // 503 at once
	Serve  OnRedisDown = "serve"  // keys seen before are served within a share of their limits
)

// StaticBackend is one backend of HG_BACKENDS.
type StaticBackend struct {
	Pool  string
	URL   string // http or https, without a slash at the end
	Slots int
	ID    string // default: the URL's host:port
}

// StaticBackends is HG_BACKENDS, in the order written.
type StaticBackends []StaticBackend

// Origins is HG_CORS_ORIGINS, in the order written.
type Origins []string

// IsSet reports whether the environment itself names the variable.
func (c Config) IsSet(name string) bool { return c.set[name] }

// defaults is the Config of an empty environment, without what Load finds out.
func defaults() Config {
	return Config{
		Listen:            DefaultListen,
		AdminListen:       DefaultAdminListen,
		RedisURL:          DefaultRedisURL,
		RedisTimeout:      DefaultRedisTimeout,
		OnRedisDown:       Reject,
		ConsulService:     DefaultConsulService,
		UsageLog:          DefaultUsageLog,
		LogLevel:          DefaultLogLevel,
		MaxBodyBytes:      DefaultMaxBodyBytes,
		NoticeTime:        DefaultNoticeTime,
		DrainTime:         DefaultDrainTime,
		FirstTokenTimeout: DefaultFirstTokenTimeout,
		StreamSilence:     DefaultStreamSilence,
		RequestTimeout:    DefaultRequestTimeout,
		QueueLimit:        DefaultQueueLimit,
		QueueWait:         DefaultQueueWait,
		Attempts:          DefaultAttempts,
		ProbeIdle:         DefaultProbeIdle,
	}
}
