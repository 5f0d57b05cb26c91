package main

import (
	"time"

	"github.com/headgate/headgate/coordinator"
)

type limitInJSON struct {
	Limit     int64 `json:"limit"`
	Used      int64 `json:"used"`
	Remaining int64 `json:"remaining"`
	ResetMS   int64 `json:"reset_ms"`
}

type budgetInJSON struct {
	shownSpend
	EndsAt string `json:"ends_at"` // "": never
}

type scopeInJSON struct {
	Scope    string         `json:"scope"`
	RedisKey string         `json:"redis_key"`
	Policy   bool           `json:"policy"`
	RPM      *limitInJSON   `json:"rpm"`
	TPM      *limitInJSON   `json:"tpm"`
	Parallel *limitInJSON   `json:"parallel"`
	Budgets  []budgetInJSON `json:"budgets"`
	Trouble  []string       `json:"trouble"`
}

type backendInJSON struct {
	Backend     string  `json:"backend"`
	Chosen      bool    `json:"chosen"`
	WhyNot      string  `json:"why_not"`
	Score       float64 `json:"score_s"`
	Backlog     float64 `json:"backlog_s"`
	External    float64 `json:"external_s"`
	Uncached    float64 `json:"uncached_prompt_s"`
	Output      float64 `json:"output_s"`
	Matched     int64   `json:"prefix_matched"`
	Slots       int64   `json:"slots"`
	Held        int64   `json:"held"`
	Others      int64   `json:"external"`
	KV          float64 `json:"kv_use"`
	CooldownEnd string  `json:"cooldown_until"`
}

// inJSON is what scripts read; every member is always there.
func (x explained) inJSON() map[string]any {
	state, text := x.verdict()
	out := map[string]any{"state": state, "verdict": text, "found_in": x.found.Where, "request": nil, "refusal": nil, "open": nil, "scopes_now": []scopeInJSON{}, "weighed_now": nil}
	if x.found.Where != "" {
		out["request"] = x.found.Record
		if x.found.Record.Refusal != nil {
			out["refusal"] = x.found.Record.Refusal
		}
	}
	if r := x.would; r != nil {
		out["refusal"] = coordinator.RefusalLine{By: r.By, For: r.For, Limit: r.Limit, Remaining: r.Remaining, ResetMS: r.ResetMS}
	}
	if o := x.found.Open; o != nil {
		out["open"] = map[string]any{"replica": o.Replica, "since": coordinator.FormatTime(o.Since), "pool": o.Pool, "backend": o.Backend,
			"attempt": o.Attempt, "ahead": o.Ahead, "waiting": o.Waiting}
	}
	scopes := []scopeInJSON{}
	for _, s := range x.scopes {
		scopes = append(scopes, scopeJSON(s))
	}
	out["scopes_now"] = scopes
	if x.place != nil {
		rows := []backendInJSON{}
		for _, b := range x.place.Backends {
			rows = append(rows, backendJSON(*x.place, b))
		}
		out["weighed_now"] = map[string]any{"mu": float64(x.place.MU) / 1000, "waiting": x.place.Waiting, "backends": rows, "without_the_model": append([]string{}, x.place.Others...)}
	}
	return out
}

func scopeJSON(s coordinator.ScopeState) scopeInJSON {
	limit := func(l *coordinator.LimitState) *limitInJSON {
		if l == nil {
			return nil
		}
		return &limitInJSON{l.Limit, l.Used, l.Left(), l.Reset.Milliseconds()}
	}
	out := scopeInJSON{Scope: s.Scope, RedisKey: s.RedisKey, Policy: s.Found, RPM: limit(s.RPM), TPM: limit(s.TPM), Parallel: limit(s.Parallel),
		Budgets: []budgetInJSON{}, Trouble: append([]string{}, s.Trouble()...)}
	for i, b := range s.Budgets {
		one := budgetInJSON{shownSpend: spendInJSON(b)}
		if end := s.BudgetEnds[i]; !end.IsZero() {
			one.EndsAt = coordinator.FormatTime(end)
		}
		out.Budgets = append(out.Budgets, one)
	}
	return out
}

func backendJSON(p coordinator.Outlook, b coordinator.Weighed) backendInJSON {
	backlog, others, prompt, output := p.Split(b)
	out := backendInJSON{Backend: b.Backend, Chosen: b.Chosen, WhyNot: b.WhyNot, Score: seconds(b.Score), Backlog: seconds(backlog), External: seconds(others),
		Uncached: seconds(prompt), Output: seconds(output), Matched: b.Matched, Slots: b.Slots, Held: b.Held, Others: b.External, KV: float64(b.KV) / 1e4}
	if !b.CooldownUntil.IsZero() {
		out.CooldownEnd = coordinator.FormatTime(b.CooldownUntil)
	}
	return out
}

func seconds(d time.Duration) float64 {
	return float64(d.Round(time.Millisecond).Milliseconds()) / 1000
}
