//go:build clients

// Package clients runs the public client libraries of three languages against a fleet: two replicas, two simulated
// engines, real Redis. Each language has a folder of its own, with its libraries' versions in its own lock file; nothing
// of them is a part of headgate. `make test-clients` installs and runs them.
//
// A suite is a program. It is told where the replicas are (HEADGATE_A, HEADGATE_B) and where to ask for keys and faults
// and for what became of a request (HEADGATE_WORLD, see world_test.go); it prints a line for each test and at last
// "N passed, N failed", and fails if one did.
package clients

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"regexp"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/fleet"
)

// suiteTimeout is for one language; compiling is part of it.
const suiteTimeout = 3 * time.Minute

// suites are run one after the other: a fault befalls whoever comes next.
var suites = []struct {
	name    string
	command []string
	tests   int // at least so many, so that none is lost
}{
	{"go", []string{"go", "run", "."}, 30},
	{"node", []string{"node", "main.mjs"}, 30},
	{"python", []string{".venv/bin/python", "main.py"}, 30},
}

func TestMain(m *testing.M) { fleet.Main(m) }

func TestClients(t *testing.T) {
	w := newWorld(t)
	for _, s := range suites {
		t.Run(s.name, func(t *testing.T) {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), suiteTimeout)
			defer cancel()
			cmd := exec.CommandContext(ctx, s.command[0], s.command[1:]...)
			cmd.Dir = s.name
			cmd.Env = append(os.Environ(), w.env()...)
			cmd.WaitDelay = time.Second
			var out bytes.Buffer
			cmd.Stdout = io.MultiWriter(os.Stdout, &out)
			cmd.Stderr = os.Stderr
			err := cmd.Run()
			last := regexp.MustCompile(`(?m)^(\d+) passed, (\d+) failed$`).FindAllStringSubmatch(out.String(), -1)
			switch {
			case err != nil:
				t.Errorf("%s: %v (`make test-clients` installs what it needs)", s.name, err)
			case len(last) != 1 || last[0][2] != "0":
				t.Errorf("%s: no closing line, or failures in it: %q", s.name, last)
			case atoi(last[0][1]) < s.tests:
				t.Errorf("%s: %s tests, there were at least %d", s.name, last[0][1], s.tests)
			}
			w.clean(t)
			t.Logf("%s: %.1f s", s.name, time.Since(began).Seconds())
		})
	}
}
