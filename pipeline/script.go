package pipeline

import (
	"crypto/sha1"
	"encoding/hex"
	"strings"
)

// Script is one Lua script, known to Redis by the SHA-1 of its source.
type Script struct {
	Name   string
	full   source
	simple source // without the #! line, for stores that do not know flags
	joins  bool
}

type source struct{ text, sha string }

// NewScript prepares a script; name is for error texts only.
func NewScript(name, text string) *Script {
	return &Script{Name: name, full: digest(text), simple: digest(withoutShebang(text))}
}

// Joinable says that the script also takes several calls on one key at once, in place of its own arguments: *, then for each
// call the number of its arguments and these. It replies with a list, a call's own reply each, nil for one it did nothing
// with: that is sent alone. A call must be safe to repeat: if the script fails, every call is sent alone.
func (s *Script) Joinable() *Script {
	s.joins = true
	return s
}

func digest(text string) source {
	sum := sha1.Sum([]byte(text))
	return source{text: text, sha: hex.EncodeToString(sum[:])}
}

// withoutShebang keeps the line count, so that error positions stay true.
func withoutShebang(text string) string {
	if !strings.HasPrefix(text, "#!") {
		return text
	}
	if end := strings.IndexByte(text, '\n'); end >= 0 {
		return "--" + text[end:]
	}
	return ""
}
