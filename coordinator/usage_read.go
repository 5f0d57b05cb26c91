package coordinator

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/headgate/headgate/pipeline"
)

// RecordLine is a usage record as it is read back, from a stream or a log; docs/usage.md says what its members mean.
type RecordLine struct {
	Time       time.Time    `json:"time"`
	RequestID  string       `json:"request_id"`
	RID        string       `json:"rid"`
	Replica    string       `json:"replica"`
	Tenant     string       `json:"tenant"`
	Team       string       `json:"team"`
	User       string       `json:"user"`
	KeyID      string       `json:"key_id"`
	EndUser    string       `json:"end_user"`
	Tags       []string     `json:"tags"`
	Route      string       `json:"route"`
	Model      string       `json:"model"`
	Pool       string       `json:"pool"`
	Backend    string       `json:"backend"`
	Attempts   int          `json:"attempts"`
	Status     int          `json:"status"`
	Outcome    string       `json:"outcome"`
	ErrorCode  string       `json:"error_code"`
	Stream     bool         `json:"stream"`
	Prompt     int64        `json:"prompt_tokens"`
	Cached     int64        `json:"cached_tokens"`
	Completion int64        `json:"completion_tokens"`
	Source     string       `json:"usage_source"`
	CostNUSD   *int64       `json:"cost_nusd"` // nil: the model has no price
	OverNUSD   int64        `json:"over_nusd"`
	MU         float64      `json:"mu"`
	Charged    []string     `json:"charged"`
	HeldTokens int64        `json:"held_tokens"`
	HeldNUSD   int64        `json:"held_nusd"`
	Refusal    *RefusalLine `json:"refusal"`
	Cache      string       `json:"cache"`
	Matched    int64        `json:"prefix_matched"`
	Candidates int          `json:"candidates"`
	ExpectedMS float64      `json:"expected_ms"`
	QueueMS    int64        `json:"queue_ms"`
	RedisMS    float64      `json:"redis_ms"`
	RoundTrips int          `json:"round_trips"`
	TTFTMS     float64      `json:"ttft_ms"`
	TPOTMS     float64      `json:"tpot_ms"`
	DurationMS float64      `json:"duration_ms"`
	Replaces   bool         `json:"replaces,omitempty"`
}

// RefusalLine is a Refusal as it is read back.
type RefusalLine struct {
	By        string `json:"by"`
	For       string `json:"for"`
	Limit     int64  `json:"limit"`
	Remaining int64  `json:"remaining"`
	ResetMS   int64  `json:"reset_ms"`
}

// ReadRecordLine reads one usage record.
func ReadRecordLine(text []byte) (RecordLine, error) {
	var r RecordLine
	if err := json.Unmarshal(text, &r); err != nil {
		return r, err
	}
	if r.RID == "" {
		return r, errors.New("no rid")
	}
	return r, nil
}

// UsageLog is one usage log; it is read once, line by line.
type UsageLog struct {
	Name string // in what is said of it
	From io.Reader
}

// maxLogLine bounds the memory one line can take.
const maxLogLine = 1 << 20

// errStop ends a walk before its end.
var errStop = errors.New("stop")

// lines calls fn with each line that is not empty, and its number; a line longer than maxLogLine comes cut.
func (l UsageLog) lines(ctx context.Context, fn func(n int, line []byte) error) error {
	in := bufio.NewReaderSize(l.From, maxLogLine)
	for n := 1; ; n++ {
		line, err := in.ReadSlice('\n')
		if ctx.Err() != nil {
			return ctx.Err()
		}
		long := errors.Is(err, bufio.ErrBufferFull)
		if err != nil && err != io.EOF && !long {
			return fmt.Errorf("%s: line %d: %w", l.Name, n, err)
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			if stop := fn(n, line); stop != nil {
				return stop
			}
		}
		for long {
			_, err = in.ReadSlice('\n')
			long = errors.Is(err, bufio.ErrBufferFull)
		}
		if err == io.EOF {
			return nil
		}
	}
}

// streamPage is how many records of a stream are asked for at a time.
const streamPage = 1000

// walkStream calls fn with the records of a tenant's stream behind the id `from` ("-": all), oldest first, and returns the
// id of the last.
func walkStream(ctx context.Context, store *pipeline.Store, tenant, from string, fn func(id string, record []byte) error) (last string, err error) {
	for last = from; ; {
		start := last
		if start != "-" {
			start = "(" + start
		}
		page, err := streamEntries(ctx, store, "XRANGE", UsageStream(tenant), start, "+")
		if err != nil {
			return last, err
		}
		for _, x := range page {
			last = x.ID
			if err := fn(x.ID, []byte(x.FieldValues["record"])); err != nil {
				return last, err
			}
		}
		if len(page) < streamPage {
			return last, nil
		}
	}
}

// walkStreamBack is walkStream from the newest record to the oldest.
func walkStreamBack(ctx context.Context, store *pipeline.Store, tenant string, fn func(record []byte) error) error {
	for end := "+"; ; {
		page, err := streamEntries(ctx, store, "XREVRANGE", UsageStream(tenant), end, "-")
		if err != nil {
			return err
		}
		for _, x := range page {
			end = "(" + x.ID
			if err := fn([]byte(x.FieldValues["record"])); err != nil {
				return err
			}
		}
		if len(page) < streamPage {
			return nil
		}
	}
}

func streamEntries(ctx context.Context, store *pipeline.Store, command, key, from, to string) ([]rueidis.XRangeEntry, error) {
	m, err := store.Do(ctx, command, key, from, to, "COUNT", strconv.Itoa(streamPage))
	if err == nil && !m.IsNil() {
		var page []rueidis.XRangeEntry
		if page, err = m.AsXRange(); err == nil {
			return page, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("usage stream: %w", err)
	}
	return nil, nil
}
