package lua

import (
	"strconv"

	"github.com/headgate/headgate/pipeline"
	"github.com/redis/rueidis"
)

var editScript = read("edit")

// EditMode says in which state a record must be for an edit to apply.
type EditMode string

// Edit modes.
const (
	EditCreate EditMode = "create" // the record is not there
	EditEnsure EditMode = "ensure" // the same; a record that is there is no fault
	EditChange EditMode = "change" // the record is there
	EditRemove EditMode = "remove" // any
	EditFile   EditMode = "file"   // the record is there; only its index line is written
)

// EditArgs is one change of one directory record.
type EditArgs struct {
	Mode   EditMode
	Record string // suffix below the root; "": the tenant itself
	Index  string // suffix of the index; "": none
	Member string
	Value  string      // of the member; "": the index is a set
	Write  [][2]string // fields and values
	Remove []string    // fields
}

// argv is the edit as edit.lua documents it.
func (e EditArgs) argv() []string {
	args := make([]string, 0, 6+2*len(e.Write)+len(e.Remove))
	args = append(args, string(e.Mode), e.Record, e.Index, e.Member, e.Value, strconv.Itoa(len(e.Write)))
	for _, f := range e.Write {
		args = append(args, f[0], f[1])
	}
	return append(args, e.Remove...)
}

// Edit declares e below root. The reply is false when the record was not in the state the mode asks for; then nothing
// was changed.
func Edit(b *pipeline.Batch, s *pipeline.Store, root string, e EditArgs) *pipeline.Handle[bool] {
	return pipeline.Declare(b, pipeline.Command{Store: s, Script: editScript, Key: root, Args: e.argv()},
		func(m rueidis.RedisMessage) (bool, error) {
			n, err := m.AsInt64()
			return n == 1, err
		})
}
