// Package check holds the repository to what its pages promise: the import table of ARCHITECTURE.md, the contracts in the
// script headers, the size of files, the README's commands, and the deployment files. It has tests only.
package check

import (
	"bufio"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = ".."

// files returns the paths, relative to the root, of all files with one of the extensions; generated and fetched ones and
// those of tests' data are left out.
func files(t *testing.T, extensions ...string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != root && strings.HasPrefix(name, ".") && name != ".ci" || name == "testdata" || name == "bin" {
				return filepath.SkipDir
			}
			return nil
		}
		for _, e := range extensions {
			if strings.HasSuffix(path, e) {
				rel, _ := filepath.Rel(root, path)
				out = append(out, filepath.ToSlash(rel))
			}
		}
		return nil
	})
	if err != nil || len(out) == 0 {
		t.Fatalf("files %v: %d found, %v", extensions, len(out), err)
	}
	return out
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// A file answers one question. One above 500 lines says at its top why it is one: "// size: reason".
func TestLongFilesGiveAReason(t *testing.T) {
	for _, path := range files(t, ".go", ".lua") {
		if n, reason := measure(read(t, path)); n > 500 && reason == "" {
			t.Errorf("%s has %d lines and no `// size:` reason in its first 40", path, n)
		}
	}
}

// measure returns the number of lines and the reason given for it.
func measure(text string) (lines int, reason string) {
	for s := bufio.NewScanner(strings.NewReader(text)); s.Scan(); lines++ {
		line := strings.TrimLeft(s.Text(), "/- ")
		if rest, ok := strings.CutPrefix(line, "size:"); ok && line != s.Text() && lines < 40 {
			reason = strings.TrimSpace(rest)
		}
	}
	return lines, reason
}

func TestMeasure(t *testing.T) {
	if n, reason := measure("// size: one table\nx\n"); n != 2 || reason != "one table" {
		t.Error(n, reason)
	}
	if _, reason := measure("size: not a comment\n" + strings.Repeat("\n", 40) + "// size: too late\n"); reason != "" {
		t.Error(reason)
	}
}

// The README's two commands are targets of the Makefile.
func TestReadmeCommandsExist(t *testing.T) {
	readme, makefile := read(t, "README.md"), read(t, "Makefile")
	for _, target := range []string{"dev", "test"} {
		if !strings.Contains(readme, "make "+target) {
			t.Errorf("README.md does not name `make %s`", target)
		}
		if !strings.Contains(makefile, "\n"+target+":") {
			t.Errorf("the Makefile has no target %s", target)
		}
	}
}
