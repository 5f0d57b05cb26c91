package coordinator

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Changes are fields to write, by name; an empty value removes the field. Besides the fields of the record it knows
// budget ("50/month 5/day"), which stands for budget_usd, period and budgets together.
type Changes map[string]string

// recordField is one thing a record may say. check returns the value as it is stored, "" to remove the field.
type recordField struct {
	name  string
	kinds string // of the records that may have it; "": all
	fixed bool   // written when the record is made
	check func(value string, now time.Time) (string, error)
	shape fieldShape
}

// fieldShape is how a stored value stands in JSON.
type fieldShape int

const (
	asText fieldShape = iota
	asNumber
	asFlag
	asMoment // milliseconds in Redis
	asCommas
	asSpaces
)

// recordFields is in the order in which records are shown.
var recordFields = []recordField{
	{name: "id", kinds: "key", fixed: true},
	{name: "name", check: timeless(checkText)},
	{name: "team", kinds: "key", check: timeless(checkOwner)},
	{name: "user", kinds: "key", check: timeless(checkOwner)},
	{name: "disabled", check: timeless(checkFlag), shape: asFlag},
	{name: "rpm", check: timeless(checkWhole), shape: asNumber},
	{name: "tpm", check: timeless(checkWhole), shape: asNumber},
	{name: "parallel", check: timeless(checkWhole), shape: asNumber},
	{name: "budget_usd", check: timeless(checkUSD), shape: asNumber},
	{name: "period", check: timeless(checkPeriod)},
	{name: "budgets", check: timeless(checkBudgets), shape: asSpaces},
	{name: "models", check: timeless(checkModels), shape: asCommas},
	{name: "priority", check: timeless(checkPriority), shape: asNumber},
	{name: "tags", check: timeless(checkTags), shape: asCommas},
	{name: "isolate_prefix", check: timeless(checkFlag), shape: asFlag},
	{name: "expires_at", kinds: "key", check: checkMoment, shape: asMoment},
	{name: "created_at", fixed: true, shape: asMoment},
	{name: "previous", kinds: "key", fixed: true},
}

// FieldNames lists what may be set on records of a kind.
func FieldNames(kind Kind) []string {
	var names []string
	for _, f := range recordFields {
		if !f.fixed && f.has(kind) {
			names = append(names, f.name)
		}
	}
	return append(names, "budget")
}

func (f recordField) has(kind Kind) bool { return f.kinds == "" || f.kinds == string(kind) }

func fieldOf(kind Kind, name string) (recordField, bool) {
	i := slices.IndexFunc(recordFields, func(f recordField) bool { return f.name == name && f.has(kind) })
	if i < 0 {
		return recordField{}, false
	}
	return recordFields[i], true
}

// apply checks c against a record that has the fields old, and returns what to write and what to remove. All faults
// are reported at once. // D5
func (c Changes) apply(kind Kind, old map[string]string, now time.Time) (write [][2]string, remove []string, err error) {
	c, err = c.withBudget()
	if err != nil {
		return nil, nil, err
	}
	after := maps.Clone(old)
	if after == nil {
		after = map[string]string{}
	}
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(c)) {
		value, err := checkField(kind, name, c[name], now)
		switch {
		case err != nil:
			faults = append(faults, err)
		case value != "":
			write = append(write, [2]string{name, value})
			after[name] = value
		default:
			remove = append(remove, name)
			delete(after, name)
		}
	}
	if len(faults) == 0 {
		faults = append(faults, checkMoney(after))
	}
	return write, remove, joinFaults(faults)
}

// first is apply for a new record: there an empty value is a slip, not a wish.
func (c Changes) first(kind Kind, now time.Time) ([][2]string, error) {
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(c)) {
		if strings.TrimSpace(c[name]) == "" {
			faults = append(faults, fmt.Errorf("%s is empty (leave it out for none)", name))
		}
	}
	if err := joinFaults(faults); err != nil {
		return nil, err
	}
	write, _, err := c.apply(kind, nil, now)
	return write, err
}

