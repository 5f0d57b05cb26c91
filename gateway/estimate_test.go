package gateway

import "testing"

// TestTokensIn: estimates are rounded up, by four bytes a token until something was learned of the model.
func TestTokensIn(t *testing.T) {
	var r request
	for bytes, want := range map[int64]int64{0: 0, 1: 1, 4: 1, 5: 2, 4000: 1000} {
		if got := r.tokensIn(bytes); got != want {
			t.Errorf("%d bytes, nothing learned: %d tokens, want %d", bytes, got, want)
		}
	}
	r.admission.BytesPerTokenMilli = 2500
	for bytes, want := range map[int64]int64{0: 0, 2: 1, 3: 2, 4000: 1600} {
		if got := r.tokensIn(bytes); got != want {
			t.Errorf("%d bytes at 2.5 a token: %d tokens, want %d", bytes, got, want)
		}
	}
}
