package coordinator

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
	"github.com/rs/zerolog"

	"github.com/headgate/headgate/pipeline"
	"github.com/headgate/headgate/scripts/lua"
)

// CacheConfig says where answers are kept.
type CacheConfig struct {
	// Store is the cache's own, also where it is the same Redis: a large answer must not stand in front of an admission.
	// Its timeout (150 ms) is the longest a request waits for the cache; what comes later is an error, which callers
	// take for a miss.
	Store *pipeline.Store
	Log   zerolog.Logger
}

// Answer is what the cache keeps of one response.
type Answer struct {
	Status      int
	ContentType string
	Body        []byte

	Prompt, Cached, Completion int64 // tokens, as the engine counted them
	Model                      string
	StoredAt                   time.Time // Redis' clock; set by Lookup alone
}

// Cache keeps whole answers for a while, each under the tenant it was made for. It is safe for concurrent use.
//
// Invariants:
//
//	C1. Lookup returns an answer exactly as it was written, or none: an entry that is not whole is a miss.
//	C2. Every entry goes by itself.
//	C3. A Redis that does not answer costs a few look-ups their waiting, then one in 250 ms.
type Cache struct {
	cfg     CacheConfig
	breaker breaker // for look-ups
	failed  atomic.Int64
}

// NewCache starts nothing.
func NewCache(cfg CacheConfig) *Cache {
	c := &Cache{cfg: cfg}
	c.breaker.turned = func(away bool, err error) {
		if away {
			cfg.Log.Warn().Err(err).Msg("the response cache does not answer: requests go on without it")
		} else {
			cfg.Log.Info().Msg("the response cache answers again")
		}
	}
	return c
}

// cacheFields is what an entry consists of.
var cacheFields = []string{"status", "content_type", "body", "model", "prompt", "cached", "completion", "stored_at"}

// Lookup declares the read of an answer on b; nil is a miss, also while the tenant's cache is away and is not asked. hash
// stands for all that shapes the answer.
func (c *Cache) Lookup(b *pipeline.Batch, tenant, hash string) *pipeline.Handle[*Answer] {
	if !c.breaker.closed(tenant, time.Now()) {
		return pipeline.Resolved[*Answer](nil, nil)
	}
	command := pipeline.Command{Store: c.cfg.Store, Name: "HMGET", Key: CacheEntry(tenant, hash), Args: cacheFields}
	h := pipeline.Declare(b, command, func(m rueidis.RedisMessage) (*Answer, error) {
		fields, err := m.ToArray()
		if err != nil {
			return nil, err
		}
		return readAnswer(fields), nil
	})
	h.Then(func(_ *Answer, err error) { c.breaker.asked(tenant, err, time.Now()) })
	return h
}

// readAnswer is nil unless every field is there and can be read. // C1
func readAnswer(fields []rueidis.RedisMessage) *Answer {
	text, whole := make([]string, len(cacheFields)), make([]int64, len(cacheFields))
	if len(fields) != len(cacheFields) {
		return nil
	}
	for i := range fields {
		var err error
		if text[i], err = fields[i].ToString(); err != nil {
			return nil
		}
		if i == 0 || i >= 4 {
			if whole[i], err = strconv.ParseInt(text[i], 10, 64); err != nil || whole[i] < 0 {
				return nil
			}
		}
	}
	return &Answer{Status: int(whole[0]), ContentType: text[1], Body: []byte(text[2]), Model: text[3],
		Prompt: whole[4], Cached: whole[5], Completion: whole[6], StoredAt: time.UnixMilli(whole[7])}
}

// Write declares on post that e is kept for ttl, in place of what is there; a ttl under 1 ms keeps nothing. The caller
// bounds the size of the body.
func (c *Cache) Write(post *pipeline.Post, tenant, hash string, e Answer, ttl time.Duration) {
	if ttl < time.Millisecond {
		return
	}
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	args := lua.CacheWriteArgs{Hash: hash, TTLMS: ttl.Milliseconds(), Fields: [][2]string{
		{"status", strconv.Itoa(e.Status)}, {"content_type", e.ContentType}, {"body", string(e.Body)}, {"model", e.Model},
		{"prompt", number(e.Prompt)}, {"cached", number(e.Cached)}, {"completion", number(e.Completion)},
	}}
	post.With(func(b *pipeline.Batch) {
		lua.CacheWrite(b, c.cfg.Store, TenantRoot(tenant), args).Then(func(_ int64, err error) { c.written(err) })
	})
}

// written logs the first failure in a row: a cache that is away costs engine time and nothing else.
func (c *Cache) written(err error) {
	if err == nil {
		c.failed.Store(0)
	} else if c.failed.Add(1) == 1 {
		c.cfg.Log.Warn().Err(err).Msg("answers are not stored")
	}
}
