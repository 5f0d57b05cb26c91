package bench

import (
	"crypto/sha256"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/scripted"
)

// toolCall is a chunk whose tool arguments are n letters on one line.
func toolCall(n int) string {
	return `data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"m-small","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"` +
		strings.Repeat("y", n) + `"}}]},"finish_reason":null}]}` + "\n\n"
}

// TestSSE1_ALineMayBeLongerThanAnyBuffer: lines of 200,000 and 5,242,880 letters, then every size around a power of two,
// with the client asking for usage or not. The bytes are the engine's and the usage behind them is found.
func TestSSE1_ALineMayBeLongerThanAnyBuffer(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t), 1, 4)
	long := []string{scripted.E("a"), scripted.E(strings.Repeat("x", 200_000)), toolCall(5 << 20), scripted.F, scripted.U(10, 50000), scripted.D}
	l.play(scripted.Stream(long...))
	a, line := l.ask(l.reqS())
	if a.Status != 200 || sha256.Sum256([]byte(a.Body)) != sha256.Sum256([]byte(strings.Join(long, ""))) {
		t.Errorf("status %d, %d bytes that are not the engine's (%v)", a.Status, len(a.Body), a.Err)
	}
	l.charged(line, "ok", "backend", 10, 50000)
	if spent := l.books(); spent != 300_020_000 {
		t.Errorf("spent %d, want 300020000", spent)
	}
	for power := 10; power <= 21; power++ {
		for off := -1; off <= 1; off++ {
			size := 1<<power + off
			sent := []string{scripted.E("a"), toolCall(size - len(toolCall(0))), scripted.E("b"), scripted.F, scripted.U(10, 3), scripted.D}
			l.play(scripted.Stream(strings.Join(sent, ""))) // one chunk, one write
			want := strings.Join(sent, "")
			body := l.reqS()
			if off == 0 {
				body = l.req(`"stream":true`)
				want = strings.Replace(want, scripted.U(10, 3), "", 1)
			}
			a, line := l.ask(body)
			if a.Body != want {
				t.Errorf("an event of %d bytes: %d bytes came, want %d", size, len(a.Body), len(want))
			}
			l.charged(line, "ok", "backend", 10, 3)
		}
	}
}

// TestSSE2_EveryLineEndingWhereverTheReadsFall: the four runs of the case. The engine goes on only when the client has
// seen the first event, so an event that is held back stops the run.
func TestSSE2_EveryLineEndingWhereverTheReadsFall(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t), 1, 4)
	ending := func(end ...string) string {
		n := 0
		var out strings.Builder
		for part := range strings.SplitAfterSeq(strings.Join(scripted.S3(), ""), "\n") {
			if text, ok := strings.CutSuffix(part, "\n"); ok {
				out.WriteString(text + end[n%len(end)])
				n++
			}
		}
		return out.String()
	}
	for name, run := range map[string]struct {
		text   string
		behind string // a write ends behind each; "" = one write per event
	}{
		"a: CRLF":              {ending("\r\n"), ""},
		"b: CRLF cut in two":   {ending("\r\n"), "\r"},
		"c: LF and CRLF":       {ending("\n", "\r\n"), ""},
		"d: CR":                {ending("\r"), ""},
		"CR cut everywhere":    {ending("\r"), "\r"},
		"CR, CRLF, LF":         {ending("\r", "\r\n", "\n"), "\r"},
		"CRLF, cut behind CRs": {ending("\r\n", "\r"), "\r"},
	} {
		t.Run(name, func(t *testing.T) {
			l, first, seen := l.in(t), make(chan struct{}), make(chan struct{})
			firstEnd := 5 + strings.Index(run.text[5:], "data:")
			script, sent, firstAt := scripted.Script{scripted.StreamHead()}, 0, time.Time{}
			for _, part := range pieces(run.text, firstEnd, run.behind) {
				script = append(script, scripted.Chunk(part))
				if sent += len(part); sent == firstEnd {
					script = append(script, scripted.Do(func() { firstAt = time.Now(); close(first) }), scripted.Until(seen))
				} else if run.behind != "" {
					script = append(script, scripted.Pause(30*time.Millisecond))
				}
			}
			l.play(append(script, scripted.End()))
			c, id := l.dial(), l.id()
			c.post(l.reqS(), "X-Request-Id: "+id)
			stream := c.stream()
			var got []string
			for {
				e, err := stream.Next()
				if err != nil {
					break
				}
				if got = append(got, e.Data); len(got) == 1 {
					<-first
					t.Logf("the first event took %s", time.Since(firstAt))
					close(seen)
				}
			}
			if want := events(t, strings.Join(scripted.S3(), "")); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
			l.charged(l.line(id), "ok", "backend", 10, 3)
		})
	}
	l.books()
}

