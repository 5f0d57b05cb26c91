package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/bench/scripted"
)

// TestLIFE1_ASlowReaderHoldsTheEngineBack: an engine sends 200 MB as fast as they are taken, to a client that reads nothing
// for a while. The engine is made to wait, the replica's memory stays bounded, and in the end every byte is there and is
// charged. It is the same for an answer of 200 MB that is not streamed, whose usage stands at its end.
func TestLIFE1_ASlowReaderHoldsTheEngineBack(t *testing.T) {
	t.Parallel()
	w := cases(t).beside(t)
	const blocks, perBlock = 200, 1000
	block := strings.Repeat(scripted.E(strings.Repeat("x", 1000-len(scripted.E("")))), perBlock) // 1 MB
	stream := scripted.Script{scripted.StreamHead()}
	vectors := strings.Repeat("0.0123456,\n", 100_000) // 1.1 MB, on many lines
	whole := scripted.Script{scripted.Head(200, "Content-Type: application/json", "Transfer-Encoding: chunked"), scripted.Chunk(`{"object":"list","data":[{"embedding":[`)}
	for range blocks {
		stream = append(stream, scripted.Chunk(block))
		whole = append(whole, scripted.Chunk(vectors))
	}
	tail := scripted.F + scripted.U(10, 200_000) + scripted.D
	wholeTail := `0]}],"usage":` + scripted.Usage(10, 3) + `}`
	for _, c := range []struct {
		name       string
		body       func(l *lane) string
		script     scripted.Script
		begin      string
		block      string
		tail       string
		completion int64
		held       int64 // bytes the replica may hold beside what kernels do
	}{
		{"stream", func(l *lane) string { return l.reqS() }, stream.Then(scripted.Chunk(tail), scripted.End()), "", block, tail, 200_000, 1 << 20},
		{"whole", func(l *lane) string { return l.req() }, whole.Then(scripted.Chunk(wholeTail), scripted.End()), `{"object":"list","data":[{"embedding":[`, vectors, wholeTail, 3, 36 << 20},
	} {
		l := newLane(t, w, 1, 4)
		l.play(c.script)
		before := rss(t, w.Replicas[0].PID(), "VmRSS")
		slow, id := l.dial(), l.id()
		slow.post(c.body(l), "X-Request-Id: "+id)
		a := slow.answer()
		q := l.requests()[0]
		stalled := l.stalled(q)
		grown := rss(t, w.Replicas[0].PID(), "VmHWM") - before
		t.Logf("%s: the engine waits behind %d MB of 200; the replica grew by %d MB", c.name, stalled>>20, grown>>10)
		if limit := c.held + 40<<20; stalled > limit {
			t.Errorf("%s: %d bytes were taken from the engine", c.name, stalled)
		}
		if err := readsAs(a.Body, c.begin, slices.Repeat([]string{c.block}, blocks), c.tail); err != nil {
			t.Errorf("%s: the bytes are not the engine's: %v", c.name, err)
		}
		grown = rss(t, w.Replicas[0].PID(), "VmHWM") - before
		t.Logf("%s: read to its end; the replica grew by %d MB", c.name, grown>>10)
		if most := 64 + 3*c.held>>20; grown>>10 > most {
			t.Errorf("%s: the replica grew by %d MB, at most %d were due", c.name, grown>>10, most)
		}
		l.charged(l.line(id), "ok", "backend", 10, c.completion)
		l.books()
	}
}

// readsAs compares a long body with what it should be, part by part.
func readsAs(body io.Reader, begin string, blocks []string, tail string) error {
	buf := make([]byte, 0, 2<<20)
	for i, want := range append(append([]string{begin}, blocks...), tail) {
		got := buf[:len(want)]
		if _, err := io.ReadFull(body, got); err != nil {
			return fmt.Errorf("in part %d: %w", i, err)
		}
		if string(got) != want {
			return fmt.Errorf("part %d differs", i)
		}
	}
	if n, err := io.Copy(io.Discard, body); n > 0 || err != nil {
		return fmt.Errorf("%d bytes more: %v", n, err)
	}
	return nil
}

