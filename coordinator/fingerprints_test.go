package coordinator_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/headgate/headgate/coordinator"
)

// chat is a prompt of messages of so many bytes each, drawn from a seed: the same seed, the same bytes.
func chat(seed uint64, messages ...int) coordinator.PromptParts {
	r := rand.New(rand.NewPCG(seed, 1))
	p := coordinator.PromptParts{Model: "m"}
	for _, n := range messages {
		for range n {
			p.Text = append(p.Text, byte('a'+r.IntN(26)))
		}
		p.Ends = append(p.Ends, coordinator.MessageEnd{At: len(p.Text)})
	}
	p.Tokens = int64(len(p.Text) / 4)
	return p
}

// shared is how many fingerprints both have, and the tokens of the longest of them.
func shared(a, b coordinator.PromptParts) (n int, tokens int64) {
	x, y := coordinator.Fingerprints(a), coordinator.Fingerprints(b)
	for _, f := range x.Prints {
		if slices.ContainsFunc(y.Prints, func(g coordinator.Fingerprint) bool { return g.Hash == f.Hash }) {
			n, tokens = n+1, f.Tokens
		}
	}
	if n > 0 && x.Bucket != y.Bucket {
		panic("prompts that share a fingerprint lie in two buckets")
	}
	return n, tokens
}

// The next turn of a conversation finds all of the turn before it.
func TestFingerprintsFollowAConversation(t *testing.T) {
	t.Parallel()
	for _, turn := range [][]int{{1500}, {3000, 700}, {200, 900, 100, 5000, 80, 90}, {2048}, {100_000, 3}} {
		before := chat(7, turn...)
		next := chat(7, append(slices.Clone(turn), 500, 60)...)
		if n, tokens := shared(before, next); n == 0 || tokens != before.Tokens {
			t.Errorf("%v: %d shared, %d of %d tokens", turn, n, tokens, before.Tokens)
		}
	}
}

// The next turn finds the answer warm too, where it follows what was asked: neither a user's message nor an edited beginning
// is taken for one.
func TestFingerprintsCountTheAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		next    []int  // messages behind the first turn's
		answers string // of all of them, a for the model's
		warm    int    // bytes
	}{
		"an answer and a question": {[]int{500, 60}, "uuau", 4200},
		"an answer in pieces":      {[]int{500, 300, 60}, "uuaau", 4500},
		"only an answer":           {[]int{500}, "uua", 4200},
		"a long answer":            {[]int{9000, 60}, "uuau", 12_700},
		"nobody's":                 {[]int{500, 60}, "uuuu", 3700},
		"an answer further on":     {[]int{60, 500}, "uuua", 3700},
		"longer ago than 4 ends":   {[]int{500, 60, 60, 60}, "uuauuu", 2048},
	} {
		before := chat(7, 3000, 700)
		next := chat(7, append([]int{3000, 700}, c.next...)...)
		for i := range next.Ends {
			next.Ends[i].Answer = c.answers[i] == 'a'
		}
		if _, tokens := shared(next, before); tokens != int64(c.warm/4) {
			t.Errorf("%s: %d tokens, want %d", name, tokens, c.warm/4)
		}
		if prints := coordinator.Fingerprints(next).Prints; prints[len(prints)-1].Tokens != next.Tokens {
			t.Errorf("%s: %+v of %d tokens", name, prints, next.Tokens)
		}
	}
}

// Two questions about one document share it to the last doubled block.
func TestFingerprintsFindASharedDocument(t *testing.T) {
	t.Parallel()
	a, b := chat(3, 70_000), chat(3, 70_000)
	a.Text, b.Text = append(a.Text, "What is it?"...), append(b.Text, "Who wrote it, and when?"...)
	a.Ends, b.Ends = []coordinator.MessageEnd{{At: len(a.Text)}}, []coordinator.MessageEnd{{At: len(b.Text)}}
	if _, tokens := shared(a, b); tokens < 65_536/4-5 || tokens > 65_536/4+5 {
		t.Fatalf("%d tokens", tokens)
	}
}

// A system prompt that is no message counts like the beginning of the prompt: two short questions below a long one share it.
func TestFingerprintsFollowASystemPrompt(t *testing.T) {
	t.Parallel()
	a, b := chat(5, 300), chat(6, 300)
	a.Lead = chat(4, 40_000).Text
	b.Lead = a.Lead
	a.Tokens, b.Tokens = 10_075, 10_075
	if n, tokens := shared(a, b); n == 0 || tokens < 32_768/4-5 || tokens > 32_768/4+5 {
		t.Fatalf("%d shared, %d tokens", n, tokens)
	}
	whole := a
	whole.Lead, whole.Text, whole.Ends = nil, append(append([]byte{}, a.Lead...), a.Text...), []coordinator.MessageEnd{{At: len(a.Lead) + len(a.Text)}}
	if n, tokens := shared(a, whole); tokens != a.Tokens {
		t.Fatalf("it is not read as one with what follows: %d shared, %d tokens", n, tokens)
	}
}

func TestFingerprintsKeepApartWhatMayNotShare(t *testing.T) {
	t.Parallel()
	base := chat(1, 4000, 4000)
	for name, change := range map[string]func(p *coordinator.PromptParts){
		"model":      func(p *coordinator.PromptParts) { p.Model = "n" },
		"salt":       func(p *coordinator.PromptParts) { p.Salt = "s" },
		"tools":      func(p *coordinator.PromptParts) { p.Tools = []byte(`[{}]`) },
		"system":     func(p *coordinator.PromptParts) { p.Lead = []byte(`"x"`) },
		"first byte": func(p *coordinator.PromptParts) { p.Text = slices.Clone(p.Text); p.Text[0]++ },
		"moved text": func(p *coordinator.PromptParts) { p.Model, p.Salt = "", "m" },
	} {
		other := base
		change(&other)
		if n, _ := shared(base, other); n != 0 {
			t.Errorf("%s: %d shared", name, n)
		}
	}
	late := base
	late.Text = slices.Clone(base.Text)
	late.Text[3000]++
	if n, tokens := shared(base, late); n != 1 || tokens != 512 {
		t.Errorf("changed at 3000: %d shared, %d tokens; want the first 2048 bytes", n, tokens)
	}
}

func TestFingerprintsAreBoundedAndOrdered(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var turns []int
		for range 1 + r.IntN(40) {
			turns = append(turns, r.IntN(1<<r.IntN(16)))
		}
		p := chat(r.Uint64(), turns...)
		prints := coordinator.Fingerprints(p).Prints
		if len(prints) > 12 || len(p.Text) < 1024 && len(prints) > 0 || len(p.Text) >= 2048 && len(prints) == 0 {
			t.Fatalf("%v: %d fingerprints", turns, len(prints))
		}
		for i, f := range prints {
			if f.Tokens > p.Tokens || i > 0 && f.Tokens < prints[i-1].Tokens {
				t.Fatalf("%v: %+v of %d tokens", turns, prints, p.Tokens)
			}
		}
	}
	// Offsets that are none are passed over.
	p := chat(5, 3000)
	p.Ends = []coordinator.MessageEnd{{At: -4}, {At: 10}, {At: 2900}, {At: 2500}, {At: 99_999}}
	if prints := coordinator.Fingerprints(p).Prints; len(prints) != 2 { // 2048, 2900
		t.Fatalf("%+v", prints)
	}
}

func BenchmarkFingerprints(b *testing.B) {
	for _, size := range []int{4_000, 100_000, 1_000_000} {
		p := chat(1, size/2, size/4, size/8, size/8)
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				coordinator.Fingerprints(p)
			}
		})
	}
}