// pieces cuts text at one offset and behind each mark; without a mark before each event.
func pieces(text string, at int, mark string) (all []string) {
	for from := 0; from < len(text); {
		to := len(text)
		if i := strings.Index(text[from:], mark); mark != "" && i >= 0 {
			to = from + i + len(mark)
		} else if i := strings.Index(text[from+1:], "data:"); mark == "" && i >= 0 {
			to = from + 1 + i
		}
		if from < at {
			to = min(to, at)
		}
		all = append(all, text[from:to])
		from = to
	}
	return all
}

// TestSSE2_AnyStreamCutAnywhere: streams in every form the standard allows, cut by chance. The client's parser sees the
// engine's events, and where it asked for usage, the engine's bytes.
func TestSSE2_AnyStreamCutAnywhere(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t), 1, 4)
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		text := oddStream(r)
		script := scripted.Script{scripted.StreamHead()}
		for rest := text; rest != ""; {
			n := min(1+r.IntN(120), len(rest))
			script = append(script, scripted.Chunk(rest[:n]))
			if rest = rest[n:]; r.IntN(4) == 0 {
				script = append(script, scripted.Pause(time.Millisecond))
			}
		}
		l.play(append(script, scripted.End()))
		a, line := l.ask(l.reqS())
		if a.Body != text {
			t.Errorf("seed %d: got\n%q\nwant\n%q", seed, a.Body, text)
		}
		l.charged(line, "ok", "backend", 10, 3)
		a, line = l.ask(l.req(`"stream":true`))
		want := slices.DeleteFunc(events(t, text), func(data string) bool { return strings.Contains(data, `"usage"`) })
		if got := events(t, a.Body); !slices.Equal(got, want) {
			t.Errorf("seed %d, usage not asked for: got\n%q\nwant\n%q", seed, got, want)
		}
		l.charged(line, "ok", "backend", 10, 3)
	}
	l.books()
}

// oddStream is S3 in an unusual form: mixed line ends, comments, other fields, data in several lines, no blank behind the
// colon, a byte order mark.
func oddStream(r *rand.Rand) string {
	end := func() string { return []string{"\n", "\r\n", "\r"}[r.IntN(3)] }
	var out strings.Builder
	if r.IntN(3) == 0 {
		out.WriteString("\xEF\xBB\xBF")
	}
	for _, data := range scripted.S3() {
		data = strings.TrimSuffix(strings.TrimPrefix(data, "data: "), "\n\n")
		for range r.IntN(3) {
			out.WriteString([]string{": ping", ":", "id: 7", "event: message", "retry: 10", "unknown"}[r.IntN(6)] + end())
		}
		if i := strings.IndexByte(data, ','); i > 0 && r.IntN(2) == 0 { // JSON may be broken into lines
			out.WriteString("data:" + data[:i+1] + end() + "data:  " + data[i+1:] + end())
		} else {
			out.WriteString("data:" + strings.Repeat(" ", r.IntN(2)) + data + end())
		}
		// Behind a lone CR an LF would belong to it, and there would be no blank line.
		if last := out.String(); strings.HasSuffix(last, "\r") {
			out.WriteString("\r")
		} else {
			out.WriteString(end())
		}
		if strings.HasSuffix(out.String(), "\r") && r.IntN(2) == 0 {
			out.WriteString("\n") // the second half of a CRLF
		}
	}
	return out.String()
}

// withUsage is E with a usage beside its choices.
func withUsage(event, usage string) string {
	return strings.Replace(event, "}\n\n", `,"usage":`+usage+"}\n\n", 1)
}

