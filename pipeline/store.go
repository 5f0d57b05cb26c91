package pipeline

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
	"github.com/rs/zerolog"
)

// ErrUnavailable is what every command gets while the store has never been reached.
var ErrUnavailable = errors.New("redis unavailable")

// StoreConfig says where a Redis is and how long a call may take.
type StoreConfig struct {
	Name    string         // in logs only
	URL     string         // redis://a:1,b:2/0 (several: cluster seeds), rediss://, ?sentinel=name
	Timeout time.Duration  // of every call, a sixteenth less where several share a deadline; zero: 450 ms
	Roots   *x509.CertPool // of rediss:// servers; nil: the system's
	Simple  bool           // miniredis: RESP2, no client cache, scripts without their #! line
	Log     zerolog.Logger
}

// Store is one Redis (node, Sentinel set or cluster), reached over few connections. Commands of all requests share
// them. It is safe for concurrent use.
type Store struct {
	cfg       StoreConfig
	option    rueidis.ClientOption
	client    atomic.Pointer[rueidis.Client]
	deadlines deadlines
	after     queue // post-call commands, sent by Run
}

// NewStore prepares a store; nothing is dialled before Run.
func NewStore(cfg StoreConfig) (*Store, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = 450 * time.Millisecond
	}
	option, err := clientOption(cfg)
	if err != nil {
		return nil, err
	}
	return &Store{cfg: cfg, option: option, deadlines: deadlines{timeout: cfg.Timeout}, after: newQueue()}, nil
}

// Run connects, again and again until it succeeds, then sends what post-call batches hand over. It returns when ctx
// has ended and everything handed over was sent or failed.
func (s *Store) Run(ctx context.Context) error {
	defer s.close()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.after.work(ctx, s) })
	s.connect(ctx)
	<-ctx.Done()
	return nil
}

// Ready is nil when the store answers a PING.
func (s *Store) Ready(ctx context.Context) error {
	_, err := s.Do(ctx, "PING", "")
	return err
}

