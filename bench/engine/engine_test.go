package engine

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// timedWriter notes when each write came.
type timedWriter struct {
	*httptest.ResponseRecorder
	at []time.Time
}

func (w *timedWriter) Write(p []byte) (int, error) {
	w.at = append(w.at, time.Now())
	return w.ResponseRecorder.Write(p)
}

// The step model through HTTP, on a clock that moves only when everybody waits.
func TestStreamKeepsTheTimetable(t *testing.T) {
	for _, speed := range []float64{1, 100} {
		synctest.Test(t, func(t *testing.T) {
			e, err := New(Options{Models: []string{"m"}, Speed: speed})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); e.Run(ctx) }()
			defer func() { stop(); <-done }()

			body := `{"model":"m","prompt":"` + strings.Repeat("abcd", 2000) + `","max_tokens":4,"ignore_eos":true,"stream":true}`
			w := &timedWriter{ResponseRecorder: httptest.NewRecorder()}
			start := time.Now()
			e.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(body)))

			p := e.profile
			wants := []float64{p.StepMS(2000, 0), p.StepMS(1, 2001), p.StepMS(1, 2002), p.StepMS(1, 2003)}
			if len(w.at) != len(wants)+1 { // and [DONE]
				t.Fatalf("%d writes:\n%s", len(w.at), w.Body)
			}
			at := 0.0
			for i, ms := range wants {
				at += ms / speed
				if got := float64(w.at[i].Sub(start)) / 1e6; got < at-0.001 || got > at+0.001 {
					t.Errorf("speed %v: token %d after %v ms, want %v", speed, i, got, at)
				}
			}
		})
	}
}

func TestAbortFreesTheSlotAtTheNextStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := New(Options{Slots: 1})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); e.Run(ctx) }()
		defer func() { stop(); <-done }()

		client, leave := context.WithCancel(t.Context())
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			r := httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(`{"prompt":"hi","max_tokens":1000,"ignore_eos":true}`))
			e.ServeHTTP(httptest.NewRecorder(), r.WithContext(client))
		}()
		time.Sleep(100 * time.Millisecond) // the bubble's clock: eight steps
		if e.Running() != 1 {
			t.Fatalf("%d running", e.Running())
		}
		leave()
		<-gone
		time.Sleep(15 * time.Millisecond) // one step is 12 ms
		if e.Running() != 0 || e.batch.finished["abort"] != 1 || e.batch.kv.used != 0 {
			t.Fatalf("%d running, finished %v, %d blocks", e.Running(), e.batch.finished, e.batch.kv.used)
		}
		if seen := e.Seen(); len(seen) != 1 || seen[0].Outcome != "abort" || seen[0].Ended.IsZero() {
			t.Fatalf("%+v", seen)
		}
	})
}
