package bench

import (
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/scripted"
)

// TestLIFE2_CutAtEveryOffset: S3 is broken off behind each of its bytes, by an end in order, a FIN and a reset in turn, to
// a client that asked for usage or did not. Before the first event has ended the request is repeated; from then on the
// client gets whole events and, unless the answer had come to its end, an error event and no [DONE].
func TestLIFE2_CutAtEveryOffset(t *testing.T) {
	t.Parallel()
	l := newLane(t, cases(t), 2, 64, "--budget", "1000/month")
	s3 := scripted.S3()
	stream := strings.Join(s3, "")
	ends := []scripted.Script{{scripted.End()}, {scripted.Close()}, {scripted.Reset()}}
	for _, b := range l.b {
		b.Answer(func(q *scripted.Request) scripted.Script {
			if q.Attempt() > 1 {
				return scripted.Stream(s3...)
			}
			cut := cutOf(q)
			return scripted.Begin(stream[:cut]).Then(ends[cut%len(ends)]...)
		})
	}
	answers := make([]fleet.Answer, len(stream))
	var wg sync.WaitGroup
	next := make(chan int)
	for range 8 {
		wg.Go(func() {
			for cut := range next {
				body := l.reqS()
				if cut%2 == 1 {
					body = l.req(`"stream":true`)
				}
				answers[cut] = fleet.Ask(t, l.Replicas[cut%2].URL, l.key, body, "X-Request-Id: "+cutLabel(l, cut))
			}
		})
	}
	first := len(s3[0])
	for cut := 1; cut < len(stream); cut++ { // an empty chunk would be the end
		if cut < first { // the attempt fails and its backend is left alone for a while: one after the other
			l.forgive(0)
			l.forgive(1)
		}
		next <- cut
		if cut < first {
			l.line(cutLabel(l, cut))
		}
	}
	close(next)
	wg.Wait()
	lines := l.lines(len(stream) - 1)
	for cut := 1; cut < len(stream); cut++ {
		judgeCut(l, cut, stream, answers[cut], lines[cutLabel(l, cut)])
	}
	l.books()
}

func cutLabel(l *lane, cut int) string { return l.tenant + "-cut." + strconv.Itoa(cut) }

func cutOf(q *scripted.Request) int {
	_, rest, _ := strings.Cut(q.ID(), "-cut.")
	text, _, _ := strings.Cut(rest, "-")
	cut, _ := strconv.Atoi(text)
	return cut
}

func judgeCut(l *lane, cut int, stream string, a fleet.Answer, line fleet.Line) {
	l.t.Helper()
	asked, inOrder := cut%2 == 0, cut%3 == 0
	from := strings.LastIndex(stream[:cut], "\n\n") + 2 // where the event begins that was cut
	if from == 1 {
		from = 0
	}
	whole := strings.Count(stream[:cut], "\n\n")
	learned := whole // events of which all JSON was there
	if rest := strings.TrimPrefix(stream[from:cut], "data: "); from < cut && (strings.HasSuffix(strings.TrimSpace(rest), "}]}") || strings.HasSuffix(strings.TrimSpace(rest), "}}") || strings.TrimSpace(rest) == "[DONE]") {
		learned++
	}
	shown, finished := stream[:from], whole >= 4
	if inOrder && learned >= 4 {
		finished = true
		if learned > whole {
			shown = stream[:cut]
		}
	}
	if whole == 0 {
		shown, finished, learned = stream, true, 6
	}
	if !asked {
		shown = strings.ReplaceAll(shown, scripted.U(10, 3), "")
		if i := strings.Index(shown, `,"usage"`); i >= 0 { // the chunk with the usage, without its blank line
			shown = shown[:strings.LastIndex(shown[:i], "data: ")]
		}
	}
	rest, ok := strings.CutPrefix(a.Body, shown)
	if a.Status != 200 || a.Err != nil || !ok {
		l.t.Errorf("cut at %d: %d %v, got\n%q\nwant\n%q", cut, a.Status, a.Err, a.Body, shown)
		return
	}
	outcome := "ok"
	if !finished {
		outcome = "upstream_truncated"
	}
	if finished && rest != "" || !finished && (!strings.HasPrefix(rest, `data: {"error"`) || !strings.HasSuffix(rest, truncated) || strings.Count(rest, "data:") != 1) {
		l.t.Errorf("cut at %d: %q follows", cut, rest)
	}
	if (line.Attempts == 2) != (whole == 0) {
		l.t.Errorf("cut at %d: %s", cut, line.Raw)
	}
	if learned >= 5 {
		l.charged(line, outcome, "backend", 10, 3)
		return
	}
	if line.Prompt < 1 || line.Completion < int64(min(whole, 3)) || line.Completion > int64(min(whole+1, 3)) {
		l.t.Errorf("cut at %d: %s", cut, line.Raw)
	}
	l.charged(line, outcome, "estimated", line.Prompt, line.Completion)
}
