package gateway

import (
	"strconv"
	"testing"

	"github.com/headgate/headgate/coordinator"
)

// An entry that is not what the gateway keeps, whoever wrote it, is a miss in both forms: no status but 200 goes out, and no
// body that is not whole.
func TestWhatIsNoStoredAnswerIsAMiss(t *testing.T) {
	t.Parallel()
	const whole = `{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}]}`
	for _, stream := range []bool{false, true} {
		r := &request{}
		r.scan.Stream = stream
		good := coordinator.Answer{Status: 200, ContentType: "application/json", Body: []byte(whole)}
		if r.inForm(&good) == nil {
			t.Error("a good one is a miss")
		}
		spoilt := map[string]coordinator.Answer{}
		for _, status := range []int{-1, 0, 7, 101, 204, 304, 500, 99999} {
			a := good
			a.Status = status
			spoilt["status "+strconv.Itoa(status)] = a
		}
		for _, body := range []string{"", "[]", `{"cho`, whole + "x", whole[:len(whole)-1], "null"} {
			a := good
			a.Body = []byte(body)
			spoilt["body "+body] = a
		}
		a := good
		a.ContentType = "text/html"
		spoilt["type"] = a
		for what, a := range spoilt {
			if r.inForm(&a) != nil {
				t.Errorf("stream %v: %s %d is served", stream, what, a.Status)
			}
		}
	}
}
