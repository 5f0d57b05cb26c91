// Command variants writes copies of the scanner that lack one check each, or have one more, into generated/: what a check
// costs is measured on the code that is used. It fails where the code has changed so that an edit no longer fits.
package main

import (
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"strings"
)

const (
	protocol = "github.com/headgate/headgate/gateway/protocol/"
	own      = "github.com/headgate/headgate/bench/scanners/generated/"
	source   = "../../gateway/protocol/"
)

// edit replaces old by new in one file; old stands there exactly once.
type edit struct{ file, old, new string }

var (
	noUTF8 = []edit{{"scan/scan.go", "if !utf8.Valid(body) {", "if false && !utf8.Valid(body) {"}}

	noNames = []edit{
		{"scan/scan.go", "if bytes.IndexByte(key, '\\\\') < 0 {", "if true {"},
		{"scan/scan.go", "if s.seen.has(f) {", "if false {"},
	}

	// A prompt's length, its images, and its messages' ends and authors are not needed to know what is asked for.
	noLengths = []edit{
		{"scan/size.go", "func (s *scanner) message() (author int) {",
			"func (s *scanner) message() (author int) {\n\ts.c.Skip()\n\treturn 0\n}\n\nfunc (s *scanner) measured() (author int) {"},
	}

	noEnds = append([]edit{
		{"scan/size.go", "func (s *scanner) messages() {", "func (s *scanner) messages() {\n\ts.c.Skip()\n}\n\nfunc (s *scanner) listed() {"},
	}, noLengths...)

	noStructure = []edit{{"lex/lex.go", "func Value(b []byte, i, above int) (end int, why string) {", `func Value(b []byte, i, above int) (end int, why string) {
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			if i = String(b, i); i < 0 {
				return len(b), OpenString
			}
			if depth == 0 {
				return i, ""
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i, ""
			}
			if depth--; depth == 0 {
				return i + 1, ""
			}
		case ',', ' ', '\n', '\r', '\t':
			if depth == 0 {
				return i, ""
			}
		}
		i++
	}
	return i, ""
}

func checked(b []byte, i, above int) (end int, why string) {`}}

	strictStrings = []edit{{"lex/lex.go", "if slashes&1 == 0 {\n\t\t\treturn end + 1", `if slashes&1 == 0 {
			for k := i + 1; k < end; k++ {
				if b[k] < ' ' {
					return -1
				}
				if b[k] != '\\' {
					continue
				}
				k++
				switch b[k] {
				case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
				case 'u':
					if _, ok := hex4(b, k+1); !ok {
						return -1
					}
					k += 4
				default:
					return -1
				}
			}
			return end + 1`}}
)

var variants = map[string][]edit{
	"noutf8":      noUTF8,
	"nonames":     noNames,
	"nolengths":   noLengths,
	"noends":      noEnds,
	"nostructure": noStructure,
	"bare":        join(noUTF8, noNames, noEnds, noStructure),
	"strict":      strictStrings,
}

func join(all ...[]edit) (out []edit) {
	for _, e := range all {
		out = append(out, e...)
	}
	return out
}

func main() {
	if err := os.RemoveAll("generated"); err != nil {
		fail(err)
	}
	for name, edits := range variants {
		if err := write(name, edits); err != nil {
			fail(fmt.Errorf("%s: %w", name, err))
		}
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "variants:", err)
	os.Exit(1)
}

func write(name string, edits []edit) error {
	fits := 0
	for _, pkg := range []string{"lex", "scan"} {
		files, err := filepath.Glob(source + pkg + "/*.go")
		if err != nil {
			return err
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			code := strings.ReplaceAll(string(text), `"`+protocol+`lex"`, `"`+own+name+`/lex"`)
			file := pkg + "/" + filepath.Base(path)
			for _, e := range edits {
				if e.file != file {
					continue
				}
				if n := strings.Count(code, e.old); n != 1 {
					return fmt.Errorf("%s has %d times %q", file, n, e.old)
				}
				code = strings.Replace(code, e.old, e.new, 1)
				fits++
			}
			formatted, err := format.Source([]byte(code))
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			to := filepath.Join("generated", name, file)
			if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(to, formatted, 0o644); err != nil {
				return err
			}
		}
	}
	if fits != len(edits) {
		return fmt.Errorf("%d of %d edits were made", fits, len(edits))
	}
	return nil
}
