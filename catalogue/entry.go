package catalogue

import (
	"fmt"
	"time"
)

const (
	maxTokens   = 1 << 30
	maxPerImage = 1 << 20 // tokens
	maxCacheTTL = 30 * 24 * time.Hour
	maxCacheLen = 256 << 20
	maxRPM      = 1_000_000
	// maxPriceUSD is per million tokens. Nobody sells tokens at a cent each: it
	// is a slip of the unit.
	maxPriceUSD = 10_000
	maxUnit     = 1_000_000 // MU
)

// readFile returns the file's models in order, and notes every fault.
func readFile(data []byte, faults *faultList) (entries []*entry) {
	defer func() {
		// The tree of a file that is not quite YAML may lack nodes.
		if recover() != nil {
			faults.add(0, "", "", "not YAML")
			entries = nil
		}
	}()
	for _, f := range parseTree(data, faults).fields {
		if f.name != "models" {
			faults.add(f.line, "", "", fmt.Sprintf("unknown field %q", clip(f.name)))
			continue
		}
		models, ok := f.tree.object(f.value, 0)
		if !ok {
			faults.add(f.line, "", "models", "must be a mapping of names to models")
		}
		for _, m := range models.fields {
			entries = append(entries, readModel(m))
		}
	}
	return entries
}

func readModel(f field) *entry {
	r := reader{field: f, model: f.name}
	m := Model{Name: f.name, Pool: PoolOf(f.name), ImageTokens: DefaultImageTokens, Units: DefaultUnits}
	r.each(func(r reader) {
		switch r.name {
		case "pool":
			m.Pool = r.pool()
		case "aliases":
			m.Aliases = r.texts()
		case "price":
			m.Price, m.Priced = r.price()
		case "max_output_tokens":
			m.MaxOutputTokens = r.whole(1, maxTokens)
		case "template_tokens":
			m.TemplateTokens = r.whole(0, maxTokens)
		case "image_tokens":
			m.ImageTokens = r.whole(0, maxPerImage)
		case "units":
			m.Units = r.units()
		case "cache":
			m.Cache = r.cache()
		case "fallbacks":
			m.Fallbacks = r.texts()
		case "providers":
			m.Providers = r.providers()
		default:
			r.unknown()
		}
	})
	return &entry{model: m, line: f.line}
}

// price reads USD per million tokens. prompt and completion must both be
// there: a figure that was forgotten is not a figure of 0.
func (r reader) price() (Price, bool) {
	if r.null() {
		return Price{}, false
	}
	p := Price{Prompt: -1, Cached: -1, Completion: -1}
	r.each(func(r reader) {
		switch r.name {
		case "prompt":
			p.Prompt = r.decimal(picoExponent, maxPriceUSD)
		case "cached":
			p.Cached = r.decimal(picoExponent, maxPriceUSD)
		case "completion":
			p.Completion = r.decimal(picoExponent, maxPriceUSD)
		default:
			r.unknown()
		}
	})
	if p.Prompt < 0 {
		r.fault("prompt is missing (0 = free)")
	}
	if p.Completion < 0 {
		r.fault("completion is missing (0 = free)")
	}
	if p.Cached < 0 {
		p.Cached = p.Prompt
	}
	if p.Cached > p.Prompt && p.Prompt >= 0 {
		// A hold counts every prompt token at the prompt price. (I2)
		r.fault("cached is above prompt")
	}
	return p, true
}

func (r reader) units() Units {
	u := DefaultUnits
	r.each(func(r reader) {
		switch r.name {
		case "request":
			u.Request = r.decimal(milliExponent, maxUnit)
		case "prompt":
			u.Prompt = r.decimal(milliExponent, maxUnit)
		case "cached":
			u.Cached = r.decimal(milliExponent, maxUnit)
		case "completion":
			u.Completion = r.decimal(milliExponent, maxUnit)
		case "image":
			u.Image = r.decimal(milliExponent, maxUnit)
		default:
			r.unknown()
		}
	})
	return u
}

func (r reader) cache() Cache {
	if r.null() {
		return Cache{}
	}
	c := Cache{MaxBytes: DefaultCacheBytes}
	r.each(func(r reader) {
		switch r.name {
		case "ttl":
			c.TTL = r.duration(time.Second, maxCacheTTL)
		case "max_bytes":
			c.MaxBytes = r.bytes(1, maxCacheLen)
		case "coalesce":
			c.Coalesce = r.yes()
		default:
			r.unknown()
		}
	})
	if c.TTL == 0 && !r.has("ttl") {
		r.fault("ttl is missing")
	}
	return c
}

func (r reader) providers() []Provider {
	nodes, ok := r.tree.list(r.value)
	if !ok {
		r.fault("must be a list")
	}
	var all []Provider
	for i, n := range nodes {
		one := r
		one.value, one.path = n, fmt.Sprintf("%s[%d]", r.path, i)
		if line := lineOf(r.tree.follow(n)); line > 0 {
			one.line = line
		}
		all = append(all, one.provider())
	}
	return all
}

func (r reader) provider() Provider {
	var p Provider
	r.each(func(r reader) {
		switch r.name {
		case "url":
			p.URL = r.url()
		case "keys_env":
			p.KeysEnv = r.texts()
			for _, name := range p.KeysEnv {
				if !envName.MatchString(name) {
					// Not quoted: somebody may have written the key itself here.
					r.fault("must be names of environment variables")
					break
				}
			}
		case "rpm":
			p.RPM = r.whole(0, maxRPM)
		default:
			r.unknown()
		}
	})
	if p.URL == "" && !r.has("url") {
		r.fault("url is missing")
	}
	return p
}
