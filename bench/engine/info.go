package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// apiError is an error as vLLM reports it.
type apiError struct {
	status  int
	kind    string
	message string
	param   string
}

func badRequest(message, param string) *apiError {
	return &apiError{http.StatusBadRequest, "BadRequestError", message, param}
}

func serviceUnavailable(message string) *apiError {
	return &apiError{http.StatusServiceUnavailable, "ServiceUnavailableError", message, ""}
}

func (e *apiError) body() []byte {
	param := []byte("null")
	if e.param != "" {
		param = quote(e.param)
	}
	return fmt.Appendf(nil, `{"error":{"message":%s,"type":"%s","param":%s,"code":%d}}`, quote(e.message), e.kind, param, e.status)
}

// messagesBody is the error as /v1/messages shows it: with vLLM's names of types, not Anthropic's.
func (e *apiError) messagesBody() []byte {
	return fmt.Appendf(nil, `{"type":"error","error":{"type":"%s","message":%s}}`, e.kind, quote(e.message))
}

// serveHealth is 200 with an empty body, or 503 under the fault Unhealthy. It does not look at the batch: a hung engine is
// healthy, as with vLLM.
func (e *Engine) serveHealth(w http.ResponseWriter, _ *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.unhealthy {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

func (e *Engine) serveVersion(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"version": "0.24.0"})
}

func (e *Engine) serveModels(w http.ResponseWriter, _ *http.Request) {
	type model struct {
		ID          string  `json:"id"`
		Object      string  `json:"object"`
		Created     int64   `json:"created"`
		OwnedBy     string  `json:"owned_by"`
		Root        string  `json:"root"`
		Parent      *string `json:"parent"`
		MaxModelLen int     `json:"max_model_len"`
	}
	var data []model
	for _, name := range e.opts.Models {
		data = append(data, model{name, "model", e.started.Unix(), "vllm", e.opts.Models[0], nil, e.opts.MaxModelLen})
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": data})
}

// serveState is GET /sim/state: the counters tests of a whole process ask for.
func (e *Engine) serveState(w http.ResponseWriter, _ *http.Request) {
	e.mu.Lock()
	state := map[string]int{
		"running":     len(e.batch.running),
		"waiting":     len(e.batch.waiting),
		"max_running": e.batch.maxRunning,
		"generations": e.generations,
	}
	e.mu.Unlock()
	writeJSON(w, http.StatusOK, state)
}

// serveMetrics has vLLM's names, types and labels.
func (e *Engine) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	var out bytes.Buffer
	label := fmt.Sprintf(`engine="0",model_name=%q`, e.opts.Models[0])
	metric := func(name, kind, labels string, value float64) {
		if !strings.Contains(out.String(), "# TYPE "+name+" ") {
			fmt.Fprintf(&out, "# HELP %s Simulated.\n# TYPE %s %s\n", name, name, kind)
		}
		fmt.Fprintf(&out, "%s{%s} %v\n", name, labels, value)
	}
	e.mu.Lock()
	b := e.batch
	metric("vllm:num_requests_running", "gauge", label, float64(len(b.running)))
	metric("vllm:num_requests_waiting", "gauge", label, float64(len(b.waiting)))
	metric("vllm:kv_cache_usage_perc", "gauge", label, float64(b.kv.used)/float64(b.kv.capacity))
	metric("vllm:prefix_cache_queries_total", "counter", label, float64(b.queries))
	metric("vllm:prefix_cache_hits_total", "counter", label, float64(b.hits))
	metric("vllm:num_preemptions_total", "counter", label, float64(b.preemptions))
	metric("vllm:prompt_tokens_total", "counter", label, float64(b.promptTotal))
	metric("vllm:generation_tokens_total", "counter", label, float64(b.outputTotal))
	for _, reason := range []string{"stop", "length", "abort", "error"} {
		labels := fmt.Sprintf(`engine="0",finished_reason=%q,model_name=%q`, reason, e.opts.Models[0])
		metric("vllm:request_success_total", "counter", labels, float64(b.finished[reason]))
	}
	capacity := b.kv.capacity
	e.mu.Unlock()
	metric("vllm:cache_config_info", "gauge", fmt.Sprintf(`block_size="%d",cache_dtype="auto",enable_prefix_caching="True",engine="0",`+
		`gpu_memory_utilization="0.9",num_gpu_blocks="%d",num_gpu_blocks_override="None",kv_cache_size_tokens="%d"`,
		blockTokens, capacity, capacity*blockTokens), 1)
	fmt.Fprintf(&out, "# HELP process_start_time_seconds Start time of the process since the epoch.\n"+
		"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %.3f\n", float64(e.started.UnixMilli())/1000)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Write(out.Bytes())
}

// guarded reports whether vLLM's --api-key protects the path.
func guarded(path string) bool { return strings.HasPrefix(path, "/v1") }

func writeJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(value)
}
