package gateway

import (
	"strings"
	"testing"

	"github.com/headgate/headgate/coordinator"
	"github.com/headgate/headgate/gateway/protocol/scan"
)

// The next turn of a conversation finds the turn before it and the answer warm, on every route that has messages.
func TestPrefixCountsTheAnswer(t *testing.T) {
	ask, answer := strings.Repeat("How many are there? ", 200), strings.Repeat("As many as you see. ", 300)
	user, question := `{"role":"user","content":"`+ask+`"}`, `{"role":"user","content":"And now?"}`
	for name, c := range map[string]struct {
		route        scan.Route
		field, reply string
		warm         bool // of the answer
	}{
		"chat":                  {scan.Chat, "messages", `{"content":"` + answer + `","role":"assistant"}`, true},
		"messages":              {scan.Messages, "messages", `{"role":"assistant","content":[{"type":"text","text":"` + answer + `"}]}`, true},
		"responses":             {scan.Responses, "input", `{"type":"message","role":"assistant","content":[{"type":"output_text","text":"` + answer + `"}]}`, true},
		"a call":                {scan.Responses, "input", `{"type":"function_call","arguments":"` + answer + `"}`, true},
		"another of the user's": {scan.Chat, "messages", `{"role":"user","content":"` + answer + `"}`, false},
		"a tool's":              {scan.Chat, "messages", `{"role":"tool","content":"` + answer + `"}`, false},
	} {
		known := map[uint64]bool{}
		for _, f := range prefixOf(t, c.route, c.field, user).Prints {
			known[f.Hash] = true
		}
		warm := int64(0)
		for _, f := range prefixOf(t, c.route, c.field, user, c.reply, question).Prints {
			if known[f.Hash] {
				warm = max(warm, f.Tokens)
			}
		}
		least, most := int64(len(ask)/4), int64(len(ask)/4+50)
		if c.warm {
			least, most = int64(len(ask+answer)/4), int64(len(ask+answer)/4+50)
		}
		if warm < least || warm > most {
			t.Errorf("%s: %d tokens warm, want %d to %d", name, warm, least, most)
		}
	}
}

func prefixOf(t *testing.T, route scan.Route, field string, messages ...string) coordinator.Prefix {
	t.Helper()
	r := request{body: []byte(`{"model":"m","` + field + `":[` + strings.Join(messages, ",") + `]}`)}
	var fault *scan.Fault
	if r.scan, fault = scan.Scan(r.body, route); fault != nil {
		t.Fatal(fault)
	}
	return r.prefix()
}
