package coordinator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// spoolMax bounds the file of one process. Settlements beyond it wait in memory only.
const spoolMax = 256 << 20

// spoolEnding marks spool files in the directory.
const spoolEnding = ".spool"

// spool is the file of the settlements Redis did not acknowledge: one line each, appended when it was kept, all of them
// dropped when nothing waits any more. Its process holds a lock on the file as long as it lives, so a file that can be
// locked was left behind. Not safe for concurrent use: unsettled guards it.
//
//	<CRC-32 of the rest, 8 hex digits> <bytes of the JSON> <JSON>\n
//
// A line that was torn, by a crash or a full disk, fails its check and is left out; those around it are read.
type spool struct {
	dir, name string // dir "": nothing is written
	max       int64  // bytes; 0: spoolMax
	file      *os.File
	size      int64
	dirty     bool
	torn      bool // the last write ended inside a line
	failed    bool // logged
}

// spooled is a settlement as a line has it.
type spooled struct {
	Settlement
	Since time.Time
}

var errSpoolFull = errors.New("spool file is full")

// put appends one settlement. It does not wait for the disk: sync does.
func (s *spool) put(k keptSettlement) error {
	if s.dir == "" {
		return nil
	}
	if s.file == nil {
		if err := s.open(); err != nil {
			return err
		}
	}
	var start []byte
	if s.torn {
		start = []byte{'\n'}
	}
	l, err := spoolLine(start, k)
	if err != nil {
		return err
	}
	limit := s.max
	if limit == 0 {
		limit = spoolMax
	}
	if s.size+int64(len(l)) > limit {
		return fmt.Errorf("%w: %d bytes", errSpoolFull, s.size)
	}
	n, err := s.file.Write(l)
	s.size += int64(n)
	s.dirty = true
	s.torn = err != nil && (s.torn || n > 0)
	if err != nil {
		return fmt.Errorf("spool %s: %w", s.file.Name(), err)
	}
	return nil
}

// unsynced is the file if what was put may not survive a loss of power; nil: it does.
func (s *spool) unsynced() *os.File {
	if !s.dirty {
		return nil
	}
	s.dirty = false
	return s.file
}

// clear drops everything: nothing waits any more.
func (s *spool) clear() error {
	if s.file == nil || s.size == 0 {
		return nil
	}
	if err := s.file.Truncate(0); err != nil {
		return fmt.Errorf("spool %s: %w", s.file.Name(), err)
	}
	s.size, s.dirty, s.torn = 0, false, false
	return nil
}

// close removes the file if nothing is in it.
func (s *spool) close() error {
	if s.file == nil {
		return nil
	}
	if s.size == 0 {
		_ = os.Remove(s.file.Name())
	}
	err := s.file.Close()
	s.file = nil
	return err
}

// open makes the file and locks it. Another process may adopt it between the two, taking it for one left behind: then
// it is made anew.
func (s *spool) open() error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(s.dir, s.name+spoolEnding)
	for range 10 {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil && sameFile(f, path) {
			info, err := f.Stat()
			if err != nil {
				f.Close()
				return err
			}
			s.file, s.size = f, info.Size()
			return nil
		}
		f.Close()
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("spool %s: somebody holds it", path)
}

func sameFile(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}

// own is what stands in a file of this name already: its process had the name before.
func (s *spool) own() (list []keptSettlement, torn int, err error) {
	if s.dir == "" || s.file != nil {
		return nil, 0, nil
	}
	if _, err := os.Stat(filepath.Join(s.dir, s.name+spoolEnding)); err != nil {
		return nil, 0, nil
	}
	if err := s.open(); err != nil {
		return nil, 0, err
	}
	data, err := io.ReadAll(io.LimitReader(s.file, 2*spoolMax))
	list, torn = readSpool(data)
	s.torn = len(data) > 0 && data[len(data)-1] != '\n'
	return list, torn, err
}

// adopt takes over what processes that are gone left in the directory: take is called with the settlements of a file,
// and the file is removed when take says that they are safe elsewhere. torn counts lines that could not be read.
func (s *spool) adopt(take func([]keptSettlement) bool) (files, torn int, err error) {
	if s.dir == "" {
		return 0, 0, nil
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		return 0, 0, err
	}
	var errs []error
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), spoolEnding) || e.Name() == s.name+spoolEnding || !e.Type().IsRegular() {
			continue
		}
		adopted, bad, err := adoptFile(filepath.Join(s.dir, e.Name()), take)
		torn += bad
		if adopted {
			files++
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return files, torn, errors.Join(errs...)
}

func adoptFile(path string, take func([]keptSettlement) bool) (adopted bool, torn int, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return false, 0, err
	}
	defer f.Close()
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil || !sameFile(f, path) {
		return false, 0, nil // its process lives, or another was faster
	}
	data, err := io.ReadAll(io.LimitReader(f, 2*spoolMax))
	if err != nil {
		return false, 0, fmt.Errorf("spool %s: %w", path, err)
	}
	list, torn := readSpool(data)
	if len(list) > 0 && !take(list) {
		return false, torn, nil
	}
	return true, torn, os.Remove(path)
}

func spoolLine(dst []byte, k keptSettlement) ([]byte, error) {
	text, err := json.Marshal(spooled{k.Settlement, k.since})
	if err != nil {
		return dst, err
	}
	rest := append(strconv.AppendInt(nil, int64(len(text)), 10), ' ')
	rest = append(rest, text...)
	dst = fmt.Appendf(dst, "%08x ", crc32.ChecksumIEEE(rest))
	return append(append(dst, rest...), '\n'), nil
}

// readSpool is the settlements of a file in order; torn is how many lines were none.
func readSpool(data []byte) (list []keptSettlement, torn int) {
	for len(data) > 0 {
		var l []byte
		l, data, _ = bytes.Cut(data, []byte{'\n'})
		if len(l) == 0 {
			continue
		}
		k, ok := readSpoolLine(l)
		if !ok {
			torn++
			continue
		}
		list = append(list, k)
	}
	return list, torn
}

func readSpoolLine(l []byte) (keptSettlement, bool) {
	if len(l) < 9 || l[8] != ' ' {
		return keptSettlement{}, false
	}
	sum, err := strconv.ParseUint(string(l[:8]), 16, 32)
	rest := l[9:]
	if err != nil || uint32(sum) != crc32.ChecksumIEEE(rest) {
		return keptSettlement{}, false
	}
	length, text, ok := bytes.Cut(rest, []byte{' '})
	if n, err := strconv.Atoi(string(length)); !ok || err != nil || n != len(text) {
		return keptSettlement{}, false
	}
	var w spooled
	if json.Unmarshal(text, &w) != nil || w.RID == "" || w.Tenant == "" {
		return keptSettlement{}, false
	}
	return keptSettlement{w.Settlement, w.Since}, true
}
