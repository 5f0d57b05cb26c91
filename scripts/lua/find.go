package lua

import (
	"errors"

	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

var findScript = read("find")

// Page is one page of key names. Next "0": that was the last.
type Page struct {
	Next string
	Keys []string
}

// Find declares the look-up of one page of the keys named root + pattern. cursor "0" is the first page.
func Find(b *pipeline.Batch, s *pipeline.Store, root, cursor, pattern string) *pipeline.Handle[Page] {
	return pipeline.Declare(b, pipeline.Command{Store: s, Script: findScript, Key: root, Args: []string{cursor, pattern}},
		func(m rueidis.RedisMessage) (Page, error) {
			list, err := m.AsStrSlice()
			if err != nil {
				return Page{}, err
			}
			if len(list) == 0 {
				return Page{}, errors.New("find: empty reply")
			}
			return Page{Next: list[0], Keys: list[1:]}, nil
		})
}
