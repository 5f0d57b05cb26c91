package coordinator

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/lab"
)

// TestPeriodNamesAreTheScripts: what is shown is read where the scripts count.
func TestPeriodNamesAreTheScripts(t *testing.T) {
	part, err := os.ReadFile("../scripts/lua/period.part.lua")
	if err != nil {
		t.Fatal(err)
	}
	script := string(part) + "\nreturn period_name(ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])) or ''"
	redis := lab.SharedRedis(t)
	created := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	for _, now := range []time.Time{
		time.Date(2026, 11, 30, 23, 59, 59, 0, time.UTC), time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2024, 12, 30, 12, 0, 0, 0, time.UTC),
		time.Date(2028, 2, 29, 1, 2, 3, 0, time.UTC), created, created.Add(-time.Second), created.Add(30 * 24 * time.Hour),
	} {
		for _, spec := range []string{"day", "week", "month", "total", "10s", "12h", "30d", "7m", "year", "0d", ""} {
			for _, from := range []time.Time{created, {}} {
				at := "0"
				if !from.IsZero() {
					at = strconv.FormatInt(from.Unix(), 10)
				}
				want := strings.TrimSpace(redis.CLI("EVAL", script, "0", spec, strconv.FormatInt(now.Unix(), 10), at))
				if got := periodName(spec, now, from); got != want {
					t.Errorf("%s of %v counted from %v: %q, the scripts say %q", spec, now, from, got, want)
				}
			}
		}
	}
}

func TestNanoDollars(t *testing.T) {
	for usd, want := range map[string]int64{"50": 50e9, "0": 0, "0.25": 25e7, "9000000": 9e15, "1.000000001": 1_000_000_001} {
		if got := nanoDollars(usd); got != want {
			t.Errorf("%s: %d", usd, got)
		}
	}
}
