package lex

import "math"

// Cursor walks a JSON text and lets the caller choose what to step into:
//
//	for c.Enter(); c.Member(); {
//		if string(c.Key) == "usage" { … } else { c.Skip() }
//	}
//
// The caller consumes every value a Member or Item stops at, by Skip, a typed read, or Enter with a loop to its end.
// After a fault every method does nothing and the loops end. Begin with Cursor{B: text}.
type Cursor struct {
	B   []byte
	I   int    // the offset it stands at
	Key []byte // the last Member's name as written, without the quotes; part of B
	Why string // what is wrong at I; empty while all is well

	depth int
	fresh bool // just entered: no comma before the next member
}

// Start moves to the root value.
func (c *Cursor) Start() { c.I = Space(c.B, c.I) }

// End reports whether the text ends here, but for space, and files a fault if it does not.
func (c *Cursor) End() bool {
	if c.Why != "" {
		return false
	}
	if c.I = Space(c.B, c.I); c.I < len(c.B) {
		c.Why = TrailingText
	}
	return c.Why == ""
}

// Peek returns the first byte of the value the cursor stands at; 0 at the end or after a fault.
func (c *Cursor) Peek() byte {
	if c.Why != "" || c.I >= len(c.B) {
		return 0
	}
	return c.B[c.I]
}

// Enter steps into the object or array the cursor stands at (see Peek).
func (c *Cursor) Enter() {
	if c.Why != "" {
		return
	}
	if c.depth++; c.depth > MaxDepth {
		c.Why = TooDeep
		return
	}
	c.I++
	c.fresh = true
}

// Member moves to the value of the object's next member. It returns false behind the object's end.
func (c *Cursor) Member() bool {
	if !c.next('}') {
		return false
	}
	if c.B[c.I] != '"' {
		c.Why = NoKey
		return false
	}
	end := String(c.B, c.I)
	if end < 0 {
		c.Why = OpenString
		return false
	}
	c.Key = c.B[c.I+1 : end-1]
	c.I, c.Why = colon(c.B, end)
	return c.Why == ""
}

// Item moves to the array's next item. It returns false behind the array's end.
func (c *Cursor) Item() bool { return c.next(']') }

// next moves to where the next member or item begins, or behind the closing bracket.
func (c *Cursor) next(closing byte) bool {
	if c.Why != "" {
		return false
	}
	fresh := c.fresh
	c.fresh = false
	if c.I = Space(c.B, c.I); c.I >= len(c.B) {
		c.Why = EndsEarly
		return false
	}
	if c.B[c.I] == closing {
		c.I++
		c.depth--
		return false
	}
	if fresh {
		return true
	}
	if c.B[c.I] != ',' {
		c.Why = NoComma
		return false
	}
	if c.I = Space(c.B, c.I+1); c.I >= len(c.B) {
		c.Why = EndsEarly
	}
	return c.Why == ""
}

// Skip steps over the value, whatever it is, and returns where it began.
func (c *Cursor) Skip() (from int) {
	from = c.I
	if c.Why == "" {
		c.I, c.Why = Value(c.B, c.I, c.depth)
	}
	return from
}

// Int steps over the value and returns it; ok is false if it is not a whole number written in digits that fits 63 bits.
func (c *Cursor) Int() (n int64, ok bool) {
	from := c.Skip()
	if c.Why != "" {
		return 0, false
	}
	return Int(c.B[from:c.I])
}

// Int reads a number that JSON allows and that is written as digits, with a minus sign or without.
func Int(digits []byte) (n int64, ok bool) {
	negative := len(digits) > 0 && digits[0] == '-'
	if negative {
		digits = digits[1:]
	}
	if len(digits) == 0 {
		return 0, false
	}
	for _, d := range digits {
		if d < '0' || d > '9' || n > (math.MaxInt64-int64(d-'0'))/10 {
			return 0, false
		}
		n = n*10 + int64(d-'0')
	}
	if negative {
		n = -n
	}
	return n, true
}
