package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strconv"
	"time"

	"github.com/zeebo/xxh3"
)

// bytesPerSecond of sound, as a WAV file of 16 kHz and 16 bits has, and tokens an encoder makes of a second.
const (
	bytesPerSecond  = 32_000
	tokensPerSecond = 50
)

// parseAudio reads the form of /v1/audio/transcriptions and translations. The text depends on the sound's bytes alone.
func parseAudio(e *Engine, r *http.Request, body []byte) (*generation, *apiError) {
	fields, sound, invalid := readForm(r, body)
	if invalid != nil {
		return nil, invalid
	}
	in := requestBody{Model: fields["model"], Stream: fields["stream"] == "true"}
	prefix := "trsc-"
	if r.URL.Path == "/v1/audio/translations" {
		prefix = "trsl-"
	}
	g, invalid := e.newGeneration(&in, prefix)
	if invalid != nil {
		return nil, invalid
	}
	g.includeUsage = fields["stream_include_usage"] == "true"
	seconds := (len(sound) + bytesPerSecond - 1) / bytesPerSecond
	prompt := binary.LittleEndian.AppendUint64([]byte(fields["prompt"]), xxh3.Hash(sound))
	prompt = append(prompt, make([]byte, tokenBytes*tokensPerSecond*min(seconds, 600))...)
	g.body = func(c *call) []byte { return c.transcript(g, fields["response_format"], seconds) }
	g.events = func(c *call) error { return c.streamTranscript(g) }
	return g, e.addPrompt(g, &in, prompt, 1)
}

func readForm(r *http.Request, body []byte) (fields map[string]string, sound []byte, invalid *apiError) {
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" {
		return nil, nil, badRequest("The body must be multipart/form-data.", "")
	}
	fields = map[string]string{}
	for form := multipart.NewReader(bytes.NewReader(body), params["boundary"]); ; {
		part, err := form.NextPart()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, nil, badRequest("There was an error parsing the body: "+err.Error(), "")
		}
		value, err := io.ReadAll(part)
		if err != nil {
			return nil, nil, badRequest("There was an error parsing the body: "+err.Error(), "")
		}
		if part.FormName() == "file" {
			sound = value
		} else {
			fields[part.FormName()] = string(value)
		}
	}
	if sound == nil {
		return nil, nil, badRequest("file: Field required", "file")
	}
	return fields, sound, nil
}

func (c *call) transcript(g *generation, format string, seconds int) []byte {
	text := g.seqs[0].answer()
	switch {
	case format == "text":
		return append(text, '\n')
	case c.fault.Kind == NoUsage:
		return fmt.Appendf(nil, `{"text":"%s"}`, text)
	}
	return fmt.Appendf(nil, `{"text":"%s","usage":{"type":"duration","seconds":%d}}`, text, seconds)
}

// streamTranscript has chat's framing and events of its own.
func (c *call) streamTranscript(g *generation) error {
	s := newEventStream(c, g)
	if err := s.begin(); err != nil {
		return err
	}
	s.before = fmt.Appendf(nil, `data: {"id":%s,"object":"transcription.chunk","created":%d,"model":%s,"choices":[`,
		quote(g.id), time.Now().Unix(), quote(g.model))
	err := s.followOne(func(q *sequence) error {
		if err := s.open(); err != nil {
			return err
		}
		text, reason := "", "null"
		if s.output < q.shown() {
			text = string(tokenText(q.seed, s.output))
		}
		if s.output == q.length-1 {
			reason = strconv.Quote(q.reason)
		}
		s.buf = fmt.Appendf(s.buf, `{"delta":{"content":"%s"},"finish_reason":%s,"stop_reason":null}]`, text, reason)
		s.close()
		return nil
	})
	if err != nil {
		return err
	}
	return s.end()
}