// Do sends one plain command within the store's timeout. An empty key is for commands without one, which any node of a
// cluster may answer.
func (s *Store) Do(ctx context.Context, name, key string, args ...string) (rueidis.RedisMessage, error) {
	client := s.client.Load()
	if client == nil {
		return rueidis.RedisMessage{}, ErrUnavailable
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	var m rueidis.RedisMessage
	var err error
	if key == "" && (*client).Mode() == rueidis.ClientModeCluster {
		m, err = s.anywhere(ctx, *client, name, args)
	} else {
		m, err = (*client).Do(ctx, plain(*client, name, key, args)).ToMessage()
	}
	if rueidis.IsRedisNil(err) {
		err = nil
	}
	return m, err
}

// Subscribe calls fn for each message on channel until ctx ends; a lost connection is subscribed again.
func (s *Store) Subscribe(ctx context.Context, channel string, fn func(message string)) error {
	for ctx.Err() == nil {
		if client := s.client.Load(); client != nil {
			c := *client
			_ = c.Receive(ctx, c.B().Subscribe().Channel(channel).Build(), func(m rueidis.PubSubMessage) { fn(m.Message) })
		}
		pause(ctx, 100*time.Millisecond)
	}
	return ctx.Err()
}

// Load puts scripts into the cache of every primary, so that first requests need no repeat. It is an optimisation:
// a script that is missing all the same is sent in full by its first caller, also where SCRIPT is forbidden.
func (s *Store) Load(ctx context.Context, scripts ...*Script) error {
	client := s.client.Load()
	if client == nil {
		return ErrUnavailable
	}
	var errs []error
	for addr, node := range (*client).Nodes() {
		for _, script := range scripts {
			err := node.Do(ctx, node.B().ScriptLoad().Script(s.source(script).text).Build()).Error()
			if err != nil && !strings.Contains(err.Error(), "READONLY") {
				errs = append(errs, fmt.Errorf("load %s on %s: %w", script.Name, addr, err))
			}
		}
	}
	return errors.Join(errs...)
}

// WaitConnected returns when the store has been reached once, or with ctx's error.
func (s *Store) WaitConnected(ctx context.Context) error {
	for s.client.Load() == nil {
		if pause(ctx, 5*time.Millisecond); ctx.Err() != nil {
			return fmt.Errorf("%s: %w", s.cfg.Name, ErrUnavailable)
		}
	}
	return nil
}

// connect dials until it succeeds or ctx ends, with growing pauses; it logs the first failure and the success after one.
func (s *Store) connect(ctx context.Context) {
	for wait := 50 * time.Millisecond; ctx.Err() == nil; wait = min(2*wait, time.Second) {
		client, err := rueidis.NewClient(s.option)
		if err == nil {
			s.client.Store(&client)
			if wait > 50*time.Millisecond {
				s.cfg.Log.Info().Str("store", s.cfg.Name).Msg("redis reached")
			}
			return
		}
		if wait == 50*time.Millisecond {
			s.cfg.Log.Warn().Str("store", s.cfg.Name).Err(err).Msg("redis not reached, trying on")
		}
		pause(ctx, wait)
	}
}

func (s *Store) close() {
	if client := s.client.Load(); client != nil {
		(*client).Close()
	}
}

// source is the text this store can run.
func (s *Store) source(script *Script) source {
	if s.cfg.Simple {
		return script.simple
	}
	return script.full
}

// clientOption turns the URL of headgate's environment into rueidis' options: few connections, no silent repeats
// (a lost reply means "perhaps applied", and only the owner knows whether its command may be repeated).
func clientOption(cfg StoreConfig) (rueidis.ClientOption, error) {
	first, addrs, sentinel, err := splitURL(cfg.URL)
	if err != nil {
		return rueidis.ClientOption{}, err
	}
	option, err := rueidis.ParseURL(first)
	if err != nil {
		return rueidis.ClientOption{}, fmt.Errorf("redis url: %w", err)
	}
	option.InitAddress = addrs
	option.Sentinel.MasterSet = sentinel
	option.DisableRetry = true
	option.DisableCache = true
	option.ClientSetInfo = rueidis.DisableClientSetInfo // a user with few rights would be refused it, before 7.2 always
	option.PipelineMultiplex = -1
	option.AlwaysRESP2 = cfg.Simple
	if option.TLSConfig != nil {
		option.TLSConfig.RootCAs = cfg.Roots
		option.TLSConfig.ServerName = "" // each node's certificate is for its own address, not for the first one's
		option.Sentinel.TLSConfig = option.TLSConfig
	}
	option.Dialer.Timeout = 2 * time.Second
	option.ConnWriteTimeout = max(2*time.Second, cfg.Timeout) // a connection that is quiet for so long is closed with all calls on it
	option.ReadBufferEachConn = 1 << 16
	option.WriteBufferEachConn = 1 << 16
	followPrimaries(&option)
	letOthersFirst(&option)
	return option, nil
}

// splitURL takes the address list and the sentinel name out of text; what is left is a URL of one host.
func splitURL(text string) (first string, addrs []string, sentinel string, err error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return "", nil, "", errors.New("redis url: no scheme (want redis://host:port/db)")
	}
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	authority, tail := rest[:end], rest[end:]
	user := ""
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		user, authority = authority[:at+1], authority[at+1:]
	}
	for _, a := range strings.Split(authority, ",") {
		if a == "" {
			return "", nil, "", errors.New("redis url: an empty address")
		}
		if !strings.Contains(strings.TrimPrefix(a[strings.LastIndexByte(a, ']')+1:], ""), ":") {
			a += ":6379"
		}
		addrs = append(addrs, a)
	}
	first = scheme + "://" + user + addrs[0] + tail
	u, err := url.Parse(first)
	if err != nil {
		return "", nil, "", errors.New("redis url: not readable")
	}
	q := u.Query()
	sentinel = q.Get("sentinel")
	q.Del("sentinel")
	u.RawQuery = q.Encode()
	return u.String(), addrs, sentinel, nil
}

// pause sleeps d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
