package check

import (
	"fmt"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/headgate/headgate/"

// allowance is a row of the import table.
type allowance struct {
	all    bool
	but    []string // with all
	listed []string
}

// may reports whether the row lets a package be imported.
func (a allowance) may(imported string) bool {
	for _, p := range a.but {
		if within(imported, p) {
			return false
		}
	}
	if a.all {
		return true
	}
	for _, p := range a.listed {
		if within(imported, p) {
			return true
		}
	}
	return false
}

func within(pkg, tree string) bool { return pkg == tree || strings.HasPrefix(pkg, tree+"/") }

var aside = regexp.MustCompile(`\([^)]*\)|` + "`")

// importTable reads the markdown table with the head "| package | may import |". Words: a list of packages, "all", "all but
// x and y", "none of ours"; what stands in parentheses is left out.
func importTable(page string) (map[string]allowance, error) {
	_, rest, ok := strings.Cut(page, "| package | may import |\n")
	if !ok {
		return nil, fmt.Errorf("no table with the head | package | may import |")
	}
	table := make(map[string]allowance)
	for line := range strings.Lines(rest) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			break
		}
		if strings.HasPrefix(line, "|--") || strings.HasPrefix(line, "| --") {
			continue
		}
		cells := strings.Split(strings.Trim(aside.ReplaceAllString(line, ""), "|"), "|")
		if len(cells) != 2 {
			return nil, fmt.Errorf("row %q", line)
		}
		a := parseAllowance(strings.TrimSpace(cells[1]))
		for _, pkg := range list(cells[0]) {
			if _, twice := table[pkg]; twice {
				return nil, fmt.Errorf("%s stands twice in the table", pkg)
			}
			table[pkg] = a
		}
	}
	return table, nil
}

func parseAllowance(cell string) allowance {
	if but, ok := strings.CutPrefix(cell, "all but "); ok {
		return allowance{all: true, but: list(strings.ReplaceAll(but, " and ", ","))}
	}
	switch cell {
	case "all":
		return allowance{all: true}
	case "none of ours":
		return allowance{}
	}
	return allowance{listed: list(cell)}
}

func list(cell string) []string {
	var out []string
	for _, p := range strings.Split(cell, ",") {
		if p = strings.TrimSpace(p); p != "" {
			out = append(out, p)
		}
	}
	return out
}

// row is the most specific row that covers a package.
func row(table map[string]allowance, pkg string) (allowance, bool) {
	for tree := pkg; tree != "." && tree != "/"; tree = path.Dir(tree) {
		if a, ok := table[tree]; ok {
			return a, true
		}
	}
	return allowance{}, false
}

// fault says what is wrong with an import, "" if nothing is.
func fault(table map[string]allowance, pkg, imported string) string {
	a, ok := row(table, pkg)
	switch {
	case !ok:
		return "has no row in the import table"
	case within(imported, "bench/lab") && !within(pkg, "bench"):
		return "imports bench/lab, which is for tests and benchmarks only"
	case within(pkg, "gateway/protocol") && within(imported, "gateway/protocol"), a.may(imported):
		return ""
	}
	return "may not import " + imported
}

func TestImportsFollowTheTable(t *testing.T) {
	table, err := importTable(read(t, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal("ARCHITECTURE.md: ", err)
	}
	seen := 0
	for _, file := range files(t, ".go") {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := row(table, path.Dir(file)); !ok {
			t.Errorf("%s: %s has no row in the import table", file, path.Dir(file))
		}
		for _, i := range f.Imports {
			imported, _ := strconv.Unquote(i.Path.Value)
			if strings.Contains(imported, "alicebob/miniredis") && path.Dir(file) != "cmd/headgate" {
				t.Errorf("%s: the embedded store is for `headgate dev` and for tests", file)
			}
			if ours, ok := strings.CutPrefix(imported, module); ok {
				seen++
				if what := fault(table, path.Dir(file), ours); what != "" {
					t.Errorf("%s: %s %s", file, path.Dir(file), what)
				}
			}
		}
	}
	if seen < 10 {
		t.Errorf("only %d imports among ours were looked at", seen)
	}
	for pkg := range table {
		if matches, _ := filepath.Glob(filepath.Join(root, pkg)); len(matches) == 0 {
			t.Errorf("the import table names %s, which does not exist", pkg)
		}
	}
}

func TestImportTable(t *testing.T) {
	table, err := importTable("text\n| package | may import |\n|---|---|\n| cmd/headgate | all (it alone builds things) |\n" +
		"| gateway | gateway/protocol, pipeline |\n| bench/engine (used by `dev`) | gateway/protocol |\n" +
		"| bench (load) | all but cmd and admin |\n| pipeline, gateway/protocol | none of ours |\n\n| other | table |\n")
	if err != nil || len(table) != 6 {
		t.Fatalf("%v %v", table, err)
	}
	for _, c := range []struct {
		pkg, imported string
		ok            bool
	}{
		{"cmd/headgate", "admin", true},
		{"gateway", "gateway/protocol/sse", true},
		{"gateway", "coordinator", false},
		{"gateway/protocol/sse", "gateway/protocol", true},
		{"gateway/protocol", "pipeline", false},
		{"gateway/protocol", "gateway", false},
		{"bench/engine", "pipeline", false},
		{"bench/replay", "coordinator", true},
		{"bench", "cmd/headgate", false},
		{"bench/fleet", "bench/lab", true},
		{"cmd/headgate", "bench/lab", false},
		{"pipeline", "gateway", false},
		{"unknown", "pipeline", false},
	} {
		if what := fault(table, c.pkg, c.imported); (what == "") != c.ok {
			t.Errorf("%s imports %s: %q", c.pkg, c.imported, what)
		}
	}
	if _, err := importTable("no table"); err == nil {
		t.Error("a page without a table passes")
	}
}
