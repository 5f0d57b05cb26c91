package scan

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/headgate/headgate/gateway/protocol"
)

// Bounds of a form. An upload of sound has a handful of parts; a body of empty parts would cost more to take apart than
// to send.
const (
	maxParts    = 128
	maxPartHead = 4 << 10 // bytes
	maxBoundary = 70      // RFC 2046
)

// soundBytesPerToken bounds the tokens of a sound by its bytes. Whisper makes 50 tokens of a second, and a second of
// MP3 at 128 kbit/s has 16,000 bytes: a quarter of the bound, like bytes and tokens of a text. Below 32 kbit/s it is an
// estimate and no bound.
const soundBytesPerToken = 80

// Multipart reads the form of an audio route once, without copying it. contentType is the header that came with it. The
// offsets of the result are those of the value between the part's head and the next delimiter, without quotes.
func Multipart(body []byte, contentType string) (Body, *Fault) {
	boundary, fault := boundaryOf(contentType)
	if fault != nil {
		return Body{}, fault
	}
	f := form{body: body, delimiter: []byte("--" + boundary)}
	f.out = Body{Route: Audio, MaxTokens: -1, MaxCompletionTokens: -1, MaxOutputTokens: -1, N: 1, BestOf: 1, Prompts: 1}
	f.parts()
	if f.fault == nil && !f.out.ModelAt.Present() {
		f.fault = invalid("model", "is missing", len(body))
	}
	if f.fault != nil {
		return Body{}, f.fault
	}
	return f.out, nil
}

// form is a body being read.
type form struct {
	body      []byte
	delimiter []byte // two dashes and the boundary
	out       Body
	seen      fieldSet
	fault     *Fault
}

// parts reads one part after the other. Between two stands CRLF, the delimiter, CRLF; behind the last the delimiter has
// two dashes and nothing follows but line ends. No text stands before the first: readers disagree on it.
func (f *form) parts() {
	if !bytes.HasPrefix(f.body, f.delimiter) {
		f.refuse("does not begin with its boundary", 0)
		return
	}
	at := len(f.delimiter)
	for n := 0; f.fault == nil; n++ {
		rest := f.body[at:]
		if bytes.HasPrefix(rest, []byte("--")) {
			if len(bytes.ReplaceAll(rest[2:], []byte("\r\n"), nil)) > 0 {
				f.refuse("goes on behind its end", at)
			}
			return
		}
		if !bytes.HasPrefix(rest, []byte("\r\n")) {
			f.refuse("has a boundary that is followed by no line end", at)
			return
		}
		if n == maxParts {
			f.refuse(fmt.Sprintf("has more than %d parts", maxParts), at)
			return
		}
		at = f.part(at + 2)
	}
}

// part reads the part whose head begins at from and returns the offset behind the delimiter that ends it.
func (f *form) part(from int) (next int) {
	head, valueAt := f.head(from)
	if f.fault != nil {
		return 0
	}
	end := f.end(valueAt)
	if f.fault != nil {
		return 0
	}
	f.member(head, Span{valueAt, end})
	return end + len("\r\n") + len(f.delimiter)
}

// partHead is what a part says of itself.
type partHead struct {
	name     string
	file     bool // it has a file name
	charset  string
	encoding string // Content-Transfer-Encoding, lower case
}

// head reads the head of a part up to its blank line.
func (f *form) head(from int) (h partHead, end int) {
	window := f.body[from:min(len(f.body), from+maxPartHead)]
	length := bytes.Index(window, []byte("\r\n\r\n"))
	if length < 0 || bytes.HasPrefix(window, []byte("\r\n")) {
		f.refuse("has a part without a head, or one that is too long", from)
		return h, 0
	}
	named := false
	for line := range strings.SplitSeq(string(window[:length]), "\r\n") {
		name, value, ok := strings.Cut(line, ":")
		if !ok || !isToken(name) || strings.ContainsAny(value, "\r\n\x00") {
			f.refuse("has a malformed line in a part's head", from)
			return h, 0
		}
		switch strings.ToLower(name) {
		case "content-disposition":
			if named {
				f.refuse("has a part with two names", from)
				return h, 0
			}
			named = f.disposition(&h, value, from)
		case "content-type":
			_, params, ok := parameters(value)
			h.charset = strings.ToLower(params["charset"])
			if !ok {
				h.charset = "unreadable"
			}
		case "content-transfer-encoding":
			h.encoding = strings.ToLower(strings.TrimSpace(value))
		}
		if f.fault != nil {
			return h, 0
		}
	}
	if !named {
		f.refuse("has a part without a name", from)
	}
	return h, from + length + 4
}

