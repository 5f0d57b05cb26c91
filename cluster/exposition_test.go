package cluster

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

func TestExpositionOfEngines(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]exposition{
		"syn-vllm-new": {running: 37, waiting: 12, kvUse: 0.6834, kvTokens: 432_000, promptTokens: 1_884_100,
			prefixQueries: 1_884_100, prefixHits: 702_512, started: "1788184174.082"},
		"syn-vllm-old": {running: 3, kvUse: 0.1199, kvTokens: 573 * 16, prefixQueries: 4012, prefixHits: 911},
		"syn-vllm-dp4": {running: 26, waiting: 6, kvUse: 0.4, kvTokens: 4 * 9000 * 16},
		"syn-sglang":   {running: 162, waiting: 28, kvUse: 0.28, kvTokens: 440_000, promptTokens: 8_128_902},
		"syn-llamacpp": {running: 3, waiting: 1, promptTokens: 40_213},
	} {
		page, err := os.ReadFile(filepath.Join("testdata", "metrics", name+".prom"))
		if err != nil {
			t.Fatal(err)
		}
		for form, text := range map[string][]byte{"": page, " with CR": bytes.ReplaceAll(page, []byte("\n"), []byte("\r\n")),
			" without the last line end": bytes.TrimRight(page, "\n")} {
			if got, err := parseExposition(bytes.NewReader(text)); err != nil || got != want {
				t.Errorf("%s%s:\n got %+v, %v\nwant %+v", name, form, got, err, want)
			}
		}
	}
}

func TestExpositionLineByLine(t *testing.T) {
	t.Parallel()
	const one = "vllm:num_requests_running 1\n"
	for name, c := range map[string]struct {
		page string
		want exposition
	}{
		"exact names": {"vllm:num_requests_waiting_by_reason{reason=\"capacity\"} 9\nvllm:num_requests_runningx 5\nxvllm:num_requests_running 5\n", exposition{}},
		"the newer name": {"vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.2\nvllm:gpu_prefix_cache_hits_total 7\nvllm:prefix_cache_hits_total 5\nvllm:prefix_cache_queries_total 6\n",
			exposition{kvUse: 0.2, prefixHits: 5, prefixQueries: 6}},
		"a time stamp and tabs":  {"vllm:num_requests_waiting\t{a=\"b\"} 4\nvllm:num_requests_waiting{a=\"b\"}\t2 1700000000000\n", exposition{waiting: 2}},
		"labels with everything": {`vllm:num_requests_waiting{a="}\" 7",b="x,y=\"z\"" , c="\\",} 3` + "\n", exposition{waiting: 3}},
		"broken labels":          {"vllm:num_requests_waiting{a=\"b 3\nvllm:num_requests_waiting{a=b} 3\nvllm:num_requests_waiting{ 3\nvllm:num_requests_waiting{a=\"b\\\"} 3\n", exposition{}},
		"more requests than there are": {"vllm:num_requests_running 1000001\nvllm:num_requests_waiting 9e14\nvllm:num_requests_waiting 1000000\n",
			exposition{waiting: 1_000_000}},
		"no numbers":                           {"vllm:num_requests_waiting NaN\nvllm:num_requests_waiting +Inf\nvllm:num_requests_waiting -4\nvllm:num_requests_waiting\nvllm:num_requests_waiting x\nvllm:num_requests_waiting 1e300\n", exposition{}},
		"more than full":                       {"vllm:kv_cache_usage_perc 1.5\n", exposition{kvUse: 1}},
		"unknown size":                         {`vllm:cache_config_info{block_size="16",num_gpu_blocks="None",kv_cache_size_tokens="None"} 1` + "\n", exposition{}},
		"blocks where the tokens are not said": {`vllm:cache_config_info{block_size="16",num_gpu_blocks="10",kv_cache_size_tokens="None"} 1` + "\n", exposition{kvTokens: 160}},
		"the other processors of one model": {`sglang:num_running_reqs{tp_rank="0",pp_rank="0"} 4` + "\n" + `sglang:num_running_reqs{tp_rank="1",pp_rank="0"} 4` + "\n" +
			`sglang:num_running_reqs{tp_rank="0",pp_rank="1"} 4` + "\n" + `sglang:num_running_reqs{tp_rank="0",dp_rank="1"} 2` + "\n", exposition{running: 6}},
		"hits by source":        {"sglang:prompt_tokens_total 90\nsglang:cached_tokens_total{cache_source=\"device\"} 20\nsglang:cached_tokens_total{cache_source=\"host\"} 10\n", exposition{promptTokens: 90, prefixQueries: 90, prefixHits: 30}},
		"the process' own time": {"vllm:prompt_tokens_created 5\nprocess_start_time_seconds 1.7e9\n", exposition{started: "1700000000.000"}},
		"a long line":           {"vllm:num_requests_waiting{a=\"" + strings.Repeat("x", maxLine) + "\"} 4\nvllm:num_requests_waiting 2\n", exposition{waiting: 2}},
	} {
		c.want.running++
		if got, err := parseExposition(iotest.OneByteReader(strings.NewReader(one + c.page))); err != nil || got != c.want {
			t.Errorf("%s:\n got %+v, %v\nwant %+v", name, got, err, c.want)
		}
	}
}