// TestSSE3_UsageIsFoundWhereverItStands: the five streams of the case and the sixth request.
func TestSSE3_UsageIsFoundWhereverItStands(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t), 1, 4)
	a, b, c, f := scripted.E("a"), scripted.E("b"), scripted.E("c"), scripted.F
	streams := [][]string{
		scripted.S3(),
		{a, b, c, withUsage(f, scripted.Usage(10, 3)), scripted.D},
		{withUsage(a, scripted.Usage(10, 1)), withUsage(b, scripted.Usage(10, 2)), withUsage(c, scripted.Usage(10, 3)), withUsage(f, scripted.Usage(10, 3)), scripted.D},
		{a, b, c, withUsage(f, scripted.Usage(10, 3)), scripted.U(10, 3), scripted.D},
		{a, b, c, f, scripted.U(10, 3), strings.Replace(scripted.U(0, 0), scripted.Usage(0, 0), "null", 1), scripted.D},
	}
	for i, s := range streams {
		l.play(scripted.Stream(s...))
		answer, line := l.ask(l.reqS())
		if answer.Body != strings.Join(s, "") {
			t.Errorf("stream %d: the client got %q", i+1, answer.Body)
		}
		l.charged(line, "ok", "backend", 10, 3)
	}
	l.play(scripted.Stream(streams[0]...))
	answer, line := l.ask(l.req(`"stream":true`))
	l.charged(line, "ok", "backend", 10, 3)
	if strings.Contains(answer.Body, `"choices":[]`) || !strings.HasSuffix(answer.Body, scripted.D) || strings.Contains(answer.Body, "usage") {
		t.Errorf("the client that did not ask got %q", answer.Body)
	}
	if sent := string(l.requests()[5].Body); !strings.Contains(sent, `"include_usage":true`) {
		t.Errorf("the engine was not asked for usage: %s", sent)
	}
	if spent := l.books(); spent != 228_000 {
		t.Errorf("spent %d, want 228000", spent)
	}
}

// TestSSE3_UsageThatMustNotBeBelieved: what looks like a usage and is none, and what is one in an odd place.
func TestSSE3_UsageThatMustNotBeBelieved(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t), 1, 4)
	a, f, d := scripted.E("abcd"), scripted.F, scripted.D
	azure := strings.Replace(scripted.U(0, 0), `,"usage":`+scripted.Usage(0, 0), `,"prompt_filter_results":[]`, 1)
	for name, c := range map[string]struct {
		stream             []string
		source             string
		prompt, completion int64
	}{
		"in the text":            {[]string{scripted.E(`\"usage\":{\"prompt_tokens\":99,\"completion_tokens\":99}`), f, scripted.U(10, 3), d}, "backend", 10, 3},
		"an empty first chunk":   {[]string{azure, a, f, scripted.U(10, 3), d}, "backend", 10, 3},
		"zero":                   {[]string{a, f, scripted.U(10, 0), d}, "backend", 10, 0},
		"negative":               {[]string{a, f, strings.Replace(scripted.U(10, 3), "10", "-10", 1), d}, "estimated", 0, 1},
		"a fraction":             {[]string{a, f, strings.Replace(scripted.U(10, 3), "10", "1.5", 1), d}, "estimated", 0, 1},
		"a text":                 {[]string{a, f, strings.Replace(scripted.U(10, 3), "10", `"10"`, 1), d}, "estimated", 0, 1},
		"larger than any answer": {[]string{a, f, strings.Replace(scripted.U(10, 3), "10", "99999999999999999999", 1), d}, "estimated", 0, 1},
		"below the top":          {[]string{strings.Replace(a, `"content":`, `"usage":{"prompt_tokens":9,"completion_tokens":9},"content":`, 1), f, d}, "estimated", 0, 1},
		"none":                   {[]string{a, f, d}, "estimated", 0, 1},
		"behind the end":         {[]string{a, f, d, scripted.U(10, 3)}, "backend", 10, 3},
		"the last of several":    {[]string{scripted.U(1, 1), a, f, scripted.U(10, 2), scripted.U(10, 3), d}, "backend", 10, 3},
	} {
		l.play(scripted.Stream(c.stream...))
		for _, body := range []string{l.reqS(), l.req(`"stream":true`)} {
			answer, line := l.ask(body)
			if answer.Status != 200 || !strings.Contains(answer.Body, scripted.D) {
				t.Errorf("%s: %d %q", name, answer.Status, answer.Body)
			}
			prompt := c.prompt
			if c.source == "estimated" {
				prompt = line.Prompt
				if prompt < 1 {
					t.Errorf("%s: an estimate without a prompt", name)
				}
			}
			l.charged(line, "ok", c.source, prompt, c.completion)
		}
	}
	l.books()
}
