package engine

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Options of a simulated engine. The zero value is a small model called "sim" at real speed.
type Options struct {
	Models      []string // names served; the first is in ids and metrics; default "sim"
	Slots       int      // sequences in the batch at once (vLLM's max_num_seqs); default 256
	Speed       float64  // 1 = the profile's own time, 100 = a hundred times faster; default 1
	Profile     string   // a key of Profiles; default "8b-a100" (12 ms between tokens)
	MaxModelLen int      // tokens of prompt and output together; default 32768
	KVBlocks    int      // capacity of the KV cache in blocks of 16 tokens; default 27000
	MaxQueued   int      // requests running and waiting beyond which the engine answers 503; 0 = no limit, like vLLM's
	Priority    bool     // priority scheduling: lower `priority` first; without it a non-zero priority is a 400
	HideCached  bool     // leave prompt_tokens_details out of usage, as vLLM does by default
	APIKey      string   // demanded as a bearer token on /v1 paths; "" = none
	Seed        uint64   // shapes texts and output lengths
	ServerName  string   // Server header; default "uvicorn"
	Listen      string   // address for Start; default a port of 127.0.0.1 that can be listened on again, see package ports
}

// Profile holds the constants of the step formula in milliseconds of real time.
type Profile struct {
	Weights  float64 // W: reading the weights once per step
	Token    float64 // a: compute per token
	Context  float64 // c: per 1000 tokens of context held by decoding sequences
	Overhead float64 // o: launching a step
	Chunk    int     // tokens per step at most (max_num_batched_tokens)
}

// Profiles are fits to published measurements of vLLM.
var Profiles = map[string]Profile{
	"8b-h100":    {Weights: 6, Token: 0.022, Context: 0.056, Overhead: 1.5, Chunk: 8192},
	"8b-a100":    {Weights: 10, Token: 0.067, Context: 0.092, Overhead: 2, Chunk: 2048},
	"70b-2xh100": {Weights: 16, Token: 0.075, Context: 0.07, Overhead: 2.5, Chunk: 8192},
}

// StepMS is the time one step takes: tokens processed in it, and tokens of context held by the sequences that decode.
func (p Profile) StepMS(tokens, context int) float64 {
	return max(p.Weights, p.Token*float64(tokens)) + p.Context*float64(context)/1000 + p.Overhead
}

func (o Options) withDefaults() (Options, Profile, error) {
	if len(o.Models) == 0 {
		o.Models = []string{"sim"}
	}
	if o.Profile == "" {
		o.Profile = "8b-a100"
	}
	if o.ServerName == "" {
		o.ServerName = "uvicorn"
	}
	if o.Speed == 0 {
		o.Speed = 1
	}
	for value, fallback := range map[*int]int{&o.Slots: 256, &o.MaxModelLen: 32768, &o.KVBlocks: 27000} {
		if *value == 0 {
			*value = fallback
		}
	}
	profile, ok := Profiles[o.Profile]
	if !ok {
		return o, profile, fmt.Errorf("engine: profile %q is none of %s", o.Profile,
			strings.Join(slices.Sorted(maps.Keys(Profiles)), ", "))
	}
	if o.Speed < 0 || o.Slots < 0 || o.MaxModelLen < 2 || o.KVBlocks < 0 || o.MaxQueued < 0 {
		return o, profile, fmt.Errorf("engine: negative option in %+v", o)
	}
	if o.KVBlocks*blockTokens < o.MaxModelLen {
		return o, profile, fmt.Errorf("engine: %d KV blocks hold %d tokens, one request may have %d",
			o.KVBlocks, o.KVBlocks*blockTokens, o.MaxModelLen)
	}
	return o, profile, nil
}

// maxLag is how far the steps may fall behind their timetable before it is moved: at a high Speed a timer is coarser than
// a step, and catching up in bursts keeps the mean.
const maxLag = 50 * time.Millisecond