// joinFaults is one line of text: these errors end up on a terminal.
func joinFaults(faults []error) error {
	var texts []string
	for _, err := range faults {
		if err != nil {
			texts = append(texts, err.Error())
		}
	}
	if len(texts) == 0 {
		return nil
	}
	return invalid(strings.Join(texts, "; "))
}

func checkField(kind Kind, name, value string, now time.Time) (string, error) {
	f, ok := fieldOf(kind, name)
	if !ok {
		return "", fmt.Errorf("%s has no field %q (known: %s)", kind, name, strings.Join(FieldNames(kind), ", "))
	}
	if f.fixed {
		return "", fmt.Errorf("%s cannot be changed", name)
	}
	value = strings.TrimSpace(value)
	if value == "" {
		return "", nil
	}
	stored, err := f.check(value, now)
	if err != nil {
		return "", fmt.Errorf("%s %q: %w", name, value, err)
	}
	return stored, nil
}

// withBudget replaces "budget" by the three fields it stands for.
func (c Changes) withBudget() (Changes, error) {
	value, ok := c["budget"]
	if !ok {
		return c, nil
	}
	c = maps.Clone(c)
	delete(c, "budget")
	for _, name := range []string{"budget_usd", "period", "budgets"} {
		if _, twice := c[name]; twice {
			return nil, invalidf("budget and %s exclude each other", name)
		}
		c[name] = ""
	}
	list := strings.FieldsFunc(value, func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
	for _, item := range list {
		if _, err := checkBudgets(item); err != nil {
			return nil, invalidf("budget %q: %s", item, err)
		}
	}
	if len(list) > 0 {
		c["budget_usd"], c["period"], _ = strings.Cut(list[0], "/")
		c["budgets"] = strings.Join(list[1:], " ")
	}
	return c, nil
}

// checkMoney judges budget_usd, period (absent: month) and budgets of one record together.
func checkMoney(fields map[string]string) error {
	usd, period := fields["budget_usd"], fields["period"]
	if usd == "" && period != "" {
		return errors.New("period without budget_usd (budget=50/month sets both, budget= removes both)")
	}
	seen := map[string]bool{}
	if usd != "" {
		seen[cmp.Or(period, "month")] = true
	}
	for _, item := range strings.Fields(fields["budgets"]) {
		_, period, _ := strings.Cut(item, "/")
		if seen[period] {
			return fmt.Errorf("two budgets for one period (%s)", period)
		}
		seen[period] = true
	}
	return nil
}

func timeless(check func(string) (string, error)) func(string, time.Time) (string, error) {
	return func(value string, _ time.Time) (string, error) { return check(value) }
}

// maxWhole keeps limits where the scripts count exactly: 15 digits.
const maxWhole = 999_999_999_999_999

func checkWhole(value string) (string, error) {
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil || n > maxWhole {
		return "", errors.New("want a whole number, 0 or more")
	}
	return strconv.FormatUint(n, 10), nil
}

func checkPriority(value string) (string, error) {
	if len(value) != 1 || value < "0" || value > "9" {
		return "", errors.New("want 0 to 9 (lower goes first)")
	}
	return value, nil
}

func checkFlag(value string) (string, error) {
	on, err := strconv.ParseBool(value)
	switch {
	case err != nil:
		return "", errors.New("want true or false")
	case on:
		return "1", nil
	}
	return "", nil
}

// maxUSD is where nano-dollars begin to lose digits in a Lua number.
const maxUSD = 9_000_000

var usdForm = regexp.MustCompile(`^[0-9]{1,7}(\.[0-9]{1,9})?$`)

func checkUSD(value string) (string, error) {
	if !usdForm.MatchString(value) {
		return "", errors.New("want dollars, as in 50 or 0.25")
	}
	if usd, _ := strconv.ParseFloat(value, 64); usd > maxUSD {
		return "", errors.New("more than 9,000,000 dollars cannot be counted exactly")
	}
	return value, nil
}

var periodForm = regexp.MustCompile(`^(day|week|month|total|[1-9][0-9]{0,6}[smhd])$`)

func checkPeriod(value string) (string, error) {
	if !periodForm.MatchString(value) {
		return "", errors.New("want day, week, month, total, or a length as in 12h or 30d")
	}
	return value, nil
}

// checkBudgets takes a list of amount/period, separated by spaces.
func checkBudgets(value string) (string, error) {
	items := strings.Fields(value)
	for _, item := range items {
		usd, period, ok := strings.Cut(item, "/")
		if !ok {
			return "", errors.New("want dollars per period, as in 50/month, 5/day or 100/30d")
		}
		if _, err := checkUSD(usd); err != nil {
			return "", err
		}
		if _, err := checkPeriod(period); err != nil {
			return "", err
		}
	}
	return strings.Join(items, " "), nil
}

// maxModels bounds a list that every admission walks through.
const maxModels = 64

func checkModels(value string) (string, error) {
	return checkList(value, maxModels, regexp.MustCompile(`^[^\s,]{1,128}$`), "model names or patterns without spaces")
}

func checkTags(value string) (string, error) {
	return checkList(value, 8, safeID, "tags of letters, digits and . _ @ -")
}

func checkList(value string, most int, form *regexp.Regexp, what string) (string, error) {
	items := strings.Split(value, ",")
	for i, item := range items {
		items[i] = strings.TrimSpace(item)
		if !form.MatchString(items[i]) || !utf8.ValidString(item) {
			return "", fmt.Errorf("want %s, separated by commas", what)
		}
	}
	if len(items) > most {
		return "", fmt.Errorf("at most %d", most)
	}
	return strings.Join(items, ","), nil
}

// checkMoment takes a moment to come (RFC 3339, a date, whose end in UTC is meant, or milliseconds since 1970 as stored)
// or a length of time from now on.
func checkMoment(value string, now time.Time) (string, error) {
	t, err := parseMoment(value)
	if err != nil {
		length, ok := ParseLength(value)
		if !ok || length == 0 {
			return "", errors.New("want a length as in 720h or 30d, a time as in 2026-12-31T00:00:00Z, or the last day as in 2026-12-31")
		}
		t = now.Add(length)
	}
	if !t.After(now) {
		return "", errors.New("is in the past")
	}
	return strconv.FormatInt(t.UnixMilli(), 10), nil
}

// parseMoment reads the forms of checkMoment that are no length.
func parseMoment(value string) (time.Time, error) {
	if ms, err := strconv.ParseInt(value, 10, 64); err == nil && ms > 0 {
		return time.UnixMilli(ms).UTC(), nil
	}
	if day, err := time.Parse(time.DateOnly, value); err == nil {
		return day.AddDate(0, 0, 1), nil
	}
	return time.Parse(time.RFC3339, value)
}

// ParseLength reads a length of 0 or more, as Go writes it or in whole days ("30d").
func ParseLength(value string) (length time.Duration, ok bool) {
	if days, whole := strings.CutSuffix(value, "d"); whole {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * 24 * time.Hour, err == nil
	}
	length, err := time.ParseDuration(value)
	return length, err == nil && length >= 0
}

var tenantForm = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)

// checkRef judges the names in r.
func checkRef(r Ref) error {
	if !tenantForm.MatchString(r.Tenant) {
		return invalidf("tenant %q: want 1 to 63 of a-z, 0-9, _ and -, the first a letter or digit", r.Tenant)
	}
	if r.Kind == KindTenant {
		return nil
	}
	if _, err := checkText(r.ID); err != nil {
		return invalidf("%s %q: %s", r.Kind, r.ID, err)
	}
	return nil
}

// checkOwner takes the id of a team or user and returns it as it stands in key names, which is where admissions use it.
func checkOwner(value string) (string, error) {
	value, err := checkText(value)
	return SafeID(value), err
}

// checkText takes names and ids that people give: any text that fits one line.
func checkText(value string) (string, error) {
	if value == "" || len(value) > 256 || !utf8.ValidString(value) || strings.ContainsFunc(value, unicode.IsControl) {
		return "", errors.New("want 1 to 256 bytes of text without control characters")
	}
	return value, nil
}
