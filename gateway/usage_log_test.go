package gateway

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"github.com/headgate/headgate/coordinator"
)

// TestUsageLogIsRotated: the file is renamed and opened anew again and again while requests write: each line is there
// once and whole.
func TestUsageLogIsRotated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "usage.jsonl")
	l, err := OpenUsageLog(path, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	const writers, lines, rotations = 4, 500, 10
	var writing sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			for n := range lines {
				l.Write((&coordinator.Record{RID: strconv.Itoa(w*lines + n)}).AppendJSON(nil))
			}
		})
	}
	for n := range rotations {
		if err := os.Rename(path, path+"."+strconv.Itoa(n)); err != nil {
			t.Fatal(err)
		}
		if err := l.Reopen(); err != nil {
			t.Fatal(err)
		}
	}
	writing.Wait()
	before := path + ".last"
	if err := os.Rename(path, before); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(before) // Reopen returned: nothing comes to the old file any more
	if err != nil {
		t.Fatal(err)
	}
	l.Write((&coordinator.Record{RID: "after"}).AppendJSON(nil))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if now, err := os.ReadFile(before); err != nil || !bytes.Equal(now, whole) {
		t.Fatalf("the renamed file was written to: %v", err)
	}
	seen := map[string]int{}
	files, _ := filepath.Glob(path + "*")
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(text) {
			var r struct{ RID string }
			if err := json.Unmarshal(line, &r); err != nil {
				t.Fatalf("%s: %q: %v", name, line, err)
			}
			seen[r.RID]++
		}
	}
	if len(seen) != writers*lines+1 || seen["after"] != 1 {
		t.Fatalf("%d of %d lines", len(seen), writers*lines+1)
	}
	for rid, n := range seen {
		if n != 1 {
			t.Fatalf("line %s is there %d times", rid, n)
		}
	}
	if err := l.Reopen(); err == nil {
		t.Fatal("reopened after Close")
	}
}

// TestUsageLogKeepsTheOldFile where the path cannot be opened.
func TestUsageLogKeepsTheOldFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := OpenUsageLog(filepath.Join(dir, "usage.jsonl"), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); err == nil {
		t.Fatal("no error although the directory is gone")
	}
	l.Write((&coordinator.Record{RID: "kept"}).AppendJSON(nil))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir+".old", "usage.jsonl")); err != nil || !bytes.Contains(text, []byte(`"rid":"kept"`)) {
		t.Fatalf("%q %v", text, err)
	}
}
