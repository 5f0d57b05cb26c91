package fleet

import (
	"os"
	"path/filepath"
	"testing"
)

// Main runs the tests and removes the program they built: for TestMain.
func Main(m *testing.M) {
	code := m.Run()
	if built {
		if path, err := build(); err == nil {
			_ = os.RemoveAll(filepath.Dir(path))
		}
	}
	os.Exit(code)
}
