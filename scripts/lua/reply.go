package lua

import (
	"fmt"
	"strconv"

	"github.com/redis/rueidis"
)

// flag is a yes or no as scripts take it.
func flag(yes bool) string {
	if yes {
		return "1"
	}
	return "0"
}

// figure is a number as scripts take it: never below 0.
func figure(n int64) string { return strconv.FormatInt(max(0, n), 10) }

// decimals writes numbers into one piece of memory for all of a call's.
type decimals struct{ room []byte }

func newDecimals() decimals { return decimals{make([]byte, 0, 48)} }

func (d *decimals) of(n int64) string {
	if 0 <= n && n < 100 {
		return strconv.FormatInt(n, 10) // takes no memory
	}
	from := len(d.room)
	d.room = strconv.AppendInt(d.room, n, 10)
	return textOf(d.room[from:])
}

// figure is a number as scripts take it: never below 0.
func (d *decimals) figure(n int64) string { return d.of(max(0, n)) }

// onClock appends a test's clock in ms; 0: nothing, and the script reads Redis' own.
func onClock(args []string, nowMS int64) []string {
	if nowMS > 0 {
		args = append(args, figure(nowMS))
	}
	return args
}

// through decodes a reply into what read finds there and gives the caller's own reading of that.
func through[R, T any](read func(rueidis.RedisMessage) (R, error), as func(R) T) func(rueidis.RedisMessage) (T, error) {
	return func(m rueidis.RedisMessage) (T, error) {
		r, err := read(m)
		if err != nil {
			var none T
			return none, err
		}
		return as(r), nil
	}
}

// array is a reply of n fields.
func array(m rueidis.RedisMessage, n int) ([]rueidis.RedisMessage, error) {
	f, err := m.ToArray()
	if err == nil && len(f) != n {
		err = fmt.Errorf("reply of %d fields, want %d", len(f), n)
	}
	return f, err
}

// fields reads the fields of a reply and keeps the first error.
type fields struct{ err error }

func (d *fields) whole(m rueidis.RedisMessage) int64 {
	n, err := m.AsInt64()
	d.keep(err)
	return n
}

func (d *fields) texts(m rueidis.RedisMessage) []string {
	t, err := m.AsStrSlice()
	d.keep(err)
	return t
}

func (d *fields) number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	d.keep(err)
	return n
}

func (d *fields) keep(err error) {
	if d.err == nil {
		d.err = err
	}
}

// wholes is a reply of n whole numbers.
func wholes(m rueidis.RedisMessage, n int) ([]int64, error) {
	f, err := array(m, n)
	if err != nil {
		return nil, err
	}
	d, out := fields{}, make([]int64, n)
	for i := range f {
		out[i] = d.whole(f[i])
	}
	return out, d.err
}
