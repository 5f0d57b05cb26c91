package catalogue

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/headgate/headgate/bench/lab"
)

const patience = 20 * time.Second

// watched is a store that polls fast, and the file behind it.
func watched(t *testing.T, text string) (*Store, string, *lab.Output) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "models.yaml")
	put(t, path, text)
	log := &lab.Output{}
	s, err := Open(path, zerolog.New(log))
	if err != nil {
		t.Fatal(err)
	}
	s.poll = 5 * time.Millisecond
	return s, path, log
}

func (s *Store) watchUntilTheEnd(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Watch(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch: %v", err)
		}
	})
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (s *Store) knows(name string) func() bool {
	return func() bool { _, ok := s.Current().Resolve(name); return ok }
}

func TestWatchReloadsHoweverTheFileIsReplaced(t *testing.T) {
	s, path, _ := watched(t, "models: {a: {}}")
	s.watchUntilTheEnd(t)
	put(t, path, "models: {b: {}}")
	lab.Eventually(t, patience, s.knows("b"), "written in place")
	put(t, path+".new", "models: {c: {}}")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, patience, s.knows("c"), "renamed over")
	put(t, path+".target", "models: {d: {}}")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path+".target", path); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, patience, s.knows("d"), "a symbolic link moved")
}

func TestWatchLogsAnInvalidFileOnceAndKeepsTheLastOne(t *testing.T) { // I3
	s, path, log := watched(t, "models: {a: {}}")
	s.watchUntilTheEnd(t)
	put(t, path, "models: {a: {prise: 1}}")
	lab.Eventually(t, patience, func() bool { return log.Count("prise") == 1 }, "the fault is logged")
	put(t, path, "models: {a: {pryce: 1}}")
	lab.Eventually(t, patience, func() bool { return log.Count("pryce") == 1 }, "the next fault is logged")
	if !s.knows("a")() || log.Count("prise") != 1 {
		t.Errorf("a is known: %v, logged %d times", s.knows("a")(), log.Count("prise"))
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, patience, func() bool { return log.Count("no such file") == 1 }, "the missing file is logged")
	if !s.knows("a")() {
		t.Error("a missing file emptied the catalogue")
	}
	put(t, path, "models: {a: {}, z: {}}")
	lab.Eventually(t, patience, s.knows("z"), "it is back")
	if log.Count("no such file") != 1 {
		t.Error("a missing file is logged again and again")
	}
}

func TestWatchReloadsOnSIGHUP(t *testing.T) {
	s, path, log := watched(t, "models: {a: {}}")
	s.poll = time.Hour
	// Before Watch has taken the signal over it would end this process, and so would the last one sent here, which may
	// arrive when Watch is over: it stays taken over.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	s.watchUntilTheEnd(t)
	put(t, path, "models: {b: {}}")
	lab.Eventually(t, patience, func() bool { return hangUp(t) && s.knows("b")() }, "reloaded")
	put(t, path, "models: {b: {prise: 1}}")
	lab.Eventually(t, patience, func() bool { return hangUp(t) && log.Count("prise") > 0 }, "the fault is logged")
	if !s.knows("b")() {
		t.Error("an invalid file changed something")
	}
}

func hangUp(t *testing.T) bool {
	t.Helper()
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	return true
}

func TestCheckWaitsUntilTheFileStandsStill(t *testing.T) {
	t.Parallel()
	s, _, _ := watched(t, "models: {old: {}}")
	half, whole := "models: {half: {}}", "models: {half: {}, rest: {}}"
	reads := []string{half, whole, whole}
	s.read = func() ([]byte, error) {
		next := reads[0]
		reads = reads[1:]
		return []byte(next), nil
	}
	s.check(t.Context(), false)
	if !s.knows("rest")() {
		t.Fatal("half a file was taken")
	}
	reads = nil
	for range settleTries + 1 {
		reads = append(reads, "models: {m"+strconv.Itoa(len(reads))+": {}}")
	}
	s.check(t.Context(), false)
	if !s.knows("rest")() {
		t.Fatal("what never stands still was taken")
	}
	reads = []string{"\n", "\n"}
	s.check(t.Context(), false)
	if !s.knows("rest")() {
		t.Fatal("a file of nothing was taken")
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	if _, err := Open(filepath.Join(t.TempDir(), "none.yaml"), zerolog.Nop()); err == nil || !strings.Contains(err.Error(), "none.yaml") {
		t.Errorf("a missing file: %v", err)
	}
	path := filepath.Join(t.TempDir(), "models.yaml")
	put(t, path, "models: {a: {prise: 1}}")
	_, err := Open(path, zerolog.Nop())
	if err == nil || !strings.Contains(err.Error(), "models.yaml: line 1, model a: unknown field") {
		t.Errorf("a fault: %v", err)
	}
	if _, err := Open(t.TempDir(), zerolog.Nop()); err == nil {
		t.Error("a directory was opened")
	}
	s, err := Open("", zerolog.Nop())
	if err != nil || len(s.Current().Names()) != 0 {
		t.Errorf("no path: %v", err)
	}
	if NewStore(nil).Current() == nil {
		t.Error("NewStore(nil) holds nothing")
	}
}

// TestAnEmptyFileIsRefused at the start as at a reload.
func TestAnEmptyFileIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "models.yaml")
	put(t, path, " \n")
	if _, err := Open(path, zerolog.Nop()); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "write models: {} for no models") {
		t.Fatalf("an empty file: %v", err)
	}
	put(t, path, "models: {}\n")
	s, err := Open(path, zerolog.Nop())
	if err != nil || len(s.Current().Names()) != 0 {
		t.Fatalf("no models on purpose: %v", err)
	}
	s.judge(nil)
	if s.LastLoad().Good {
		t.Fatal("an empty file was taken at a reload")
	}
}

// TestLastLoad says whether what the file says is in use.
func TestLastLoad(t *testing.T) {
	if l := NewStore(nil).LastLoad(); !l.Good || !l.At.IsZero() {
		t.Fatalf("without a file: %+v", l)
	}
	path := filepath.Join(t.TempDir(), "models.yaml")
	put(t, path, "models: {a: {}}")
	s, err := Open(path, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	first := s.LastLoad()
	if !first.Good || time.Since(first.At).Abs() > time.Hour {
		t.Fatalf("at the start: %+v", first)
	}
	s.judge([]byte("models: {a: {price: cheap}}"))
	if l := s.LastLoad(); l.Good || l.At != first.At {
		t.Fatalf("after a bad file: %+v", l)
	}
	s.judge([]byte("models: {b: {}}"))
	if l := s.LastLoad(); !l.Good || l.At == first.At {
		t.Fatalf("after a good file: %+v", l)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	s.check(t.Context(), false)
	if s.LastLoad().Good {
		t.Fatal("a file that is gone counts as read")
	}
	put(t, path, "models: {b: {}}")
	s.check(t.Context(), false)
	if !s.LastLoad().Good {
		t.Fatal("a file that is back does not count")
	}
}
