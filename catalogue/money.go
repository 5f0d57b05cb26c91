package catalogue

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// MaxNUSD is the largest cost there is, in nano-dollars: the last whole number
// a double holds exactly, and more than any budget may be. A figure that would
// be larger stays here, so that no script of the ledger ever overflows.
const MaxNUSD int64 = 1<<53 - 1

const picoPerNano = 1000

// CostNUSD is what a request cost, in nano-dollars: prompt tokens, of which
// cached were found in the engine's cache, and completion tokens. The sum is
// made in pico-dollars and rounded once, half up. Figures below 0 count as 0,
// more cached than prompt tokens as all of them. A model that is not Priced
// costs 0.
func (m *Model) CostNUSD(prompt, cached, completion int64) int64 {
	prompt, completion = max(prompt, 0), max(completion, 0)
	cached = min(max(cached, 0), prompt)
	var s picoSum
	s.add(prompt-cached, m.Price.Prompt)
	s.add(cached, m.Price.Cached)
	s.add(completion, m.Price.Completion)
	return s.nano(picoPerNano / 2)
}

// HoldNUSD is what must be set aside for a request of at most these tokens, in
// nano-dollars, rounded up: nothing within the bounds costs more. (I2)
func (m *Model) HoldNUSD(promptBound, outputBound int64) int64 {
	var s picoSum
	s.add(max(promptBound, 0), m.Price.Prompt)
	s.add(max(outputBound, 0), m.Price.Completion)
	return s.nano(picoPerNano - 1)
}

// picoSum is a sum of pico-dollars in 128 bits. Three products of two positive
// int64 fit.
type picoSum struct{ hi, lo uint64 }

func (s *picoSum) add(tokens, price int64) {
	hi, lo := bits.Mul64(uint64(tokens), uint64(price))
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, lo, 0)
	s.hi, _ = bits.Add64(s.hi, hi, carry)
}

// nano divides by 1000 after adding round, and stops at MaxNUSD.
func (s picoSum) nano(round uint64) int64 {
	lo, carry := bits.Add64(s.lo, round, 0)
	hi := s.hi + carry
	if hi >= picoPerNano {
		return MaxNUSD
	}
	quotient, _ := bits.Div64(hi, lo, picoPerNano)
	return int64(min(quotient, uint64(MaxNUSD)))
}

// USD writes nano-dollars as dollars, exactly and without zeros at the end.
func USD(nusd int64) string {
	text := strconv.FormatInt(nusd/1e9, 10)
	if nusd < 0 && nusd > -1e9 {
		text = "-0"
	}
	if part := max(nusd, -nusd) % 1e9; part != 0 {
		text += "." + strings.TrimRight(fmt.Sprintf("%09d", part), "0")
	}
	return text
}
