package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// engines is all engines of the fleet on one port, each below a path of its own.
type engines struct {
	addr string
	busy atomic.Bool // a request runs on each
}

func startEngines(b *bench) *engines {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	b.must(err)
	e := &engines{addr: listener.Addr().String()}
	server := &http.Server{Handler: e, ReadHeaderTimeout: time.Minute}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	b.Cleanup(func() { _ = server.Close(); <-done })
	return e
}

func (e *engines) url(name string) string { return "http://" + e.addr + "/" + name }

func (e *engines) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch path {
	case "v1/models":
		model, _, _ := strings.Cut(name, "-")
		fmt.Fprintf(w, `{"object":"list","data":[{"id":%q,"object":"model","max_model_len":32768}]}`, model)
	case "metrics":
		running := 0
		if e.busy.Load() {
			running = 1
		}
		fmt.Fprintf(w, page, running)
	}
}

const page = `process_start_time_seconds 1.76450000012e+09
vllm:num_requests_running{engine="0",model_name="m"} %d.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="m"} 123456.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 123456.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 23456.0
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="10000"} 1.0
`
