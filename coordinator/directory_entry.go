package coordinator

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Entry is one record as it is stored. Fields may have been written by anybody: Faults says what is wrong with them.
type Entry struct {
	Ref
	Fields map[string]string // as in Redis, times in Unix milliseconds
	Made   []Ref             // by Create, CreateKey and Set: the tenant, team and user made with it because they were missing
	hash   string            // of a key
	before bool              // of a key that was rotated: another record of the same id took its place
}

// RedisKey is the name of the hash.
func (e Entry) RedisKey() string { return recordName(e.Ref, e.hash) }

// Expired reports whether a key has ended by then.
func (e Entry) Expired(now time.Time) bool {
	return !e.ExpiresAt().IsZero() && !now.Before(e.ExpiresAt())
}

// CreatedAt is when the record was made; zero when it does not say.
func (e Entry) CreatedAt() time.Time { return readMillis(e.Fields["created_at"]) }

// ExpiresAt is when a key ends; zero when it does not.
func (e Entry) ExpiresAt() time.Time { return readMillis(e.Fields["expires_at"]) }

// Faults lists what in the record cannot be read, one line each. Limits that cannot be read refuse every request under
// the record; a field of an unknown name has no effect.
func (e Entry) Faults() []string {
	var faults []string
	if e.Kind == KindKey && e.Fields["id"] == "" {
		faults = append(faults, "id: missing: every request with this key is refused")
	}
	for _, name := range slices.Sorted(maps.Keys(e.Fields)) {
		f, ok := fieldOf(e.Kind, name)
		switch value := e.Fields[name]; {
		case !ok:
			faults = append(faults, name+": not a known field")
		case f.shape == asMoment && readMillis(value).IsZero():
			faults = append(faults, name+": want milliseconds since 1970")
		case f.check != nil && f.shape != asMoment && f.shape != asFlag:
			if _, err := f.check(value, time.Time{}); err != nil {
				faults = append(faults, name+": "+err.Error())
			}
		}
	}
	return faults
}

// Line is one field of a record, for people.
type Line struct{ Name, Value string }

// Lines are the fields in the order of the documentation, then unknown ones by name; times in RFC 3339.
func (e Entry) Lines() []Line {
	lines := []Line{{"tenant", e.Tenant}}
	if e.Kind != KindTenant && e.Fields["id"] == "" {
		lines = append(lines, Line{"id", e.ID})
	}
	known := map[string]bool{}
	for _, f := range recordFields {
		value, ok := e.Fields[f.name]
		if !ok || !f.has(e.Kind) {
			continue
		}
		known[f.name] = true
		if t := readMillis(value); f.shape == asMoment && !t.IsZero() {
			value = FormatTime(t)
		}
		lines = append(lines, Line{f.name, value})
	}
	for _, name := range slices.Sorted(maps.Keys(e.Fields)) {
		if !known[name] {
			lines = append(lines, Line{name, e.Fields[name]})
		}
	}
	return lines
}

// MarshalJSON is one flat object: numbers as numbers, lists as arrays, times in RFC 3339; what cannot be read stays
// text, and "faults" says so.
func (e Entry) MarshalJSON() ([]byte, error) {
	out := []byte{'{'}
	put := func(name string, value any) error {
		k, err := json.Marshal(name)
		if err != nil {
			return err
		}
		v, err := json.Marshal(value)
		if err != nil {
			return err
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, k...), ':'), v...)
		return nil
	}
	for _, line := range e.Lines() {
		if err := put(line.Name, e.jsonValue(line)); err != nil {
			return nil, err
		}
	}
	if faults := e.Faults(); len(faults) > 0 {
		if err := put("faults", faults); err != nil {
			return nil, err
		}
	}
	return append(out, '}'), nil
}

func (e Entry) jsonValue(line Line) any {
	f, ok := fieldOf(e.Kind, line.Name)
	if !ok {
		return line.Value
	}
	switch f.shape {
	case asNumber:
		if usdForm.MatchString(line.Value) {
			if n := json.Number(line.Value); json.Valid([]byte(n)) {
				return n
			}
		}
	case asFlag:
		return line.Value != "" && line.Value != "0" // as admissions read it
	case asCommas:
		return strings.Split(line.Value, ",")
	case asSpaces:
		return strings.Fields(line.Value)
	}
	return line.Value
}

// FormatTime is a moment as it stands in JSON: RFC 3339, UTC, milliseconds.
func FormatTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// readMillis reads milliseconds since 1970; zero when it is anything else.
func readMillis(value string) time.Time {
	ms, err := strconv.ParseInt(value, 10, 64)
	if err != nil || ms <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
