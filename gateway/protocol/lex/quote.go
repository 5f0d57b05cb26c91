package lex

import (
	"unicode/utf16"
	"unicode/utf8"
)

const hex = "0123456789abcdef"

// AppendQuoted appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD, so the result is always valid.
func AppendQuoted(dst []byte, s string) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= 0x20 && c < utf8.RuneSelf && c != '"' && c != '\\' {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r != utf8.RuneError || size != 1 {
				i += size
				continue
			}
			dst = append(append(dst, s[from:i]...), "\uFFFD"...)
			i++
			from = i
			continue
		}
		dst = append(dst, s[from:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		from = i
	}
	return append(append(dst, s[from:]...), '"')
}

// Decoding says how a string could be read.
type Decoding int

const (
	Clean     Decoding = iota // exactly one reading
	Lone                      // half of a surrogate pair: readers disagree on it; it became U+FFFD
	Malformed                 // an escape that JSON does not know, or a bare control character
)

// AppendUnquoted appends what the string written as raw (between its quotes) stands for.
func AppendUnquoted(dst, raw []byte) ([]byte, Decoding) {
	how := Clean
	for i := 0; i < len(raw); {
		c := raw[i]
		if c < 0x20 {
			return dst, Malformed
		}
		if c != '\\' {
			dst = append(dst, c)
			i++
			continue
		}
		if i+1 >= len(raw) {
			return dst, Malformed
		}
		i += 2
		switch raw[i-1] {
		case '"', '\\', '/':
			dst = append(dst, raw[i-1])
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r, ok := hex4(raw, i)
			if !ok {
				return dst, Malformed
			}
			i += 4
			if utf16.IsSurrogate(r) {
				low, _ := lowSurrogate(raw, i)
				if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
					how = Lone
				} else {
					i += 6
				}
			}
			dst = utf8.AppendRune(dst, r)
		default:
			return dst, Malformed
		}
	}
	return dst, how
}

// lowSurrogate reads the \uXXXX at raw[i:], if one stands there.
func lowSurrogate(raw []byte, i int) (rune, bool) {
	if len(raw)-i < 6 || raw[i] != '\\' || raw[i+1] != 'u' {
		return 0, false
	}
	return hex4(raw, i+2)
}

func hex4(raw []byte, i int) (r rune, ok bool) {
	if len(raw)-i < 4 {
		return 0, false
	}
	for _, c := range raw[i : i+4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