// stalled waits until the engine has got rid of nothing for 300 ms, and returns how much it got rid of.
func (l *lane) stalled(requests ...*scripted.Request) (written int64) {
	l.t.Helper()
	lab.Eventually(l.t, patience, func() bool {
		before := written
		time.Sleep(300 * time.Millisecond)
		written = 0
		for _, q := range requests {
			written += q.Written()
		}
		return written == before
	}, "the engine is made to wait")
	return written
}

// TestLIFE1_ManySlowReaders: forty clients read nothing of 5 MB each. They cost the replica a bounded amount each, and
// others are served meanwhile.
func TestLIFE1_ManySlowReaders(t *testing.T) {
	t.Parallel()
	w := cases(t).beside(t)
	l := newLane(t, w, 1, 200)
	const clients, blocks = 40, 50
	block := strings.Repeat(scripted.E(strings.Repeat("x", 1000-len(scripted.E("")))), 100)
	script := scripted.Script{scripted.StreamHead()}
	for range blocks {
		script = append(script, scripted.Chunk(block))
	}
	l.play(script.Then(scripted.Chunk(scripted.F+scripted.U(10, 5000)+scripted.D), scripted.End()))
	before := rss(t, w.Replicas[0].PID(), "VmRSS")
	var all []*client
	for range clients {
		c := l.dial()
		_ = c.SetReadBuffer(64 << 10)
		c.post(l.reqS(), "X-Request-Id: "+l.id())
		all = append(all, c)
	}
	lab.Eventually(t, patience, func() bool { return len(l.requests()) == clients }, "all run")
	l.stalled(l.requests()...)
	grown := rss(t, w.Replicas[0].PID(), "VmHWM") - before
	t.Logf("%d readers that read nothing: the replica grew by %d MB", clients, grown>>10)
	if grown > 64<<10 {
		t.Errorf("the replica grew by %d KiB", grown)
	}
	other := newLane(t, w, 1, 4)
	if a, line := other.ask(other.req()); a.Status != 200 || a.Body != scripted.J(10, 3) {
		t.Errorf("somebody else: %d %s", a.Status, line.Raw)
	}
	var wg sync.WaitGroup
	for i, c := range all {
		wg.Go(func() {
			n, err := io.Copy(io.Discard, c.answer().Body)
			if want := int64(blocks*len(block) + len(scripted.F+scripted.U(10, 5000)+scripted.D)); n != want || err != nil {
				t.Errorf("client %d: %d bytes, want %d: %v", i, n, want, err)
			}
		})
	}
	wg.Wait()
	for _, line := range l.lines(clients) {
		l.charged(line, "ok", "backend", 10, 5000)
	}
	l.books()
}

// TestLIFE2_ALargeAnswerThatBreaksOff: an answer too large to be held has begun when it is cut; its client must not take what
// came for the whole.
func TestLIFE2_ALargeAnswerThatBreaksOff(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t), 2, 4, "--budget", "1/month")
	large := scripted.Script{scripted.Head(200, "Content-Type: application/json", "Transfer-Encoding: chunked"), scripted.Chunk(`{"data":[`)}
	for range 40 {
		large = append(large, scripted.Chunk(strings.Repeat("1,\n", 1<<20/3)))
	}
	for name, end := range map[string]struct {
		script  scripted.Script
		outcome string
	}{
		"reset":   {large.Then(scripted.Reset()), "upstream_truncated"},
		"FIN":     {large.Then(scripted.Close()), "upstream_truncated"},
		"garbage": {large.Then(scripted.Write("zz")), "upstream_truncated"},
	} {
		l.play(end.script, scripted.JSON(200, scripted.J(10, 3)))
		a, line := l.ask(l.req())
		if a.Status != 200 || a.Err == nil || line.Outcome != end.outcome || line.Attempts != 1 {
			t.Errorf("%s: %d, %d bytes and the error %v: %s", name, a.Status, len(a.Body), a.Err, line.Raw)
		}
		l.charged(line, end.outcome, "estimated", line.Prompt, 64) // the cap that was written into the request
	}
	l.books()
}
