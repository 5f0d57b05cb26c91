//go:build clients

package clients

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/engine"
	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
)

const catalogue = `models:
  qwen:
    price: {prompt: 0.20, completion: 0.60}
    max_output_tokens: 64
  other:
    pool: qwen
    price: {prompt: 0.20, completion: 0.60}
`

// world is what the suites talk to, and what they ask about it.
type world struct {
	*fleet.Fleet
	redis   *lab.RedisServer
	engines []*engine.Server
	desk    *httptest.Server
}

func newWorld(t *testing.T) *world {
	w := &world{redis: lab.Redis(t)}
	backends := make([]string, 2)
	for i := range backends {
		e, err := engine.Start(engine.Options{Models: []string{"qwen", "other"}, Slots: 16, Speed: 100})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		w.engines = append(w.engines, e)
		backends[i] = fmt.Sprintf("qwen=%s;slots=16;id=b%d", e.URL, i+1)
	}
	w.Fleet = fleet.Start(t, fleet.Options{Replicas: 2, Redis: w.redis.URL(), Catalogue: catalogue,
		Env: []string{"HG_BACKENDS=" + strings.Join(backends, ",")}})
	for _, r := range w.Replicas {
		lab.Eventually(t, 30*time.Second, func() bool { return r.Metric(`headgate_backends{pool="qwen",state="healthy"}`) == 2 }, "%s uses both engines", r.Name)
	}
	desk := http.NewServeMux()
	desk.HandleFunc("POST /key", w.makeKey)
	desk.HandleFunc("POST /faults", w.setFaults)
	desk.HandleFunc("GET /request", w.tellRequest)
	w.desk = httptest.NewServer(desk)
	t.Cleanup(w.desk.Close)
	return w
}

func (w *world) env() []string {
	return []string{"HEADGATE_A=" + w.Replicas[0].URL, "HEADGATE_B=" + w.Replicas[1].URL, "HEADGATE_WORLD=" + w.desk.URL}
}

// makeKey is POST /key with a list of flags of `headgate keys create`. The answer is the key.
func (w *world) makeKey(out http.ResponseWriter, r *http.Request) {
	var flags []string
	if err := json.NewDecoder(r.Body).Decode(&flags); err != nil {
		http.Error(out, err.Error(), http.StatusBadRequest)
		return
	}
	io.WriteString(out, w.Key(append([]string{"--tenant", "acme"}, flags...)...))
}

// setFaults is POST /faults with a list of engine.Fault, which both engines get in place of those they had. With times: 1
// a request fails at one engine and then at the other.
func (w *world) setFaults(out http.ResponseWriter, r *http.Request) {
	var faults []engine.Fault
	err := json.NewDecoder(r.Body).Decode(&faults)
	for _, e := range w.engines {
		if err == nil {
			err = e.SetFault(faults...)
		}
	}
	if err != nil {
		http.Error(out, err.Error(), http.StatusBadRequest)
	}
}

// asked is what is known of the requests with one X-Request-Id, in the order they came.
type asked struct {
	Lines  []json.RawMessage `json:"lines"`  // usage lines
	Engine []reached         `json:"engine"` // what the engines had of them
	served bool
}

type reached struct {
	Path    string `json:"path"`
	Outcome string `json:"outcome"`
	Status  int    `json:"status"`
	Prompt  int    `json:"prompt"`
	Cached  int    `json:"cached"`
	Output  int    `json:"output"`
	Body    string `json:"body"`
	AbortMS int64  `json:"abort_ms"` // Unix; when it ended
}

// tellRequest is GET /request?id=…&lines=n: it answers when there are n usage lines with that request id (0: as many as it
// takes until one says 200) and the engines are done with it.
func (w *world) tellRequest(out http.ResponseWriter, r *http.Request) {
	id, n := r.FormValue("id"), atoi(r.FormValue("lines"))
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if a, done := w.find(id); done && (n > 0 && len(a.Lines) >= n || n == 0 && a.served) {
			out.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(out).Encode(a)
			return
		}
	}
	a, _ := w.find(id)
	text, _ := json.Marshal(a)
	http.Error(out, fmt.Sprintf("no %d lines of %s, or it still runs: %s", n, id, text), http.StatusGatewayTimeout)
}

func (w *world) find(id string) (a asked, done bool) {
	done = true
	a.Engine = []reached{}
	for _, l := range w.Lines() {
		if l.RequestID == id {
			a.Lines = append(a.Lines, json.RawMessage(l.Raw))
			a.served = a.served || l.Status == 200
		}
	}
	for _, e := range w.engines {
		for _, s := range e.Seen() {
			if strings.HasPrefix(s.RequestID, id+"-") {
				done = done && !s.Ended.IsZero()
				a.Engine = append(a.Engine, reached{s.Path, s.Outcome, s.Status, s.Prompt, s.Cached, s.Output, string(s.Body), s.Ended.UnixMilli()})
			}
		}
	}
	return a, done
}

// clean fails the test if a suite has left anything behind.
func (w *world) clean(t *testing.T) {
	t.Helper()
	for _, e := range w.engines {
		if err := e.SetFault(); err != nil {
			t.Fatal(err)
		}
	}
	lab.Eventually(t, 20*time.Second, func() bool {
		return w.redis.CLI("HLEN", "hg:{t:acme}:open") == "0" &&
			w.redis.CLI("HGET", "hg:{p:qwen}:backend:b1", "held") == "0" && w.redis.CLI("HGET", "hg:{p:qwen}:backend:b2", "held") == "0"
	}, "nothing is left reserved or held")
}

func atoi(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}
