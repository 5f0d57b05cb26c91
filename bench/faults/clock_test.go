package faults

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// clockVariable is by how many seconds the wall clock of a shifted program is off.
const clockVariable = "HEADGATE_FAULTS_CLOCK"

// shifted builds headgate with a wall clock that is wrong by clockVariable: the standard library's time.Now is replaced in
// this one build. Timers and lengths of time go by the monotonic clock and are right, as on a machine whose date is wrong.
// (Programs in Go ask the kernel themselves: what is preloaded to shift the clocks of others does nothing to them.)
func shifted(t *testing.T) string {
	t.Helper()
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	original := filepath.Join(strings.TrimSpace(string(goroot)), "src", "time", "time.go")
	text, err := os.ReadFile(original)
	if err != nil {
		t.Fatal(err)
	}
	const reads = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if strings.Count(string(text), reads) != 1 {
		t.Fatalf("%s is not as expected: the clock cannot be shifted", original)
	}
	dir := t.TempDir()
	patched := strings.Replace(string(text), reads, reads+"\tsec += wrongBy\n", 1)
	patched = strings.Replace(patched, "\t\"errors\"\n", "\t\"errors\"\n\t\"syscall\"\n", 1) + fmt.Sprintf(`
var wrongBy = func() (by int64) {
	text, _ := syscall.Getenv(%q)
	sign := int64(1)
	for _, c := range text {
		switch {
		case c == '-':
			sign = -1
		case '0' <= c && c <= '9':
			by = 10*by + int64(c-'0')
		}
	}
	return sign * by
}()
`, clockVariable)
	replacement, overlay, program := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "headgate")
	mapping, _ := json.Marshal(map[string]any{"Replace": map[string]string{original: replacement}})
	for path, text := range map[string]string{replacement: patched, overlay: string(mapping)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command("go", "build", "-overlay", overlay, "-o", program, "github.com/headgate/headgate/cmd/headgate").CombinedOutput()
	if err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	return program
}

// wrongClocks puts replica 0 40 s behind, replica 2 40 s ahead.
func wrongClocks(_ *testing.T, i int) []string {
	return []string{fmt.Sprintf("%s=%d", clockVariable, 40*(i-1))}
}
