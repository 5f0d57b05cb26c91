package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/bench/fleet"
)

// load is what clients do.
type load struct {
	perSecond int     // requests, half of them streams of 5 to 20 tokens; default 20
	clients   int     // > 0: so many clients, each with its next request when the last one ended, instead of perSecond
	leave     float64 // the share of clients that leave at a random moment
	streams   int     // streams of streamTokens that are open all the time
	tokens    int     // of these; default 600, which take 7 s at speed 1
	timeout   time.Duration
}

// How a request ended for its client.
const (
	whole   = "whole"   // 200 and all of it
	left    = "left"    // the client went
	cut     = "cut"     // a head, and then the connection broke
	reset   = "reset"   // the connection broke before a head
	expired = "expired" // the client's patience was over
)

// answer is one request with what its client got.
type answer struct {
	id, tenant   string
	stream, long bool
	replica      int // that had it
	turned       int // replicas that did not take the connection before
	began, ended time.Time
	status       int    // 0: no head
	end          string // whole, left, cut, reset, expired, or "<status> <code>"; of a 200 with an error event: "event <code>"
	err          error
	text         string
}

// traffic is a load under way.
type traffic struct {
	w *world
	load
	client *http.Client

	ready   []atomic.Bool // by replica: what the balancer thinks
	stop    chan struct{}
	running sync.WaitGroup
	number  atomic.Int64

	mu      sync.Mutex
	answers []answer
}

// drive starts the load. Clients are spread over the replicas whose /readyz said yes a moment ago, as by a load balancer that
// asks every 200 ms and tries the next one where a connection is refused.
func (w *world) drive(l load) *traffic {
	if l.perSecond == 0 {
		l.perSecond = 20
	}
	if l.tokens == 0 {
		l.tokens = 600
	}
	if l.timeout == 0 {
		l.timeout = 30 * time.Second
	}
	d := &traffic{w: w, load: l, ready: make([]atomic.Bool, len(w.Replicas)), stop: make(chan struct{})}
	d.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true, IdleConnTimeout: 5 * time.Second,
		DialContext: (&net.Dialer{Timeout: time.Second}).DialContext}}
	for i, r := range w.Replicas {
		d.ready[i].Store(true)
		d.running.Go(func() { d.watch(i, r) })
	}
	if l.clients > 0 {
		for range l.clients {
			d.running.Go(func() { d.oneAfterTheOther(0) })
		}
	} else {
		d.running.Go(d.steadily)
	}
	for range l.streams {
		d.running.Go(func() { d.oneAfterTheOther(d.tokens) })
	}
	return d
}

// end stops asking and returns when the last answer is there.
func (d *traffic) end() []answer {
	close(d.stop)
	d.running.Wait()
	d.client.CloseIdleConnections()
	return d.answers
}

func (d *traffic) stopped() bool {
	select {
	case <-d.stop:
		return true
	default:
		return false
	}
}

func (d *traffic) watch(i int, r *fleet.Replica) {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-d.stop:
			return
		case <-tick.C:
		}
		answer, err := client.Get(r.Admin + "/readyz")
		if err == nil {
			answer.Body.Close()
		}
		d.ready[i].Store(err == nil && answer.StatusCode == 200)
	}
}

func (d *traffic) steadily() {
	tick := time.NewTicker(time.Second / time.Duration(d.perSecond))
	defer tick.Stop()
	for {
		select {
		case <-d.stop:
			return
		case <-tick.C:
		}
		d.running.Go(func() { d.ask(0) })
	}
}

func (d *traffic) oneAfterTheOther(tokens int) {
	for !d.stopped() {
		if a := d.ask(tokens); a.status != 200 {
			pause := time.NewTimer(100 * time.Millisecond) // as a client would
			<-pause.C
		}
	}
}

// ask sends one request and files its answer. tokens > 0: a stream of so many.
func (d *traffic) ask(tokens int) answer {
	n := d.number.Add(1)
	a := answer{id: fmt.Sprintf("f-%06d", n), tenant: tenant, stream: n%2 == 0, began: time.Now()}
	if n%10 == 5 && tokens == 0 {
		a.tenant = tight
	}
	if tokens > 0 {
		a.stream, a.long = true, true
	} else {
		tokens = 5 + rand.IntN(16)
	}
	ctx, cancel := context.WithTimeout(context.Background(), d.timeout)
	defer cancel()
	var gone atomic.Bool
	if !a.long && rand.Float64() < d.leave {
		leave := time.AfterFunc(time.Duration(rand.IntN(300))*time.Millisecond, func() { gone.Store(true); cancel() })
		defer leave.Stop()
	}
	body := fleet.Chat("qwen", fmt.Sprintf("prompt %d of %d", n%7, n), fmt.Sprintf(`"max_tokens":%d,"ignore_eos":true,"stream":%v`, tokens, a.stream))
	d.send(ctx, &a, body)
	a.ended = time.Now()
	switch {
	case gone.Load() && a.end != whole:
		a.end = left
	case a.end != whole && errors.Is(ctx.Err(), context.DeadlineExceeded):
		a.end = expired
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answers = append(d.answers, a)
	return a
}

// send tries replicas until one takes the connection.
func (d *traffic) send(ctx context.Context, a *answer, body string) {
	order := d.order()
	for i, replica := range order {
		r, _ := http.NewRequestWithContext(ctx, "POST", d.w.Replicas[replica].URL+"/v1/chat/completions", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+d.w.keys[a.tenant])
		r.Header.Set("X-Request-Id", a.id)
		reply, err := d.client.Do(r)
		a.replica, a.turned, a.err = replica, i, err
		var dial *net.OpError
		if errors.As(err, &dial) && dial.Op == "dial" && i < len(order)-1 {
			continue
		}
		if err != nil {
			a.end = reset
			return
		}
		text, err := io.ReadAll(reply.Body)
		reply.Body.Close()
		a.status, a.err, a.text = reply.StatusCode, err, string(text)
		a.end = judge(a)
		return
	}
}

// order is the replicas to try: those that are ready first, each kind in random order.
func (d *traffic) order() []int {
	var first, last []int
	for _, i := range rand.Perm(len(d.ready)) {
		if d.ready[i].Load() {
			first = append(first, i)
		} else {
			last = append(last, i)
		}
	}
	return append(first, last...)
}

var codeField = regexp.MustCompile(`"code":\s*"?(\w+)`)

// judge says how an answer that has a head ended.
func judge(a *answer) string {
	code := ""
	if m := codeField.FindStringSubmatch(a.text); m != nil {
		code = m[1]
	}
	switch {
	case a.status != 200 && a.err == nil:
		return fmt.Sprintf("%d %s", a.status, code)
	case a.stream && strings.Contains(a.text, `data: {"error"`):
		return "event " + code
	case a.err != nil:
		return cut
	case a.stream && strings.HasSuffix(a.text, "data: [DONE]\n\n"), !a.stream && strings.Contains(a.text, `"usage"`) && strings.HasSuffix(strings.TrimSpace(a.text), "}"):
		return whole
	}
	return cut
}
