package fleet

import (
	"os"
	"path/filepath"
	"testing"
)

// Main runs the tests, ends what they shared and removes the program they built: for TestMain.
func Main(m *testing.M) {
	code := m.Run()
	theSession.end()
	if theSession.Failed() && code == 0 {
		code = 1
	}
	if built {
		if path, err := build(); err == nil {
			_ = os.RemoveAll(filepath.Dir(path))
		}
	}
	os.Exit(code)
}
