package engine

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// serveTokenize is POST /tokenize: a prompt, or messages.
func (e *Engine) serveTokenize(w http.ResponseWriter, r *http.Request) {
	e.convert(w, r, func(body []byte) ([]byte, *apiError) {
		var in requestBody
		if err := json.Unmarshal(body, &in); err != nil {
			return nil, badRequest("Invalid request body: "+err.Error(), "")
		}
		if _, err := e.newGeneration(&in, ""); err != nil {
			return nil, err
		}
		prompts, err := in.prompts(len(in.Prompt) == 0)
		if err != nil {
			return nil, err
		}
		ids := idsOf(prompts[0])
		tokens, _ := json.Marshal(ids)
		return fmt.Appendf(nil, `{"count":%d,"max_model_len":%d,"tokens":%s,"token_strs":null}`, len(ids), e.opts.MaxModelLen, tokens), nil
	})
}

// serveDetokenize is POST /detokenize.
func (e *Engine) serveDetokenize(w http.ResponseWriter, r *http.Request) {
	e.convert(w, r, func(body []byte) ([]byte, *apiError) {
		var in struct {
			requestBody
			Tokens []uint32 `json:"tokens"`
		}
		if err := json.Unmarshal(body, &in); err != nil {
			return nil, badRequest("Invalid request body: "+err.Error(), "")
		}
		if _, err := e.newGeneration(&in.requestBody, ""); err != nil {
			return nil, err
		}
		return fmt.Appendf(nil, `{"prompt":%s}`, quote(string(bytes.TrimRight(idBytes(in.Tokens), "\x00")))), nil
	})
}

// convert answers what needs no computing. Faults befall only what does.
func (e *Engine) convert(w http.ResponseWriter, r *http.Request, answer func([]byte) ([]byte, *apiError)) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	c := &call{engine: e, w: w, r: r, seen: e.seen.add(r, body)}
	out, invalid := answer(body)
	if invalid != nil {
		c.refuse(invalid)
		c.note("rejected")
		return
	}
	c.answer(out)
}

// idsOf is the inverse of idBytes: four bytes are a token.
func idsOf(text []byte) []uint32 {
	ids := make([]uint32, 0, len(text)/tokenBytes+1)
	for ; len(text) > 0; text = text[min(tokenBytes, len(text)):] {
		var b [tokenBytes]byte
		copy(b[:], text)
		ids = append(ids, binary.LittleEndian.Uint32(b[:]))
	}
	return ids
}
