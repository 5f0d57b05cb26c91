// Package lex steps over JSON in place: it finds where values begin and end without building anything. Strings are
// jumped over by their closing quote; structure, numbers and literals are checked in full. What stands inside a string
// (escapes, control characters, UTF-8) is not looked at: it cannot move the string's end.
//
// Invariants:
//
//	I1. A text is accepted by Value exactly if it is JSON by RFC 8259, but for the inside of strings and for nesting
//	    deeper than MaxDepth (TestValueAgreesWithEncodingJSON, FuzzValue).
//	I2. Nothing here allocates or recurses, whatever the text (TestNoAllocation).
//	I3. Walking with a Cursor accepts what Value accepts, and ends at the same offset (FuzzValue).
package lex

import "bytes"

// MaxDepth is how many containers may be open at once. Chat bodies use about ten; engines in Python stop near a
// thousand.
const MaxDepth = 256

// What can be wrong with a text. The empty string is no fault.
const (
	TooDeep      = "nested too deeply"
	EndsEarly    = "ends in the middle of a value"
	NoValue      = "a value was expected"
	NoKey        = "a field name in quotes was expected"
	NoColon      = "a colon was expected"
	NoComma      = "a comma or the end was expected"
	BadNumber    = "malformed number"
	BadLiteral   = "unknown literal"
	OpenString   = "a string is never closed"
	TrailingText = "text after the end"
)

// Space returns the offset of the first byte at or after i that is not JSON white space.
func Space(b []byte, i int) int {
	for i < len(b) && b[i] <= ' ' && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// String returns the offset behind the string whose opening quote is b[i], or -1 if it is never closed.
func String(b []byte, i int) int {
	for from := i + 1; ; {
		n := bytes.IndexByte(b[from:], '"')
		if n < 0 {
			return -1
		}
		end := from + n
		slashes := 0
		for k := end - 1; k > i && b[k] == '\\'; k-- {
			slashes++
		}
		if slashes&1 == 0 {
			return end + 1
		}
		from = end + 1
	}
}

// Value returns the offset behind the value that begins at b[i], with above containers open around it. If why is not
// empty the value is at fault at the offset returned.
func Value(b []byte, i, above int) (end int, why string) {
	var objects [MaxDepth/64 + 1]uint64 // bit d: the container at depth d is an object
	depth := above
	for {
		if i >= len(b) {
			return i, EndsEarly
		}
		switch c := b[i]; c {
		case '{', '[':
			if depth++; depth > MaxDepth {
				return i, TooDeep
			}
			i = Space(b, i+1)
			if c == '[' {
				objects[depth/64] &^= 1 << (depth % 64)
				if i >= len(b) || b[i] != ']' {
					continue
				}
			} else {
				objects[depth/64] |= 1 << (depth % 64)
				if i >= len(b) || b[i] != '}' {
					if i, why = key(b, i); why != "" {
						return i, why
					}
					continue
				}
			}
			i++
			depth--
		default:
			if i, why = scalar(b, i); why != "" {
				return i, why
			}
		}
		// A value has ended: close what it closes, or go to the next one.
		for ; ; depth-- {
			if depth == above {
				return i, ""
			}
			i = Space(b, i)
			if i >= len(b) {
				return i, EndsEarly
			}
			object := objects[depth/64]>>(depth%64)&1 == 1
			if b[i] == ',' {
				i = Space(b, i+1)
				if object {
					if i, why = key(b, i); why != "" {
						return i, why
					}
				}
				break
			}
			if object && b[i] != '}' || !object && b[i] != ']' {
				return i, NoComma
			}
			i++
		}
	}
}

// key steps over a field name, its colon and the space around it.
func key(b []byte, i int) (int, string) {
	if i >= len(b) {
		return i, EndsEarly
	}
	if b[i] != '"' {
		return i, NoKey
	}
	end := String(b, i)
	if end < 0 {
		return i, OpenString
	}
	return colon(b, end)
}

func colon(b []byte, i int) (int, string) {
	i = Space(b, i)
	if i >= len(b) {
		return i, EndsEarly
	}
	if b[i] != ':' {
		return i, NoColon
	}
	return Space(b, i+1), ""
}

// scalar steps over a string, number or literal.
func scalar(b []byte, i int) (int, string) {
	switch c := b[i]; {
	case c == '"':
		if end := String(b, i); end >= 0 {
			return end, ""
		}
		return i, OpenString
	case c == '-' || c >= '0' && c <= '9':
		return number(b, i)
	case c == 't':
		return literal(b, i, "true")
	case c == 'f':
		return literal(b, i, "false")
	case c == 'n':
		return literal(b, i, "null")
	}
	return i, NoValue
}

func literal(b []byte, i int, word string) (int, string) {
	if len(b)-i < len(word) || string(b[i:i+len(word)]) != word {
		return i, BadLiteral
	}
	return i + len(word), ""
}

func number(b []byte, i int) (int, string) {
	if b[i] == '-' {
		i++
	}
	if i < len(b) && b[i] == '0' {
		i++
	} else if end := digits(b, i); end > i {
		i = end
	} else {
		return i, BadNumber
	}
	if i < len(b) && b[i] == '.' {
		end := digits(b, i+1)
		if end == i+1 {
			return i, BadNumber
		}
		i = end
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		end := digits(b, i)
		if end == i {
			return i, BadNumber
		}
		i = end
	}
	return i, ""
}

func digits(b []byte, i int) int {
	for i < len(b) && b[i] >= '0' && b[i] <= '9' {
		i++
	}
	return i
}
