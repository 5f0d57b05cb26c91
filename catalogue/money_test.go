package catalogue_test

import (
	"math"
	"math/big"
	"testing"

	"github.com/headgate/headgate/catalogue"
	"pgregory.net/rapid"
)

func TestCostNUSD(t *testing.T) {
	t.Parallel()
	m := catalogue.Model{Priced: true, Price: catalogue.Price{Prompt: 2_000_000, Cached: 500_000, Completion: 6_000_000}}
	for _, c := range []struct{ prompt, cached, completion, want int64 }{
		{10, 0, 3, 38_000}, // 38 µUSD
		{10, 4, 3, 32_000}, // four of them at the cached price
		{10, 99, 0, 5_000}, // no more cached than there are
		{-1, -1, -1, 0},
		{0, 0, 0, 0},
		{math.MaxInt64, 0, math.MaxInt64, catalogue.MaxNUSD},
	} {
		if got := m.CostNUSD(c.prompt, c.cached, c.completion); got != c.want {
			t.Errorf("%+v: got %d", c, got)
		}
	}
	cheap := catalogue.Model{Priced: true, Price: catalogue.Price{Prompt: 1, Cached: 1, Completion: 1}}
	for pico, want := range map[int64]int64{1: 0, 499: 0, 500: 1, 999: 1, 1499: 1, 1500: 2} {
		if got := cheap.CostNUSD(pico, 0, 0); got != want {
			t.Errorf("%d pico-dollars: got %d nano-dollars, want %d", pico, got, want)
		}
	}
	for pico, want := range map[int64]int64{0: 0, 1: 1, 1000: 1, 1001: 2} {
		if got := cheap.HoldNUSD(pico, 0); got != want {
			t.Errorf("holding %d pico-dollars: got %d nano-dollars, want %d", pico, got, want)
		}
	}
	free := catalogue.Model{}
	if free.CostNUSD(5, 0, 5) != 0 || free.HoldNUSD(5, 5) != 0 {
		t.Error("a model without price costs something")
	}
}

func TestHoldCoversEveryCost(t *testing.T) { // I2
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		amount := rapid.OneOf(rapid.Int64Range(0, 10_000), rapid.Int64Range(0, math.MaxInt64))
		price := rapid.OneOf(rapid.Int64Range(0, 2_000), rapid.Int64Range(0, 10_000_000_000))
		m := catalogue.Model{Priced: true}
		m.Price.Prompt, m.Price.Completion = price.Draw(t, "prompt price"), price.Draw(t, "completion price")
		m.Price.Cached = rapid.Int64Range(0, m.Price.Prompt).Draw(t, "cached price")
		boundP, boundC := amount.Draw(t, "prompt bound"), amount.Draw(t, "output bound")
		p := rapid.Int64Range(0, boundP).Draw(t, "prompt")
		c := rapid.Int64Range(0, boundC).Draw(t, "completion")
		cached := amount.Draw(t, "cached")
		cost, hold := m.CostNUSD(p, cached, c), m.HoldNUSD(boundP, boundC)
		if cost > hold || cost < 0 || hold > catalogue.MaxNUSD {
			t.Fatalf("cost %d, hold %d", cost, hold)
		}
		if want := exact(m, p, min(cached, p), c); cost != want {
			t.Fatalf("cost %d, exactly %d", cost, want)
		}
	})
}

func exact(m catalogue.Model, prompt, cached, completion int64) int64 {
	product := func(a, b int64) *big.Int { return new(big.Int).Mul(big.NewInt(a), big.NewInt(b)) }
	sum := product(prompt-cached, m.Price.Prompt)
	sum.Add(sum, product(cached, m.Price.Cached))
	sum.Add(sum, product(completion, m.Price.Completion))
	sum.Add(sum, big.NewInt(500)).Div(sum, big.NewInt(1000))
	if !sum.IsInt64() || sum.Int64() > catalogue.MaxNUSD {
		return catalogue.MaxNUSD
	}
	return sum.Int64()
}

func TestUSD(t *testing.T) {
	for nusd, want := range map[int64]string{0: "0", 1: "0.000000001", 5e9: "5", 1_250_000_000: "1.25", -500_000_000: "-0.5", -2_500_000_000: "-2.5",
		catalogue.MaxNUSD: "9007199.254740991"} {
		if got := catalogue.USD(nusd); got != want {
			t.Errorf("%d: %s, want %s", nusd, got, want)
		}
	}
}
