package coordinator

import (
	"strings"
	"testing"
)

// TestIsSafe: the short way and the pattern agree on every byte and at the bounds of the length.
func TestIsSafe(t *testing.T) {
	t.Parallel()
	ids := []string{"", "a", strings.Repeat("a", 64), strings.Repeat("a", 65), "ann@example.com", "a b", "a\n", "é", "\xff"}
	for c := range 256 {
		ids = append(ids, "x"+string([]byte{byte(c)}))
	}
	for _, id := range ids {
		if got, want := isSafe(id), safeID.MatchString(id); got != want {
			t.Errorf("%q: %v, the pattern says %v", id, got, want)
		}
	}
}
