package cluster

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math"
	"strconv"
)

// exposition is what a page of GET /metrics says, added up over the engines on it.
type exposition struct {
	running, waiting int64
	kvUse            float64 // 0 to 1, the mean of the engines; 0 = not said
	kvTokens         int64   // capacity of all; 0 = not said
	promptTokens     int64   // counters since the process began, in tokens; 0 = not said
	prefixQueries    int64
	prefixHits       int64
	started          string // another one in each process; "" = not said
}

const (
	// maxPage is far above what engines send (vLLM's page has some 100 kB).
	maxPage = 4 << 20
	// maxLine is the longest line that is looked at; a longer one is passed over.
	maxLine   = 16 << 10
	maxFigure = 1e15 // below it a float64 is exact
	// maxRequests is what no engine runs or queues; who says more says nothing.
	maxRequests = 1e6
)

var (
	errNoEngine = errors.New("no engine's figures on the page")
	errLongPage = errors.New("the page is longer than 4 MiB")
)

// series is what a line of that very name adds to. Names are never matched by their beginning: vLLM has
// num_requests_waiting and num_requests_waiting_by_reason.
type series int

const (
	seriesRunning series = iota
	seriesWaiting
	seriesKVUse
	seriesOldKVUse
	seriesPrompt
	seriesQueries
	seriesOldQueries
	seriesHits
	seriesOldHits
	seriesStarted
	seriesCreated
	seriesCapacity
	allSeries
)

var seriesNames = map[string]series{
	"process_start_time_seconds": seriesStarted,

	"vllm:num_requests_running":             seriesRunning,
	"vllm:num_requests_waiting":             seriesWaiting,
	"vllm:kv_cache_usage_perc":              seriesKVUse,
	"vllm:gpu_cache_usage_perc":             seriesOldKVUse,
	"vllm:prompt_tokens_total":              seriesPrompt,
	"vllm:prefix_cache_queries_total":       seriesQueries,
	"vllm:gpu_prefix_cache_queries_total":   seriesOldQueries,
	"vllm:prefix_cache_hits_total":          seriesHits,
	"vllm:gpu_prefix_cache_hits_total":      seriesOldHits,
	"vllm:prompt_tokens_created":            seriesCreated,
	"vllm:prefix_cache_queries_created":     seriesCreated,
	"vllm:gpu_prefix_cache_queries_created": seriesCreated,
	"vllm:cache_config_info":                seriesCapacity,

	"sglang:num_running_reqs":    seriesRunning,
	"sglang:num_queue_reqs":      seriesWaiting,
	"sglang:token_usage":         seriesKVUse,
	"sglang:prompt_tokens_total": seriesPrompt,
	"sglang:cached_tokens_total": seriesHits,
	"sglang:cache_config_info":   seriesCapacity,

	"llamacpp:requests_processing":  seriesRunning,
	"llamacpp:requests_deferred":    seriesWaiting,
	"llamacpp:kv_cache_usage_ratio": seriesKVUse, // old servers only
	"llamacpp:prompt_tokens_total":  seriesPrompt,
}

// parseExposition reads a page in the text format. What it does not understand it passes over; an error means that the
// page is cut, too long, or no engine's.
func parseExposition(page io.Reader) (exposition, error) {
	var s sums
	limited := &io.LimitedReader{R: page, N: maxPage + 1}
	lines := bufio.NewReaderSize(limited, maxLine)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = lines.ReadSlice('\n')
			}
			line = nil
		}
		s.add(line)
		if err == io.EOF {
			break
		}
		if err != nil {
			return exposition{}, err
		}
	}
	if limited.N == 0 {
		return exposition{}, errLongPage
	}
	if s.lines[seriesRunning] == 0 {
		return exposition{}, errNoEngine
	}
	return s.exposition(), nil
}

// sums is what the lines of each series add up to; of started times the latest counts.
type sums struct {
	lines [allSeries]int
	value [allSeries]float64
}

