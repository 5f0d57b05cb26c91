package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/coordinator"
)

// request is one line of a workload.
type request struct {
	atMS           float64
	prompt, output int // tokens
	// chain names the full blocks of the prompt, and behind them those the answer fills where they are known: equal names
	// are equal texts from the first token on.
	chain  []uint64
	ends   []messageEnd // ascending
	prefix coordinator.Prefix
}

// messageEnd is where a message of a prompt ends.
type messageEnd struct {
	at     int // tokens
	answer bool
}

// workload is what arrives, in order.
type workload struct {
	name     string
	block    int // tokens of a block of chain
	requests []request
	prefixes bool // beginnings repeat
}

// traceFiles are the public traces this program reads, by name in the directory of traces.
var traceFiles = []struct {
	file, name string
	read       func(name string, text []byte) (workload, error)
}{
	{"mooncake_conversation_trace.jsonl", "conversation", readMooncake},
	{"mooncake_synthetic_trace.jsonl", "synthetic", readMooncake},
	{"azure_2023_code.csv", "code", readAzure},
	{"azure_2023_conv.csv", "azure-conv", readAzure},
}

// loadTraces reads the traces that are in dir.
func loadTraces(dir string) (found []workload, err error) {
	for _, t := range traceFiles {
		text, err := os.ReadFile(filepath.Join(dir, t.file))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		w, err := t.read(t.name, text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.file, err)
		}
		found = append(found, w.fingerprinted())
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no trace in %s", dir)
	}
	return found, nil
}

// readMooncake reads lines {"timestamp" ms, "input_length", "output_length", "hash_ids"}: one id per 512 tokens of prompt,
// equal for equal beginnings, the last one perhaps of a block that is not full. Lines that begin with # are passed over.
func readMooncake(name string, text []byte) (workload, error) {
	w := workload{name: name, block: 512, prefixes: true}
	ended := map[uint64]int{} // the last full block of an earlier prompt -> tokens of its answer
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		if bytes.HasPrefix(lines.Bytes(), []byte("#")) {
			continue
		}
		var line struct {
			Timestamp    float64  `json:"timestamp"`
			InputLength  int      `json:"input_length"`
			OutputLength int      `json:"output_length"`
			HashIDs      []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return w, fmt.Errorf("line %d: %w", n, err)
		}
		r := request{atMS: line.Timestamp, prompt: max(1, line.InputLength), output: max(1, line.OutputLength)}
		r.chain = line.HashIDs[:min(len(line.HashIDs), r.prompt/w.block)]
		// Sessions are not named: an earlier prompt that this one continues was an earlier turn, and its answer came next.
		for i, id := range r.chain {
			if answer, ok := ended[id]; ok && i+1 < len(r.chain) {
				end := (i + 1) * w.block
				r.ends = append(r.ends, messageEnd{at: end}, messageEnd{min(end+answer, r.prompt), true})
			}
		}
		if last := len(r.chain); last > 0 {
			r.ends = append(r.ends, messageEnd{at: last * w.block})
			ended[r.chain[last-1]] = r.output
		}
		w.requests = append(w.requests, r)
	}
	return w, lines.Err()
}

// readAzure reads TIMESTAMP,ContextTokens,GeneratedTokens. Nothing is known of the texts: none begins like another.
func readAzure(name string, text []byte) (workload, error) {
	w := workload{name: name, block: 64}
	unique := uint64(1) << 62
	var first time.Time
	for n, line := range strings.Split(strings.ReplaceAll(string(text), "\r", ""), "\n") {
		if n == 0 || line == "" || line[0] == '#' || strings.HasPrefix(line, "TIMESTAMP") {
			continue
		}
		f := strings.Split(line, ",")
		if len(f) != 3 {
			return w, fmt.Errorf("line %d: %d fields", n+1, len(f))
		}
		at, err := time.Parse("2006-01-02 15:04:05.9999999", f[0])
		prompt, err1 := strconv.Atoi(f[1])
		output, err2 := strconv.Atoi(f[2])
		if err := errors.Join(err, err1, err2); err != nil {
			return w, fmt.Errorf("line %d: %w", n+1, err)
		}
		if first.IsZero() {
			first = at
		}
		r := request{atMS: float64(at.Sub(first).Microseconds()) / 1000, prompt: max(1, prompt), output: max(1, output)}
		for range r.prompt / w.block {
			unique++
			r.chain = append(r.chain, unique)
		}
		r.ends = []messageEnd{{at: r.prompt}}
		w.requests = append(w.requests, r)
	}
	return w, nil
}
