package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/headgate/headgate/catalogue"
)

const (
	// checkEvery is the pace of GET /health. A dead engine is noticed after it at
	// the latest where its port refuses.
	checkEvery = time.Second
	// checkTimeout is long because /health shares the engine's event loop with
	// tokenization: a busy engine is slow to answer, not dead.
	checkTimeout = 5 * time.Second
	// failuresToLeave times checkTimeout is how long a silent engine stays in
	// use, unless requests fail to connect before.
	failuresToLeave = 3
	// recheckAfter is the pause between a request's failed connect and the next
	// check.
	recheckAfter = 250 * time.Millisecond
	listEvery    = 30 * time.Second
	listRetry    = 2 * time.Second
	maxListing   = 4 << 20
)

// outcome is what one health check said.
type outcome int

const (
	good    outcome = iota // 2xx
	failed                 // another status, a timeout, a broken answer
	refused                // nobody listens
	unasked                // this replica had no socket to ask with: nothing is known
)

// tally is an engine's record. The zero value is one that was never checked.
type tally struct {
	up    bool
	fails int // in a row
}

// after is the record after one more check: one good answer brings an engine
// in; a refused connection takes it out at once, anything else only the third
// time in a row, and what could not be asked changes nothing.
func (t tally) after(o outcome) tally {
	switch o {
	case unasked:
		return t
	case good:
		return tally{up: true}
	case refused:
		return tally{fails: t.fails + 1}
	}
	t.fails++
	t.up = t.up && t.fails < failuresToLeave
	return t
}

// story tells the log what becomes of one member: a line for each change, none for what goes on. The zero value tells
// nobody.
type story struct {
	log  zerolog.Logger
	told told
}

// told is what the log was told last.
type told int

const (
	untold told = iota
	toldUp
	toldDown
)

// health is one more verdict on the member; why counts where it is not up.
func (s *story) health(of spec, up bool, why string) {
	switch {
	case up && s.told != toldUp:
		s.told = toldUp
		s.log.Info().Str("backend", of.id).Str("address", of.addr).Msg("backend healthy")
	case !up && s.told != toldDown:
		before := s.told
		s.told = toldDown
		s.log.Warn().Str("backend", of.id).Str("address", of.addr).Str("reason", why).Msg(
			map[told]string{untold: "backend not healthy yet", toldUp: "backend unhealthy: out of use"}[before])
	}
}

// described tells what Consul changed of it.
func (s *story) described(before, after spec) {
	if before.draining != after.draining {
		s.log.Info().Str("backend", after.id).Bool("draining", after.draining).Msg("backend's draining mark changed")
	}
	if before.critical != after.critical {
		s.log.Warn().Str("backend", after.id).Bool("critical", after.critical).Msg("backend's check in consul changed")
	}
}

// reason is the outcome in words, for one that is not good.
func (o outcome) reason(serves bool) string {
	switch {
	case o == refused:
		return "the connection to its port is refused"
	case o == failed:
		return "GET /health: no 2xx in time"
	case o == unasked:
		return "this replica has no descriptor left to ask with"
	case !serves:
		return "GET /v1/models lists no model it is registered for"
	}
	return ""
}

// jittered is d give or take a tenth, so that replicas do not ask in step.
func jittered(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}

// listing is what GET /v1/models said: context length by model, 0 = not said.
type listing map[string]int64

// effective is what a backend serves: what it was registered for and lists.
// Without registered names that is all it lists, and without a listing all it
// was registered for.
func effective(declared []string, listed listing) []string {
	if listed == nil {
		return declared
	}
	if declared != nil {
		return slices.DeleteFunc(slices.Clone(declared), func(name string) bool {
			_, ok := listed[name]
			return !ok
		})
	}
	all := make([]string, 0, len(listed))
	for name := range listed {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// prober asks engines. It follows no redirect and uses no proxy: what answers
// must be the engine itself.
type prober struct{ client *http.Client }

func newProber(roots *x509.CertPool) prober {
	return prober{&http.Client{
		Transport: &http.Transport{
			DialContext:            (&net.Dialer{Timeout: 3 * time.Second}).DialContext,
			MaxIdleConnsPerHost:    1,
			IdleConnTimeout:        30 * time.Second,
			TLSHandshakeTimeout:    3 * time.Second,
			TLSClientConfig:        &tls.Config{RootCAs: roots},
			MaxResponseHeaderBytes: 64 << 10,
			DisableCompression:     true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (p prober) close() { p.client.CloseIdleConnections() }

// health asks GET /health once.
func (p prober) health(ctx context.Context, s spec) outcome {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	status, _, err := p.get(ctx, s, "/health", 64<<10)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return refused
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return unasked
	case err != nil || status/100 != 2:
		return failed
	}
	return good
}

// models asks GET /v1/models once; nil when there is no listing in the answer.
func (p prober) models(ctx context.Context, s spec) listing {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	status, body, err := p.get(ctx, s, "/v1/models", maxListing)
	if err != nil || status != http.StatusOK {
		return nil
	}
	return parseListing(body)
}

// parseListing reads a list of models; nil when body is none.
func parseListing(body []byte) listing {
	var answer struct {
		Data []struct {
			ID          string `json:"id"`
			MaxModelLen int64  `json:"max_model_len"`
		} `json:"data"`
	}
	if json.Unmarshal(body, &answer) != nil || answer.Data == nil {
		return nil
	}
	l := listing{}
	for _, m := range answer.Data {
		if catalogue.ValidName(m.ID) && len(l) < maxModels {
			l[m.ID] = max(m.MaxModelLen, 0)
		}
	}
	return l
}

func (p prober) get(ctx context.Context, s spec, path string, most int64) (int, []byte, error) {
	resp, err := p.open(ctx, s, path)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, most))
	return resp.StatusCode, body, err
}

// open sends a GET; the caller closes the body. It dials the address, which may have an IPv6 zone that Host must not have.
func (p prober) open(ctx context.Context, s spec, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.scheme+"://"+s.host+s.basePath+path, nil)
	if err != nil {
		return nil, err
	}
	req.Host, req.URL.Host = s.host, s.addr
	return p.client.Do(req)
}