func (f *form) disposition(h *partHead, value string, at int) (named bool) {
	kind, params, ok := parameters(value)
	name, named := params["name"]
	_, extended := params["name*"]
	if !ok || !named || extended || strings.Contains(name, `\`) || !strings.EqualFold(kind, "form-data") {
		f.refuse("has a part whose name cannot be read", at)
		return false
	}
	h.name = name
	_, plain := params["filename"]
	_, star := params["filename*"]
	h.file = plain || star
	return true
}

// end finds the line end in front of the delimiter that ends the value at from. What readers disagree on is refused: a
// delimiter without a line end of its own before it, or with something behind it that is no line end.
func (f *form) end(from int) int {
	for at := from; ; {
		n := bytes.Index(f.body[at:], f.delimiter)
		if n < 0 {
			f.refuse("ends in the middle of a part", len(f.body))
			return 0
		}
		at += n
		behind := f.body[at+len(f.delimiter):]
		switch {
		case at > from && f.body[at-1] != '\n': // in the middle of a line: a part of the value
		case at < from+2 || f.body[at-2] != '\r':
			f.refuse("has a boundary without a line end before it", at)
			return 0
		case bytes.HasPrefix(behind, []byte("\r\n")), bytes.HasPrefix(behind, []byte("--")):
			return at - 2
		case len(behind) == 0 || strings.IndexByte(" \t\r\n-", behind[0]) >= 0:
			f.refuse("has something like its boundary in a part", at)
			return 0
		}
		at += len(f.delimiter)
	}
}

// member takes what a part says. Sound counts by its bytes, text as prompt.
func (f *form) member(h partHead, at Span) {
	value := f.body[at.From:at.To]
	name := formFieldOf(h.name)
	if name == fieldNone {
		if h.file {
			f.out.PromptBytes += (int64(len(value)) + soundBytesPerToken - 1) / soundBytesPerToken
		} else {
			f.out.PromptBytes += int64(len(value))
		}
		return
	}
	switch {
	case f.seen.has(name):
		f.fault = invalid(h.name, "appears more than once", at.From)
	case h.file || !plainText(h) || !utf8.Valid(value) || len(value) > MaxNameBytes || bytes.ContainsFunc(value, isControl):
		f.fault = invalid(h.name, fmt.Sprintf("must be plain text in UTF-8 of at most %d bytes", MaxNameBytes), at.From)
	}
	if f.fault != nil {
		return
	}
	f.seen.add(name)
	switch name {
	case fieldModel:
		if len(value) == 0 {
			f.fault = invalid("model", "must not be empty", at.From)
			return
		}
		f.out.Model, f.out.ModelAt = string(value), at
	case fieldStream:
		f.out.Stream = isTrue(value)
		f.out.StreamAt = at
	case fieldStreamOptions:
		f.out.IncludeUsage = isTrue(value)
		f.out.IncludeUsageAt = at
	case fieldUser:
		f.out.User = string(value)
	}
}

// formFieldOf: the form has no stream_options; stream_include_usage stands for it.
func formFieldOf(name string) field {
	switch name {
	case "model":
		return fieldModel
	case "stream":
		return fieldStream
	case "stream_include_usage":
		return fieldStreamOptions
	case "user":
		return fieldUser
	}
	return fieldNone
}

// isTrue reads a form's word for true as the engines' frameworks do.
func isTrue(value []byte) bool {
	switch strings.ToLower(string(value)) {
	case "true", "1", "on", "yes", "t", "y":
		return true
	}
	return false
}

// plainText: written as it is meant, without an encoding that another reader may undo.
func plainText(h partHead) bool {
	switch h.encoding {
	case "", "7bit", "8bit", "binary":
		return isUTF8(h.charset)
	}
	return false
}

func isUTF8(charset string) bool {
	return charset == "" || charset == "utf-8" || charset == "us-ascii"
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// boundaryOf reads the one boundary of a multipart/form-data header.
func boundaryOf(contentType string) (string, *Fault) {
	kind, params, ok := parameters(contentType)
	boundary := params["boundary"]
	if !ok || !strings.EqualFold(kind, "multipart/form-data") || !isUTF8(strings.ToLower(params["charset"])) || !isBoundary(boundary) {
		return "", &Fault{Code: protocol.CodeInvalidJSON, Message: "The body must be multipart/form-data with a boundary in Content-Type."}
	}
	for name := range params {
		if strings.HasPrefix(name, "boundary") && name != "boundary" { // RFC 2231: another reader joins boundary*0, boundary*1
			return "", malformedForm("has two boundaries", 0)
		}
	}
	return boundary, nil
}

func isBoundary(s string) bool {
	if s == "" || len(s) > maxBoundary || s[len(s)-1] == ' ' {
		return false
	}
	for i := range len(s) {
		if !isAlphanumeric(s[i]) && !strings.Contains("'()+_,-./:=? ", s[i:i+1]) {
			return false
		}
	}
	return true
}

// parameters takes `kind; name=value; name="value"` apart; names come in lower case. It is not ok where two readers could
// read two things: a name twice, an escape, text behind a value.
func parameters(header string) (kind string, params map[string]string, ok bool) {
	kind, rest, more := strings.Cut(header, ";")
	kind = strings.Trim(kind, " \t")
	params = map[string]string{}
	for more {
		rest = strings.TrimLeft(rest, " \t")
		if rest == "" {
			break // a semicolon at the end
		}
		var name, value string
		if name, rest, ok = strings.Cut(rest, "="); !ok || !isToken(name) {
			return kind, params, false
		}
		if value, rest, ok = parameterValue(rest); !ok {
			return kind, params, false
		}
		name = strings.ToLower(name)
		if _, twice := params[name]; twice {
			return kind, params, false
		}
		params[name] = value
		rest = strings.TrimLeft(rest, " \t")
		more = strings.HasPrefix(rest, ";")
		if !more && rest != "" {
			return kind, params, false
		}
		rest = strings.TrimPrefix(rest, ";")
	}
	return kind, params, true
}

// parameterValue reads a value, quoted or not. A backslash in front of a quote is not ok: for some it hides the quote.
func parameterValue(s string) (value, rest string, ok bool) {
	if quoted, found := strings.CutPrefix(s, `"`); found {
		value, rest, ok = strings.Cut(quoted, `"`)
		return value, rest, ok && !strings.HasSuffix(value, `\`)
	}
	end := strings.IndexAny(s, "; \t")
	if end < 0 {
		end = len(s)
	}
	return s[:end], s[end:], end > 0 && !strings.ContainsAny(s[:end], `"\`)
}

func isToken(s string) bool {
	for i := range len(s) {
		if !isAlphanumeric(s[i]) && !strings.Contains("!#$%&'*+-.^_`|~", s[i:i+1]) {
			return false
		}
	}
	return s != ""
}

func isAlphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func invalid(name, why string, at int) *Fault {
	return &Fault{Code: protocol.CodeInvalidField, Field: name, Message: "The field " + name + " " + why + ".", Offset: at}
}

func (f *form) refuse(why string, at int) { f.fault = malformedForm(why, at) }

func malformedForm(why string, at int) *Fault {
	return &Fault{Code: protocol.CodeInvalidJSON, Message: fmt.Sprintf("The form cannot be read: it %s (byte %d).", why, at), Offset: at}
}
