package lua

import (
	"fmt"
	"strconv"
	"strings"
)

// Claim is a reservation as claim.part.lua files it, apart from its state.
type Claim struct {
	Owner           string // through ClaimText
	AtMS            int64
	Tokens, Prompt  int64 // held tokens; of these, the prompt's estimate
	HoldNUSD        int64
	Scopes          string // scope:id:second:period[,period…] joined by ";"
	Tops            string // top-ups whose cells may still count; "-" none
	Output          int64  // granted tokens of output; 0: not held in tranches
	PricePico       int64  // of one output token, in tranches
	Key, Team, User string // "" none
	Label           string // through ClaimText
}

// Where fields of a claim stand in its text.
const (
	claimTokens = 3
	claimHold   = 5
	claimScopes = 6
	claimTops   = 7
	claimFields = 14
)

// cutClaim is the fields of a claim as they stand there: every request has its claim taken apart three times, and most of
// what is in it is wanted once.
func cutClaim(text string, f *[claimFields]string) error {
	rest, more := text, true
	for i := range f {
		if !more {
			return fmt.Errorf("claim of %d fields", i)
		}
		f[i], rest, more = strings.Cut(rest, " ")
	}
	if more || len(f[0]) != 1 {
		return fmt.Errorf("claim of %d fields or more", len(f))
	}
	return nil
}

// ParseClaim takes a claim apart.
func ParseClaim(text string) (c Claim, err error) {
	return c, c.parse(text)
}

// parse writes the claim into c; after an error c is as it was.
func (c *Claim) parse(text string) error {
	var f [claimFields]string
	if err := cutClaim(text, &f); err != nil {
		return err
	}
	var n [6]int64
	for i, at := range [6]int{2, claimTokens, 4, claimHold, 8, 9} {
		v, err := strconv.ParseInt(f[at], 10, 64)
		if err != nil {
			return fmt.Errorf("claim: %w", err)
		}
		n[i] = v
	}
	c.Owner, c.AtMS, c.Tokens, c.Prompt, c.HoldNUSD, c.Scopes, c.Tops = f[1], n[0], n[1], n[2], n[3], f[claimScopes], f[claimTops]
	c.Output, c.PricePico, c.Key, c.Team, c.User, c.Label = n[4], n[5], f[10], none(f[11]), none(f[12]), f[13]
	return nil
}

// String is the claim of an open reservation.
func (c Claim) String() string {
	return fmt.Sprintf("o %s %d %d %d %d %s %s %d %d %s %s %s %s", c.Owner, c.AtMS, c.Tokens, c.Prompt, c.HoldNUSD, c.Scopes,
		orPercent(c.Tops, "-"), c.Output, c.PricePico, c.Key, orPercent(c.Team, "%"), orPercent(c.User, "%"), c.Label)
}

// Charged is the spend counters of the claim, each as <scope>:<id>:<period>.
func (c Claim) Charged() []string { return chargedIn(c.Scopes) }

// ChargedBy is Charged of a claim's text; nil for a text that is no claim.
func ChargedBy(claim string) []string {
	var f [claimFields]string
	if cutClaim(claim, &f) != nil {
		return nil
	}
	return chargedIn(f[claimScopes])
}

func chargedIn(scopes string) []string {
	charged := make([]string, 0, 1+strings.Count(scopes, ";")+strings.Count(scopes, ","))
	var names strings.Builder // one piece of memory for all
	names.Grow(len(scopes))
	for scope := range strings.SplitSeq(scopes, ";") {
		name, _, periods := cutScope(scope)
		for period := range strings.SplitSeq(periods, ",") {
			charged = append(charged, joined(&names, name, ":", period))
		}
	}
	return charged
}

// appendScopes appends what settle.lua wants to know of each spend counter in a claim's scopes: the scope's name once, the
// period, the cell of its tokens.
func appendScopes(args []string, scopes string) []string {
	second, counts := "", "" // scopes are counted in the same second, nearly always
	for scope := range strings.SplitSeq(scopes, ";") {
		name, at, periods := cutScope(scope)
		cell := ""
		if of, counted := strings.CutSuffix(at, "t"); counted {
			if of != second {
				second, counts = of, "t"+of
			}
			cell = counts
		}
		for period := range strings.SplitSeq(periods, ",") {
			args = append(args, name, period, cell)
			name, cell = "", ""
		}
	}
	return args
}

// cutScope takes a scope of a claim apart: its name, the second it is counted in with a t where its tokens are, and its
// periods. A period may hold no colon, nor may the second before it.
func cutScope(scope string) (name, cell, periods string) {
	i := strings.LastIndexByte(scope, ':')
	name, periods = scope[:max(i, 0)], scope[i+1:]
	i = strings.LastIndexByte(name, ':')
	return name[:max(i, 0)], name[i+1:], periods
}

// joined is the parts as one string in b's memory.
func joined(b *strings.Builder, parts ...string) string {
	from := b.Len()
	for _, part := range parts {
		b.WriteString(part)
	}
	return b.String()[from:]
}

// isWhole is true for a figure as scripts write it: up to 9e15.
func isWhole(text string) bool {
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return false
		}
	}
	return 0 < len(text) && len(text) <= 16
}

func none(field string) string {
	if field == "%" {
		return ""
	}
	return field
}

func orPercent(field, empty string) string {
	if field == "" {
		return empty
	}
	return field
}

// ClaimText makes text fit into a claim: no space, no control character, never empty. JSON is the usual content.
func ClaimText(text string) string {
	if text == "" {
		return "%"
	}
	plain := true
	for i := range len(text) {
		if c := text[i]; c <= ' ' || c == '%' || c == 0x7f {
			plain = false
			break
		}
	}
	if plain {
		return text
	}
	out := make([]byte, 0, len(text)+16)
	for i := range len(text) {
		if c := text[i]; c <= ' ' || c == '%' || c == 0x7f {
			out = append(out, '%', hexDigits[c>>4], hexDigits[c&15])
		} else {
			out = append(out, c)
		}
	}
	return string(out)
}

const hexDigits = "0123456789abcdef"
