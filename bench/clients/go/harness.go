package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

var (
	replicaA = os.Getenv("HEADGATE_A")
	replicaB = os.Getenv("HEADGATE_B")
	theWorld = os.Getenv("HEADGATE_WORLD")
)

// test is one test; want and the like panic with what went wrong.
type test struct {
	name string
	run  func()
}

type failure struct{ text string }

func runAll(tests []test) {
	passed, failed := 0, 0
	for _, t := range tests {
		if text := attempt(t.run); text == "" {
			passed++
			fmt.Println("ok  ", t.name)
		} else {
			failed++
			fmt.Printf("FAIL %s: %s\n", t.name, text)
		}
		faults()
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if failed > 0 {
		os.Exit(1)
	}
}

// patience is for one test: a library that was told to wait for long must not hold up the others.
const patience = 30 * time.Second

func attempt(run func()) string {
	ended := make(chan string, 1)
	go func() { ended <- outcome(run) }()
	select {
	case text := <-ended:
		return text
	case <-time.After(patience):
		return fmt.Sprint("not over within ", patience)
	}
}

func outcome(run func()) (text string) {
	defer func() {
		switch cause := recover().(type) {
		case nil:
		case failure:
			text = cause.text
		default:
			text = fmt.Sprint("panic: ", cause)
		}
	}()
	run()
	return ""
}

func want(ok bool, format string, args ...any) {
	if !ok {
		panic(failure{fmt.Sprintf(format, args...)})
	}
}

func must[T any](value T, err error) T {
	want(err == nil, "%T %v", err, err)
	return value
}

// as is the error as the library's own type.
func as[T error](err error) T {
	var typed T
	want(errors.As(err, &typed), "want an error of type %T, got %T: %v", typed, err, err)
	return typed
}

var labels atomic.Int64

// label is an X-Request-Id nobody has used.
func label() string { return fmt.Sprintf("go-%d-%d", os.Getpid(), labels.Add(1)) }

// key makes an API key with these flags of `headgate keys create`.
func key(flags ...string) string {
	if flags == nil {
		flags = []string{}
	}
	return string(post("/key", flags))
}

// fault befalls the next requests at both engines; each has a `times`.
type fault struct {
	Kind  string `json:"kind"`
	After int    `json:"after,omitempty"`
	Times int    `json:"times,omitempty"`
	Delay string `json:"delay,omitempty"`
}

func faults(list ...fault) {
	if list == nil {
		list = []fault{}
	}
	post("/faults", list)
}

func post(path string, body any) []byte {
	text, _ := json.Marshal(body)
	return read(http.Post(theWorld+path, "application/json", bytes.NewReader(text)))
}

func read(answer *http.Response, err error) []byte {
	text := must(io.ReadAll(must(answer, err).Body))
	answer.Body.Close()
	want(answer.StatusCode == 200, "world: %d %s", answer.StatusCode, text)
	return text
}

type asked struct {
	Lines []struct {
		Status     int    `json:"status"`
		Outcome    string `json:"outcome"`
		ErrorCode  string `json:"error_code"`
		Source     string `json:"usage_source"`
		Replica    string `json:"replica"`
		Prompt     int64  `json:"prompt_tokens"`
		Completion int64  `json:"completion_tokens"`
	} `json:"lines"`
	Engine []struct {
		Outcome string `json:"outcome"`
		Prompt  int64  `json:"prompt"`
		Output  int64  `json:"output"`
		AbortMS int64  `json:"abort_ms"`
	} `json:"engine"`
}

// request waits until n usage lines with that id are written and the engines are done with it; n is 0 where it is not known:
// until one says 200.
func request(id string, n int) (a asked) {
	text := read(http.Get(fmt.Sprintf("%s/request?id=%s&lines=%d", theWorld, url.QueryEscape(id), n)))
	want(json.Unmarshal(text, &a) == nil, "world: %s", text)
	want(len(a.Lines) == n || n == 0, "%d usage lines of %s, want %d: %s", len(a.Lines), id, n, text)
	return a
}

// counted wants the client, the engine and the usage line to agree on the tokens of the one request.
func counted(id string, prompt, completion int64) {
	a := request(id, 1)
	e, l := a.Engine[0], a.Lines[0]
	want(len(a.Engine) == 1 && e.Prompt == prompt && e.Output == completion && prompt > 0 && completion > 0,
		"the client was told %d and %d tokens, the engines had %+v", prompt, completion, a.Engine)
	want(l.Prompt == prompt && l.Completion == completion && l.Source == "backend" && l.Outcome == "ok", "usage line %+v, want %d and %d", l, prompt, completion)
}

// retried wants the requests with that id to be refused with this status, until the last one was served.
func retried(id string, refusal int) {
	lines := request(id, 0).Lines
	for i, l := range lines {
		want(l.Status == refusal && i < len(lines)-1 || l.Status == 200 && i > 0 && i == len(lines)-1, "%+v", lines)
	}
}

// statuses wants these answers to the requests with that id, in this order: what the library did not show, and retried.
func statuses(id string, all ...int) {
	for i, l := range request(id, len(all)).Lines {
		want(l.Status == all[i], "answer %d to %s is %d, want %d", i+1, id, l.Status, all[i])
	}
}

// weather is a tool; its call is the engine's invention.
const (
	weatherSchema = `{"type":"object","properties":{"city":{"type":"string"},"unit":{"type":"string","enum":["C","F"]}},"required":["city","unit"]}`
	weatherCall   = `{"city":"some city","unit":"C"}`
)

func schema() (s map[string]any) {
	_ = json.NewDecoder(strings.NewReader(weatherSchema)).Decode(&s)
	return s
}

// aborted wants the engine to have seen the client leave soon after it did.
func aborted(id string, left time.Time) {
	a := request(id, 1)
	want(a.Lines[0].Outcome == "client_gone" && len(a.Engine) == 1 && a.Engine[0].Outcome == "abort", "%+v", a)
	after := a.Engine[0].AbortMS - left.UnixMilli()
	want(after < 2000, "the engine saw it %d ms later", after)
}
