package catalogue

import (
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// reader reads one value of one model. Its methods note a fault and return the
// zero value when the value is not what it should be.
type reader struct {
	field
	model string
	path  string // "price.prompt"; "" for the model itself
}

// Powers of ten between what is written and what is kept.
const (
	picoExponent  = 6 // USD per million tokens → pico-dollars per token
	milliExponent = 3 // MU → thousandths
)

var (
	decimalForm = regexp.MustCompile(`^[0-9]{1,12}(\.[0-9]{1,18})?$`)
	bytesForm   = regexp.MustCompile(`^([0-9]{1,12}) ?(|B|KiB|MiB|GiB)$`)
	envName     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
)

func (r reader) fault(text string) { r.tree.faults.add(r.line, r.model, r.path, text) }

func (r reader) unknown() {
	// The path ends in the name itself.
	r.path = strings.TrimSuffix(strings.TrimSuffix(r.path, r.name), ".")
	r.fault(fmt.Sprintf("unknown field %q", clip(r.name)))
}

// each calls fn with a reader for every field of a mapping.
func (r reader) each(fn func(reader)) {
	o, ok := r.tree.object(r.value, 0)
	if !ok {
		r.fault("must be a mapping")
		return
	}
	for _, f := range o.fields {
		path := f.name
		if r.path != "" {
			path = r.path + "." + f.name
		}
		fn(reader{field: f, model: r.model, path: path})
	}
}

func (r reader) has(name string) bool {
	o, _ := r.tree.object(r.value, 0)
	return o.has(name)
}

func (r reader) null() bool {
	n := r.tree.follow(r.value)
	_, ok := n.(*ast.NullNode)
	return ok || n == nil
}

// scalar is the value as it is written.
func (r reader) scalar(want string) (string, bool) {
	s, ok := text(r.tree.follow(r.value))
	if !ok {
		r.fault("must be " + want)
	}
	return s, ok
}

func (r reader) wrong(got, want string) { r.fault(fmt.Sprintf("%q is not %s", clip(got), want)) }

func (r reader) pool() string {
	s, ok := r.scalar("a pool's name")
	if ok && !ValidPool(s) {
		r.wrong(s, "a pool's name: [A-Za-z0-9._/-]{1,128}")
	}
	return s
}

func (r reader) texts() []string {
	nodes, ok := r.tree.list(r.value)
	if !ok {
		r.fault("must be a list")
		return nil
	}
	all := make([]string, 0, len(nodes))
	for _, n := range nodes {
		s, ok := text(r.tree.follow(n))
		if !ok {
			r.fault("must be a list of names")
			return nil
		}
		all = append(all, s)
	}
	return all
}

func (r reader) whole(least, most int64) int64 {
	want := fmt.Sprintf("a whole number from %d to %d", least, most)
	s, ok := r.scalar(want)
	if !ok {
		return 0
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < least || n > most {
		r.wrong(s, want)
		return 0
	}
	return n
}

// decimal reads a number from 0 to most and returns it times 10^exponent,
// digit by digit: there is no float on the way. (I1)
func (r reader) decimal(exponent int, most int64) int64 {
	want := fmt.Sprintf("a number from 0 to %d in plain digits", most)
	s, ok := r.scalar(want)
	if !ok {
		return 0
	}
	if !decimalForm.MatchString(s) {
		r.wrong(s, want)
		return 0
	}
	whole, fraction, _ := strings.Cut(s, ".")
	fraction = strings.TrimRight(fraction, "0")
	if len(fraction) > exponent {
		r.wrong(s, fmt.Sprintf("a figure with at most %d decimals", exponent))
		return 0
	}
	fraction += strings.Repeat("0", exponent-len(fraction))
	n, err := strconv.ParseInt(whole+fraction, 10, 64)
	limit := most
	for range exponent {
		limit *= 10
	}
	if err != nil || n > limit {
		r.wrong(s, want)
		return 0
	}
	return n
}

func (r reader) duration(least, most time.Duration) time.Duration {
	want := fmt.Sprintf("a duration from %v to %v, like 10m", least, most)
	s, ok := r.scalar(want)
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < least || d > most {
		r.wrong(s, want)
		return 0
	}
	return d
}

// bytes reads a size: a plain number, or one with KiB, MiB, GiB.
func (r reader) bytes(least, most int64) int64 {
	want := fmt.Sprintf("a size from %d to %d bytes, like 1048576 or 1MiB", least, most)
	s, ok := r.scalar(want)
	if !ok {
		return 0
	}
	parts := bytesForm.FindStringSubmatch(s)
	if parts == nil {
		r.wrong(s, want)
		return 0
	}
	n, err := strconv.ParseInt(parts[1], 10, 64)
	n <<= map[string]int{"": 0, "B": 0, "KiB": 10, "MiB": 20, "GiB": 30}[parts[2]]
	if err != nil || n < least || n > most {
		r.wrong(s, want)
		return 0
	}
	return n
}

func (r reader) yes() bool {
	s, ok := r.scalar("true or false")
	if ok && s != "true" && s != "false" {
		r.wrong(s, "true or false")
	}
	return s == "true"
}

func (r reader) url() string {
	s, ok := r.scalar("an http or https URL")
	if !ok {
		return ""
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		r.fault("must be an http or https URL")
		return ""
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		r.fault("must be a URL without credentials, query and fragment")
		return ""
	}
	return strings.TrimRight(s, "/")
}
