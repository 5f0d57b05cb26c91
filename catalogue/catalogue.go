// Package catalogue is the models file: which public names exist, where they
// run, what they cost and how they are weighed.
//
// A Catalogue is immutable; a Store holds the current one and swaps it when the
// file changes.
//
// Invariants:
//
//	I1  A price is a whole number of pico-dollars per token; what is not is refused, never rounded.
//	I2  A hold is never smaller than the cost of what was held.
//	I3  An invalid file changes nothing.
//	I4  A name or alias stands for exactly one model.
//	I5  An error names every fault, each with its line, model and field, on one line.
package catalogue

import (
	"fmt"
	"slices"
	"time"

	"github.com/zeebo/xxh3"
)

// Catalogue is one valid models file. It is immutable and safe for concurrent
// use; the zero value knows no model.
type Catalogue struct {
	models  map[string]*Model // by public name
	targets map[string]*Model // by alias
	names   []string          // public names, sorted
}

// Model is one entry. A copy is handed out; what its slices point to must not
// be changed.
type Model struct {
	Name    string   // the public name, also when it was asked for by an alias
	Pool    string   // the backends that serve it
	Aliases []string // other names for it
	Priced  bool     // false: the cost of this model is unknown
	Price   Price    // zero when not Priced

	// MaxOutputTokens bounds an answer whose request names no cap. 0 = not
	// said here: the engine's max_model_len counts.
	MaxOutputTokens int64
	// TemplateTokens is what the chat template adds to every prompt.
	TemplateTokens int64
	// ImageTokens is the most prompt tokens one image may become.
	ImageTokens int64

	Units     Units
	Cache     Cache
	Fallbacks []string   // public names, in order of preference
	Providers []Provider // paid endpoints outside the fleet, in order of preference
}

// Price is in pico-dollars per token: 0.20 USD per million tokens is 200,000.
type Price struct {
	Prompt     int64
	Cached     int64 // prompt tokens found in the engine's cache; never above Prompt
	Completion int64
}

// Units weigh a request in thousandths of a model unit (MU): one for each
// request, token and image.
type Units struct {
	Request    int64
	Prompt     int64 // an uncached prompt token
	Cached     int64 // a prompt token found in the engine's cache
	Completion int64
	Image      int64
}

// DefaultUnits hold for a model whose entry names none, and for a model
// without an entry.
var DefaultUnits = Units{Request: 1000, Prompt: 10, Cached: 1, Completion: 40, Image: 20_000}

// DefaultImageTokens is Model.ImageTokens where the entry says nothing: more than
// most models make of an image they do not cut into tiles.
const DefaultImageTokens = 2048

// UnitsOrDefault is Units, or DefaultUnits for a model that has none.
func (m *Model) UnitsOrDefault() Units {
	if m.Units == (Units{}) {
		return DefaultUnits
	}
	return m.Units
}

// Cache says what may be kept of a model's answers. The zero value keeps nothing.
type Cache struct {
	TTL      time.Duration // 0 = no answer is kept
	MaxBytes int64         // larger answers are not kept
	Coalesce bool          // identical requests at once share one answer
}

// DefaultCacheBytes is Cache.MaxBytes where only a TTL is named.
const DefaultCacheBytes = 1 << 20

// Provider is an OpenAI-compatible endpoint outside the fleet. Its keys stay in
// the environment; the file only names the variables.
type Provider struct {
	URL     string
	KeysEnv []string
	RPM     int64 // requests per minute; 0 = no limit of our own
}

// Resolve finds a model by its name or an alias.
func (c *Catalogue) Resolve(name string) (Model, bool) {
	m, ok := c.models[name]
	if !ok {
		m, ok = c.targets[name]
	}
	if !ok {
		return Model{}, false
	}
	return *m, true
}

// Names returns the public names, sorted, without aliases.
func (c *Catalogue) Names() []string { return slices.Clone(c.names) }

// Unlisted is a model without an entry: served under its name, unpriced, with
// the default units, and with nothing kept of its answers.
func Unlisted(name, pool string) Model {
	return Model{Name: name, Pool: pool, ImageTokens: DefaultImageTokens, Units: DefaultUnits}
}

// PoolOf is the pool of a model for which nobody names one: its name. A
// character no pool name may have becomes '-', and a hash of the name is
// appended, so that two models never meet by accident.
func PoolOf(model string) string {
	if ValidPool(model) {
		return model
	}
	pool := []byte(model)
	for i, ch := range pool {
		if !poolByte(ch) {
			pool[i] = '-'
		}
	}
	if len(pool) > maxPool-9 {
		pool = pool[:maxPool-9]
	}
	return fmt.Sprintf("%s-%08x", pool, uint32(xxh3.HashString(model)))
}

const (
	maxPool = 128
	maxName = 256
)

// ValidName reports whether a model may have this name: 1 to 256 printable
// ASCII characters without space, comma, quotes, '*' and '|'.
func ValidName(name string) bool {
	if name == "" || len(name) > maxName {
		return false
	}
	for i := range len(name) {
		switch ch := name[i]; {
		case ch <= ' ' || ch >= 0x7f, ch == ',', ch == '"', ch == '\'', ch == '\\', ch == '*', ch == '|':
			return false
		}
	}
	return true
}

// ValidPool reports whether a pool may have this name: [A-Za-z0-9._/-]{1,128}.
func ValidPool(name string) bool {
	if name == "" || len(name) > maxPool {
		return false
	}
	for i := range len(name) {
		if !poolByte(name[i]) {
			return false
		}
	}
	return true
}

func poolByte(ch byte) bool {
	return 'a' <= ch && ch <= 'z' || 'A' <= ch && ch <= 'Z' || '0' <= ch && ch <= '9' ||
		ch == '.' || ch == '_' || ch == '/' || ch == '-'
}
