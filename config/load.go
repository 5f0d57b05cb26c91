package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
)

const prefix = "HG_"

// Load reads environ, entries of the form NAME=value as os.Environ returns
// them; names that do not begin with HG_ are not looked at. The error is one
// line that names every fault. (C1)
func Load(environ []string) (Config, error) {
	c := defaults()
	c.ReplicaID = hostID()
	c.SpoolDir = filepath.Join(os.TempDir(), SpoolDirName)
	ours, faults := sift(environ)
	c.set = make(map[string]bool, len(ours))
	for name := range ours {
		c.set[name] = true
	}
	faults = append(faults, c.parse(ours)...)
	c.fit()
	faults = append(faults, c.check(faults)...)
	if len(faults) > 0 {
		return Config{}, errors.New(line(faults))
	}
	return c, nil
}

// hostID is this host's name in the letters a replica's id may have.
func hostID() string {
	name, _ := os.Hostname()
	id := strings.Map(func(r rune) rune {
		if r < 0x80 && replicaForm.MatchString(string(r)) {
			return r
		}
		return '-'
	}, name)
	if id == "" {
		return "replica"
	}
	return id[:min(len(id), 64)]
}

// fault is what is wrong with one variable.
type fault struct{ name, text string }

func line(faults []fault) string {
	slices.SortStableFunc(faults, func(a, b fault) int { return strings.Compare(a.name, b.name) })
	parts := make([]string, len(faults))
	for i, f := range faults {
		parts[i] = f.name + ": " + f.text
	}
	return strings.Join(parts, "; ")
}

// sift returns our variables that are set to something, and a fault for each
// name that is not known. (C3, C4)
func sift(environ []string) (map[string]string, []fault) {
	known := names()
	ours := map[string]string{}
	var faults []fault
	for _, one := range environ {
		name, value, _ := strings.Cut(one, "=")
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		if !slices.Contains(known, name) {
			faults = append(faults, fault{printable(name), unknownText(name, known)})
			continue
		}
		if value = strings.TrimSpace(value); value != "" {
			ours[name] = value
		}
	}
	return ours, faults
}

// names are the variables of Config, in its order.
func names() []string {
	var all []string
	t := reflect.TypeFor[Config]()
	for i := range t.NumField() {
		if name := t.Field(i).Tag.Get("env"); name != "" {
			all = append(all, name)
		}
	}
	return all
}

func unknownText(name string, known []string) string {
	best, at := "", 1+len(name)/4
	for _, k := range known {
		if d := distance(name, k); d <= at {
			best, at = k, d-1
		}
	}
	if best == "" {
		return "unknown variable"
	}
	return "unknown variable; did you mean " + best + "?"
}

// distance is the number of letters to add, drop or change between a and b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// parse fills c from the variables that are set.
func (c *Config) parse(ours map[string]string) []fault {
	err := env.ParseWithOptions(c, env.Options{
		Environment: ours,
		FuncMap: map[reflect.Type]env.ParserFunc{
			reflect.TypeFor[time.Duration]():  parseDuration,
			reflect.TypeFor[int]():            parseInt,
			reflect.TypeFor[int64]():          parseInt64,
			reflect.TypeFor[StaticBackends](): parseBackends,
			reflect.TypeFor[Origins]():        parseOrigins,
		},
	})
	var all env.AggregateError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &all):
		return []fault{{"environment", "cannot be read"}}
	}
	var faults []fault
	for _, one := range all.Errors {
		var parse env.ParseError
		if !errors.As(one, &parse) {
			faults = append(faults, fault{"environment", "cannot be read"})
			continue
		}
		field, _ := reflect.TypeFor[Config]().FieldByName(parse.Name)
		faults = append(faults, fault{field.Tag.Get("env"), parse.Err.Error()})
	}
	return faults
}

func parseDuration(s string) (any, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return nil, fmt.Errorf("%q is not a duration (write 450ms, 60s or 10m)", clip(s))
	}
	return d, nil
}

// parseInt64 is for sizes.
func parseInt64(s string) (any, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%q is not a whole number of bytes (32 MiB is 33554432)", clip(s))
	}
	return n, nil
}

func parseInt(s string) (any, error) {
	n, err := strconv.Atoi(s)
	if err != nil {
		return nil, fmt.Errorf("%q is not a whole number", clip(s))
	}
	return n, nil
}

// clip and printable keep the error one readable line.
func clip(s string) string {
	s = printable(s)
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}

func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0x2028 || r == 0x2029 || r == 0x85 {
			return '?'
		}
		return r
	}, s)
}
