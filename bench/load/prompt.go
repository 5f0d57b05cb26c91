package load

import (
	"fmt"
	"strings"
)

// Ask is a chat request as it goes over the wire.
type Ask struct {
	Key    string
	Model  string // "" = Model
	Bytes  int    // of the body, about
	Stream bool
	Tokens int // max_tokens
	Salt   int // prompts of different salt share no beginning
}

// The text has what a prompt's JSON has: escapes, and here and there a letter of more than one byte.
const words = `Explain step by step, with \"care\", how the café's ledger adds up.\nThen say which line of it is wrong and why that is so. `

// Wire is the request in HTTP/1.1.
func (a Ask) Wire() []byte {
	if a.Model == "" {
		a.Model = Model
	}
	body := fmt.Sprintf(`{"model":%q,"stream":%t,"max_tokens":%d,"temperature":0.7,"user":"u-%d","messages":[{"role":"system","content":"You are assistant %d of the bench. Answer in one sentence."},{"role":"user","content":"`,
		a.Model, a.Stream, a.Tokens, a.Salt, a.Salt)
	const end = `"}]}`
	fill := max(0, a.Bytes-len(body)-len(end))
	body += strings.Repeat(words, fill/len(words))
	body += strings.Repeat("x", max(0, a.Bytes-len(body)-len(end))) + end
	return fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", a.Key, len(body), body)
}
