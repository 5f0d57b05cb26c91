package gateway

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/headgate/headgate/catalogue"
	"github.com/headgate/headgate/cluster"
	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/pipeline"
)

// keyring is a ledger that knows one key, in tenant acme, and lets no request of it pass further.
type keyring struct {
	Ledger
	valid    string // hash
	seen     atomic.Bool
	looked   atomic.Int64
	admitted atomic.Int64
}

func (k *keyring) Seen(hash string) (coordinator.Hint, bool) {
	return coordinator.Hint{Tenant: "acme"}, hash == k.valid && k.seen.Load()
}

func (k *keyring) Alias(*pipeline.Batch, string) *pipeline.Handle[string] {
	return pipeline.Resolved("", nil)
}

func (k *keyring) Models(_ *pipeline.Batch, tenant, hash string) *pipeline.Handle[coordinator.Allowed] {
	k.looked.Add(1)
	a := coordinator.Allowed{Verdict: coordinator.KeyUnknown}
	if tenant == "acme" && hash == k.valid {
		a = coordinator.Allowed{Verdict: coordinator.Admitted, KeyID: "key_1"}
	}
	return pipeline.Resolved(a, nil)
}

func (k *keyring) Admit(_ *pipeline.Batch, r coordinator.Request) *pipeline.Handle[coordinator.Admission] {
	k.admitted.Add(1)
	a := coordinator.Admission{Verdict: coordinator.KeyUnknown}
	if r.KeyHash == k.valid {
		a = coordinator.Admission{Verdict: coordinator.ModelNotFound, KeyID: "key_1"}
	}
	return pipeline.Resolved(a, nil)
}

func (k *keyring) Settle(*pipeline.Post, coordinator.Settlement) {}

// front is a gateway's public port over real sockets, with no Redis and no engine behind it.
type front struct {
	*Gateway
	addr    string
	key     string
	keys    *keyring
	records chan coordinator.Record
	most    int // connections
}

func newFront(t *testing.T, cfg Config) *front {
	t.Helper()
	f := &front{key: "sk-acme-" + strings.Repeat("k", 32), records: make(chan coordinator.Record, 100)}
	f.keys = &keyring{valid: credentialHash(t, f.key)}
	models, err := catalogue.Open("", zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	usage, err := OpenUsageLog("", zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	if cfg.MaxBodyBytes == 0 {
		cfg.MaxBodyBytes = 1 << 20
	}
	f.Gateway = New(cfg, Deps{Ledger: f.keys, Cluster: cluster.New(cluster.Config{}, models, zerolog.Nop()), Catalogue: models,
		Pipeline: pipeline.New(), UsageLog: usage, Observe: func(r *coordinator.Record) { f.records <- *r }, Log: zerolog.Nop()})
	t.Cleanup(func() { _ = usage.Close() })
	return f.serve(t, f.Server())
}

// serve serves the port anew.
func (f *front) serve(t *testing.T, server *http.Server) *front {
	t.Helper()
	if f.most == 0 {
		f.most = 1000
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.addr = l.Addr().String()
	bounded := Listener(l, f.most, zerolog.Nop())
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(bounded) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return f
}

// record is the next usage record.
func (f *front) record(t *testing.T) coordinator.Record {
	t.Helper()
	select {
	case r := <-f.records:
		return r
	case <-time.After(20 * time.Second):
		t.Fatal("no usage record")
		return coordinator.Record{}
	}
}

// post is a chat request with a key and this body, as a client writes it; fields end in a line end each.
func (f *front) post(key, body string, fields ...string) string {
	return "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + key + "\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n" +
		strings.Join(fields, "") + "\r\n" + body
}

// wire is one client connection.
type wire struct {
	t *testing.T
	net.Conn
	in *bufio.Reader
}

func (f *front) dial(t *testing.T) *wire {
	t.Helper()
	c, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return &wire{t, c, bufio.NewReader(c)}
}

func (w *wire) send(text string) *wire {
	w.t.Helper()
	if _, err := io.WriteString(w.Conn, text); err != nil {
		w.t.Fatal(err)
	}
	return w
}

// served is an answer with its error code.
type served struct {
	*http.Response
	text, code, message string
}

// answer reads one answer to a request of that method.
func (w *wire) answer(method string) served {
	w.t.Helper()
	resp, err := http.ReadResponse(w.in, &http.Request{Method: method})
	if err != nil {
		w.t.Fatalf("no answer: %v", err)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatalf("%d with half a body: %v", resp.StatusCode, err)
	}
	var e struct {
		Error struct{ Message, Type, Code string }
	}
	if method != "HEAD" && resp.StatusCode >= 400 {
		if json.Unmarshal(text, &e) != nil || e.Error.Type == "" || e.Error.Message == "" || resp.Header.Get("Content-Type") != "application/json" {
			w.t.Errorf("%d without an error body: %v %q", resp.StatusCode, resp.Header, text)
		}
	}
	return served{resp, string(text), e.Error.Code, e.Error.Message}
}

// ended fails unless the gateway closes the connection now.
func (w *wire) ended() {
	w.t.Helper()
	if rest, err := io.ReadAll(w.in); err != nil && !strings.Contains(err.Error(), "reset") || len(rest) > 0 {
		w.t.Errorf("the connection goes on: %v %q", err, rest)
	}
}