func (s *sums) add(line []byte) {
	line = bytes.TrimRight(line, "\r\n")
	end := bytes.IndexAny(line, "{ \t")
	if end <= 0 || line[0] == '#' {
		return
	}
	kind, ok := seriesNames[string(line[:end])]
	if !ok {
		return
	}
	var l seriesLabels
	rest, ok := l.read(line[end:])
	if !ok || l.copied {
		return
	}
	rest = bytes.TrimLeft(rest, " \t")
	if end := bytes.IndexAny(rest, " \t"); end >= 0 {
		rest = rest[:end] // a time stamp follows
	}
	v, err := strconv.ParseFloat(string(rest), 64)
	if err != nil || !(v >= 0 && v <= maxFigure) { // nor NaN
		return
	}
	if (kind == seriesRunning || kind == seriesWaiting) && v > maxRequests {
		return
	}
	s.lines[kind]++
	switch kind {
	case seriesStarted, seriesCreated:
		s.value[kind] = max(s.value[kind], v)
	case seriesCapacity: // the labels hold it, the value is 1
		s.value[kind] += l.capacity()
	default:
		s.value[kind] += v
	}
}

func (s *sums) exposition() exposition {
	kv := s.newer(seriesKVUse, seriesOldKVUse)
	e := exposition{
		running: s.whole(seriesRunning), waiting: s.whole(seriesWaiting),
		kvTokens: s.whole(seriesCapacity), promptTokens: s.whole(seriesPrompt),
		prefixQueries: s.whole(s.newer(seriesQueries, seriesOldQueries)), prefixHits: s.whole(s.newer(seriesHits, seriesOldHits)),
	}
	if e.prefixQueries == 0 && e.prefixHits > 0 {
		e.prefixQueries = e.promptTokens // SGLang looks each prompt up and does not count it again
	}
	if n := s.lines[kv]; n > 0 {
		e.kvUse = min(s.value[kv]/float64(n), 1)
	}
	if at := s.value[s.newer(seriesStarted, seriesCreated)]; at > 0 {
		e.started = strconv.FormatFloat(at, 'f', 3, 64)
	}
	return e
}

// newer is the series that counts of two names for one thing: a page may have both.
func (s *sums) newer(name, old series) series {
	if s.lines[name] == 0 {
		return old
	}
	return name
}

func (s *sums) whole(kind series) int64 { return int64(math.Round(min(s.value[kind], maxFigure))) }

// seriesLabels are the few labels that are looked at. copied: the line is of a further part of a model that is spread over
// several processors, which sees the same requests as the first.
type seriesLabels struct {
	copied                                   bool
	tokens, blocks, blockSize, pages, onPage float64
}

// capacity is the tokens a KV cache holds; 0 = not said.
func (l *seriesLabels) capacity() float64 {
	for _, tokens := range []float64{l.tokens, l.blocks * l.blockSize, l.pages * l.onPage} {
		if tokens > 0 && tokens <= maxFigure {
			return tokens
		}
	}
	return 0
}

func (l *seriesLabels) set(name, value []byte) {
	switch string(name) {
	case "tp_rank", "pp_rank":
		l.copied = l.copied || string(value) != "0" && len(value) > 0
	case "kv_cache_size_tokens":
		l.tokens = size(value)
	case "num_gpu_blocks":
		l.blocks = size(value)
	case "block_size":
		l.blockSize = size(value)
	case "num_pages":
		l.pages = size(value)
	case "page_size":
		l.onPage = size(value)
	}
}

// size is a whole number in a label; 0 for anything else, such as "None".
func size(value []byte) float64 {
	n, err := strconv.ParseUint(string(value), 10, 50)
	if err != nil {
		return 0
	}
	return float64(n)
}

// read takes the labels off text, which may begin with none, and reports whether they are well-formed.
func (l *seriesLabels) read(text []byte) (rest []byte, ok bool) {
	if text[0] != '{' {
		return text, true
	}
	text = text[1:]
	for {
		text = bytes.TrimLeft(text, ", \t")
		if len(text) == 0 {
			return nil, false
		}
		if text[0] == '}' {
			return text[1:], true
		}
		equals := bytes.IndexByte(text, '=')
		if equals < 0 || len(text) < equals+2 || text[equals+1] != '"' {
			return nil, false
		}
		name := bytes.TrimRight(text[:equals], " \t")
		text = text[equals+2:]
		end := closingQuote(text)
		if end < 0 {
			return nil, false
		}
		l.set(name, text[:end])
		text = text[end+1:]
	}
}

// closingQuote is where a label's value ends: \" is part of it.
func closingQuote(text []byte) int {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return -1
}
