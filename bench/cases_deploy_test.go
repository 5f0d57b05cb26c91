package bench

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/bench/lab"
	"github.com/headgate/headgate/bench/scripted"
)

// TestDEP1_SIGTERMLetsStreamsFinish: the case at half its times.
func TestDEP1_SIGTERMLetsStreamsFinish(t *testing.T) {
	t.Parallel()
	const second, notice = time.Second / 2, 1500 * time.Millisecond
	w := newWorld(t, 2, "HG_NOTICE_TIME="+notice.String(), "HG_DRAIN_TIME=15s")
	l := newLane(t, w, 1, 128, "--budget", "1000/month")
	stream := scripted.Script{scripted.StreamHead()}
	for range 10 {
		stream = stream.Then(scripted.Chunk(scripted.E("x")), scripted.Pause(second))
	}
	stream = stream.Then(scripted.Chunk(scripted.F+scripted.U(10, 3)+scripted.D), scripted.End())
	l.b[0].Answer(func(q *scripted.Request) scripted.Script {
		if strings.Contains(string(q.Body), `"stream":true`) {
			return stream
		}
		return scripted.JSON(200, scripted.J(10, 3))
	})
	leaver, stayer := w.Replicas[0], w.Replicas[1]
	var streams sync.WaitGroup
	for range 50 {
		id := l.id()
		streams.Go(func() {
			a := fleet.Ask(t, leaver.URL, l.key, l.reqS(), "X-Request-Id: "+id)
			if a.Status != 200 || a.Err != nil || strings.Count(a.Body, `"content":"x"`) != 10 || !strings.HasSuffix(a.Body, scripted.D) {
				t.Errorf("a running stream: %d %v …%s", a.Status, a.Err, a.Body[max(0, len(a.Body)-300):])
			}
		})
	}
	lab.Eventually(t, patience, func() bool { return len(l.requests()) == 50 }, "50 streams run")
	d := l.load(20, w.Replicas[1:], func(int) string { return l.req() })
	time.Sleep(second)

	leaver.Term()
	told := time.Now()
	lab.Eventually(t, time.Second, func() bool { return status(leaver.Admin+"/readyz") == 503 }, "not ready at once")
	served := 0
	for time.Since(told) < notice-500*time.Millisecond {
		a := askAlone(t, leaver.URL, l.key, l.req())
		if a.Status != 200 || a.Header.Get("Connection") != "close" {
			t.Errorf("%v after SIGTERM: %d %v %v", time.Since(told), a.Status, a.Err, a.Header)
		}
		if status(leaver.Admin+"/livez") != 200 || status(leaver.Admin+"/readyz") != 503 {
			t.Errorf("%v after SIGTERM it is not alive, or ready", time.Since(told))
		}
		served++
	}
	lab.Eventually(t, time.Until(told.Add(notice+2*time.Second)), func() bool {
		c, err := net.Dial("tcp", strings.TrimPrefix(leaver.URL, "http://"))
		if err == nil {
			c.Close()
		}
		return err != nil
	}, "connections are refused after the notice")
	if took := time.Since(told); took < notice {
		t.Errorf("connections are refused %v after SIGTERM, within the notice of %v", took, notice)
	}
	if status(leaver.Admin+"/livez") != 200 {
		t.Error("not alive while it drains")
	}
	streams.Wait()
	ended := time.Now()
	if code := leaver.WaitExit(patience); code != 0 {
		t.Errorf("exit code %d", code)
	}
	t.Logf("gone %v after the last stream", time.Since(ended))
	if took := time.Since(ended); took > 3*time.Second { // 2 s, and one for a busy machine
		t.Errorf("gone only %v after the last stream", took)
	}
	if n := len(leaver.Lines()); n != 50+served {
		t.Errorf("%d usage lines on disk, want %d", n, 50+served)
	}
	others := d.end(t)
	l.lines(50 + served + len(others))
	l.books()
	if status(stayer.Admin+"/readyz") != 200 {
		t.Error("the other one is not ready")
	}
}

// askAlone is fleet.Ask on a connection of its own.
func askAlone(t testing.TB, url, key, body string, fields ...string) fleet.Answer {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	defer client.CloseIdleConnections()
	r, err := client.Do(fleet.Request(t, url+"/v1/chat/completions", key, body, fields...))
	if err != nil {
		return fleet.Answer{Err: err}
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if r.Close {
		r.Header.Set("Connection", "close") // the client takes it out
	}
	return fleet.Answer{Status: r.StatusCode, Header: r.Header, Body: string(text), Err: err}
}

// TestDEP3_RunningOutOfFileDescriptors: the case, with streams of 3 s.
func TestDEP3_RunningOutOfFileDescriptors(t *testing.T) {
	t.Parallel()
	const clients = 300
	w := &world{redis: lab.Redis(t), consul: lab.Consul(t)}
	w.Fleet = fleet.Start(t, fleet.Options{Redis: w.redis.URL(), Consul: w.consul.Addr, Catalogue: laneModels(), Under: []string{"prlimit", "--nofile=256"}})
	l := newLane(t, w, 1, 4096, "--budget", "1000/month")
	stream := scripted.Script{scripted.StreamHead()}
	for range 6 {
		stream = stream.Then(scripted.Chunk(scripted.E("x")), scripted.Pause(time.Second/2))
	}
	l.b[0].Answer(func(q *scripted.Request) scripted.Script {
		return stream.Then(scripted.Chunk(scripted.F+scripted.U(10, 3)+scripted.D), scripted.End())
	})
	r := w.Replicas[0]
	pid, files := r.PID(), openFiles(r.PID())
	var mu sync.Mutex
	whole, refused := 0, 0
	answered := func(a fleet.Answer) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case a.Status == 200 && a.Err == nil && strings.HasSuffix(a.Body, scripted.D):
			whole++
		case a.Status == 503 && a.Header.Get("Retry-After") != "":
			refused++
		default:
			t.Errorf("neither served nor refused: %d %v %s", a.Status, a.Err, a.Body[max(0, len(a.Body)-200):])
		}
	}
	done := make(chan struct{})
	var all, watch sync.WaitGroup
	watch.Go(func() {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
		for {
			began := time.Now()
			answer, err := client.Get(r.Admin + "/livez")
			if err == nil {
				answer.Body.Close()
			}
			if took := time.Since(began); err != nil || answer.StatusCode != 200 || took > 2*time.Second { // 1 s, and one for a busy machine
				t.Errorf("alive? %v after %v", err, took)
			}
			select {
			case <-done:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	for range clients {
		all.Go(func() { answered(askAlone(t, r.URL, l.key, l.reqS())) })
		time.Sleep(time.Second / clients)
	}
	all.Wait()
	t.Logf("%d streams were served whole, %d clients told to come again", whole, refused)
	if whole < 80 {
		t.Errorf("%d streams were served whole, want 80 at least", whole)
	}
	close(done)
	watch.Wait()
	l.play(scripted.JSON(200, scripted.J(10, 3)))
	for range 50 {
		all.Go(func() {
			if a := askAlone(t, r.URL, l.key, l.req()); a.Status != 200 {
				t.Errorf("afterwards: %d %v %s", a.Status, a.Err, a.Body)
			}
		})
	}
	all.Wait()
	lab.Succeeds(t, patience, func() error {
		if n := openFiles(pid); n > files+10 {
			return fmt.Errorf("%d files are open, were %d", n, files)
		}
		return nil
	}, "files are closed again")
	if r.PID() != pid || r.Metric("process_start_time_seconds") == 0 {
		t.Error("the process is another")
	}
	l.books()
}

func openFiles(pid int) int {
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return len(entries)
}
