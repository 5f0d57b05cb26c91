package bench

import (
	"fmt"
	"strings"
)

// published are the Redis round trips per request that LiteLLM published of itself, before and after a rework.
var published = map[string]string{
	"chat":                                  "22 → 8",
	"chat, streamed":                        "24 → 8",
	"cache hit":                             "18 → 7",
	"first after HSET of the team's policy": "46 → 16 (first after its 60-second copies expire)",
}

// waitsTable is the table of bench/README.md: a row for each shape, a column for each topology.
func waitsTable(waits map[string]map[string]string) string {
	topologies := []string{"one Redis", "a second for the cache", "cluster"}
	var b strings.Builder
	fmt.Fprintf(&b, "| request | headgate: %s | LiteLLM, before → after |\n", strings.Join(topologies, " | "))
	fmt.Fprintf(&b, "|---|%s---|\n", strings.Repeat("---|", len(topologies)))
	var names []string
	for _, s := range shapes {
		names = append(names, s.name)
	}
	for _, name := range append(names, queuedShape) {
		fmt.Fprintf(&b, "| %s |", name)
		for _, topology := range topologies {
			fmt.Fprintf(&b, " %s |", waits[topology][name])
		}
		fmt.Fprintf(&b, " %s |\n", published[name])
	}
	return b.String()
}
