package coordinator_test

import (
	"encoding/json"
	"os"
	"regexp"
	"testing"

	"github.com/headgate/headgate/coordinator"
)

// TestUsagePageHasEveryField: docs/usage.md has each field of a usage line, and no other.
func TestUsagePageHasEveryField(t *testing.T) {
	text, err := os.ReadFile("../docs/usage.md")
	if err != nil {
		t.Fatal(err)
	}
	table := regexp.MustCompile(`(?s)\| field \|.*?\n\n`).Find(text)
	page := map[string]bool{}
	for _, row := range regexp.MustCompile(`(?m)^\| (.*?) \|`).FindAllSubmatch(table, -1) {
		for _, name := range regexp.MustCompile("`([a-z_]+)`").FindAllSubmatch(row[1], -1) {
			page[string(name[1])] = true
		}
	}
	var fields map[string]any
	if err := json.Unmarshal((&coordinator.Record{}).AppendJSON(nil), &fields); err != nil {
		t.Fatal(err)
	}
	for name := range fields {
		if !page[name] {
			t.Errorf("docs/usage.md lacks %s", name)
		}
	}
	for name := range page {
		if _, ok := fields[name]; !ok {
			t.Errorf("docs/usage.md has %s, which no line has", name)
		}
	}
}
