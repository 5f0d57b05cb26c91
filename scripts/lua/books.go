package lua

import (
	"fmt"

	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

var booksScript = read("books")

// CounterFigures are the fields of a spend counter as they stand there, "" for one that is missing.
type CounterFigures struct {
	Found                                                         bool
	SpentNUSD, ReservedNUSD, Requests, Prompt, Cached, Completion string
}

// BooksReply is what counters and reservations of a tenant say at one instant.
type BooksReply struct {
	NowMS        int64
	Last, Oldest string            // ids of the usage stream's last and first record; "": it has none
	Gone         int64             // records trimmed off the stream; -1: unknown
	Overdue      int64             // reservations whose deadline is more than a minute past
	Open         map[string]string // rid → claim
	Running      map[string]string // scope:id → running requests
	Doubtful     []string          // records of settlements that were not charged
	Figures      []CounterFigures  // of the counters asked for, in their order
}

// Books declares the reading of some spend counters below root, named <scope>:<id>:<period>, with all that must agree
// with them. It changes nothing.
func Books(b *pipeline.Batch, s *pipeline.Store, root string, counters []string) *pipeline.Handle[BooksReply] {
	return pipeline.Declare(b, pipeline.Command{Store: s, Script: booksScript, Key: root, Args: counters},
		func(m rueidis.RedisMessage) (BooksReply, error) {
			r, err := readBooks(m)
			if err == nil && len(r.Figures) != len(counters) {
				err = fmt.Errorf("%d rows for %d counters", len(r.Figures), len(counters))
			}
			if err != nil {
				return BooksReply{}, fmt.Errorf("books: %w", err)
			}
			return r, nil
		})
}

func readBooks(m rueidis.RedisMessage) (BooksReply, error) {
	f, err := array(m, 9)
	if err != nil {
		return BooksReply{}, err
	}
	d := fields{}
	r := BooksReply{NowMS: d.whole(f[0]), Gone: d.whole(f[3]), Overdue: d.whole(f[4]), Open: pairs(d.texts(f[5])),
		Running: pairs(d.texts(f[6])), Doubtful: d.texts(f[7])}
	r.Last, err = f[1].ToString()
	d.keep(err)
	r.Oldest, err = f[2].ToString()
	d.keep(err)
	rows, err := f[8].ToArray()
	d.keep(err)
	for _, row := range rows {
		var c CounterFigures
		if v := d.texts(row); len(v) == 6 {
			c = CounterFigures{true, v[0], v[1], v[2], v[3], v[4], v[5]}
		}
		r.Figures = append(r.Figures, c)
	}
	return r, d.err
}

// pairs is a hash from a flat list.
func pairs(list []string) map[string]string {
	m := make(map[string]string, len(list)/2)
	for i := 0; i+1 < len(list); i += 2 {
		m[list[i]] = list[i+1]
	}
	return m
}
