package lua

import (
	"fmt"
	"testing"
	"time"
)

// Periods are the calendar's: names, ends, and the expiry of what counts in them, over leap years and ends of years.
func TestPeriods(t *testing.T) {
	t.Parallel()
	onAll(t, func(b *book) {
		created := time.Date(2072, 2, 28, 22, 30, 15, 0, time.UTC)
		for _, day := range []string{"2072-02-29", "2072-03-01", "2072-12-31", "2073-01-01", "2074-12-30", "2074-12-31", "2075-12-29",
			"2076-02-28", "2076-02-29", "2076-03-01", "2076-12-27", "2076-12-28", "2077-01-03", "2077-01-04", "2079-12-31", "2080-01-01",
			"2100-02-28", "2100-03-01"} {
			for _, clock := range []string{"00:00:00.000", "11:59:59.999", "23:59:59.999"} {
				at, err := time.Parse("2006-01-02 15:04:05.000", day+" "+clock)
				if err != nil {
					b.Fatal(err)
				}
				b.now = at.UnixMilli()
				midnight := at.Truncate(24 * time.Hour)
				year, week := at.ISOWeek()
				twelve := created.Add(at.Sub(created) / (12 * time.Hour) * (12 * time.Hour))
				for _, p := range []struct {
					spec, name string
					end        time.Time
				}{
					{"day", day, midnight.AddDate(0, 0, 1)},
					{"month", day[:7], time.Date(at.Year(), at.Month()+1, 1, 0, 0, 0, 0, time.UTC)},
					{"week", fmt.Sprintf("%04d-W%02d", year, week), midnight.AddDate(0, 0, 7-(int(at.Weekday())+6)%7)},
					{"12h", fmt.Sprintf("12h@%d", twelve.Unix()), twelve.Add(12 * time.Hour)},
				} {
					id := fmt.Sprintf("%s-%d-%s", day, at.Hour(), p.spec)
					b.hset(":key:"+id, "id", id, "created_at", decimal(created.UnixMilli()), "budget_usd", "0.000000001", "period", p.spec)
					b.hset("", "budgets", "1/total")
					b.admitted(key(id), hold(1))
					if r := b.refused(11, "key", key(id), hold(1)); r.ResetMS != p.end.UnixMilli()-b.now {
						b.Fatalf("%s %s: reset %d, want %d", at, p.spec, r.ResetMS, p.end.UnixMilli()-b.now)
					}
					if h := b.hash(":spend:key:" + id + ":" + p.name); h["reserved_nusd"] != "1" {
						b.Fatalf("%s %s: no counter %s: %v", at, p.spec, p.name, h)
					}
				}
			}
		}
	})
}
