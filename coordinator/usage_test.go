package coordinator

import (
	"encoding/json"
	"testing"
	"time"
)

// TestRecordIsOneLineOfJSON: whatever bytes a client sends as label or agent, a record stays one readable line.
func TestRecordIsOneLineOfJSON(t *testing.T) {
	r := Record{Time: time.UnixMilli(1764489600123), RequestID: "a\"b\\c\n\x00\x7f", UserAgent: "bad \xff utf8 é", Tags: []string{"x", "y\t"},
		CostKnown: true, CostNUSD: 38, MU: 1234, RedisMS: 0.4567, TTFT: 1500 * time.Microsecond, Status: 200, Outcome: OutcomeOK}
	text := r.AppendJSON(nil)
	for _, c := range text {
		if c == '\n' {
			t.Fatalf("a line end inside: %s", text)
		}
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	for name, want := range map[string]any{"time": "2025-11-30T08:00:00.123Z", "request_id": r.RequestID, "user_agent": "bad \uFFFD utf8 é",
		"cost_nusd": 38.0, "mu": 1.234, "redis_ms": 0.457, "ttft_ms": 1.5, "outcome": "ok", "stream": false} {
		if got[name] != want {
			t.Errorf("%s = %v, want %v", name, got[name], want)
		}
	}
	if len(got) != 44 {
		t.Errorf("%d fields, want 38 of DESIGN section 9 and 6 for explain and audit", len(got))
	}
	r.CostKnown = false
	if err := json.Unmarshal(r.AppendJSON(nil), &got); err != nil || got["cost_nusd"] != nil {
		t.Errorf("cost without a price = %v, want null (%v)", got["cost_nusd"], err)
	}
}