func TestExpositionThatIsNone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		page io.Reader
		want error
	}{
		"empty":       {strings.NewReader(""), errNoEngine},
		"another":     {strings.NewReader("<html>\nhttp_requests_total 3\n"), errNoEngine},
		"without end": {&endless{}, errLongPage},
		"cut":         {io.MultiReader(strings.NewReader("vllm:num_requests_running 1\n"), iotest.ErrReader(io.ErrUnexpectedEOF)), io.ErrUnexpectedEOF},
	} {
		if got, err := parseExposition(c.page); !errors.Is(err, c.want) || got != (exposition{}) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// endless is a page that does not stop.
type endless struct{ n int }

func (e *endless) Read(p []byte) (int, error) {
	const line = "vllm:num_requests_running 1\n"
	n := copy(p, line)
	if e.n += n; e.n > 2*maxPage {
		return 0, errors.New("more of it was read than needed")
	}
	return n, nil
}

func FuzzExposition(f *testing.F) {
	pages, _ := filepath.Glob("testdata/metrics/*.prom")
	if len(pages) == 0 {
		f.Fatal("no pages")
	}
	for _, path := range pages {
		page, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(page)
	}
	f.Add([]byte(`vllm:num_requests_running{a="\\\"}",b=""} 0x1p4 5`))
	f.Fuzz(func(t *testing.T, page []byte) {
		got, err := parseExposition(bytes.NewReader(page))
		if err != nil {
			if got != (exposition{}) {
				t.Fatalf("%+v beside %v", got, err)
			}
			return
		}
		for _, n := range []int64{got.running, got.waiting, got.kvTokens, got.promptTokens, got.prefixQueries, got.prefixHits} {
			if n < 0 || n > maxFigure {
				t.Fatalf("%+v", got)
			}
		}
		if !(got.kvUse >= 0 && got.kvUse <= 1) || strings.ContainsAny(got.started, " \n") {
			t.Fatalf("%+v", got)
		}
		// What is no series of an engine changes nothing.
		again, err := parseExposition(bytes.NewReader(append([]byte("# vllm:num_requests_running 7\nother_total 3\n"), page...)))
		if err != nil && len(page) < maxPage/2 || err == nil && again != got {
			t.Fatalf("%+v, then %+v, %v", got, again, err)
		}
	})
}

func BenchmarkExposition(b *testing.B) {
	page, err := os.ReadFile("testdata/metrics/syn-vllm-new.prom")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(page)))
	for b.Loop() {
		if _, err := parseExposition(bytes.NewReader(page)); err != nil {
			b.Fatal(err)
		}
	}
}
