package check

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	documented = regexp.MustCompile(`^(KEYS|ARGV)\[(\d+)([^\]]*)\]`)
	word       = regexp.MustCompile(`^(reply|repeat|cost)\b`)
	indexed    = regexp.MustCompile(`\b(KEYS|ARGV)\[(\d+)\]`)
	unpacked   = regexp.MustCompile(`unpack\((KEYS|ARGV)(?:, *(\d+))?`)
	offset     = regexp.MustCompile(`\b(KEYS|ARGV)\[\w+ \+ (\d+)\]`) // a counter from 1 on, plus what stands before
	looped     = regexp.MustCompile(`for \w+ = (\d+)[^,]*, *#(ARGV|KEYS)\b`)
)

// scriptFaults compares a script's header with its code. The header names every key and argument in order
// ("ARGV[3…]" for all from the third on), the reply, what a repeat does, and what a run costs.
func scriptFaults(source string) (faults []string) {
	header, code := splitScript(source)
	count := map[string]int{} // documented indices of KEYS and ARGV
	open := map[string]int{}  // the first documented index that stands for all that follow; 0 = none
	words := map[string]bool{}
	for _, line := range header {
		lower := strings.ToLower(line)
		if m := word.FindString(lower); m != "" {
			words[m] = true
		}
		m := documented.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		n, _ := strconv.Atoi(m[2])
		if m[3] != "" {
			if open[m[1]] == 0 {
				open[m[1]] = n
			}
			continue
		}
		if n != count[m[1]]+1 {
			faults = append(faults, fmt.Sprintf("%s[%d] is documented after %d", m[1], n, count[m[1]]))
		}
		count[m[1]] = n
	}
	for _, w := range []string{"reply", "repeat", "cost"} {
		if !words[w] {
			faults = append(faults, "the header does not say: "+w)
		}
	}
	if count["KEYS"] == 0 && open["KEYS"] == 0 {
		faults = append(faults, "the header documents no KEYS[1]")
	}
	return append(faults, usedFaults(code, count, open)...)
}

func usedFaults(code string, count, open map[string]int) (faults []string) {
	used := map[string]map[int]bool{"KEYS": {1: true}, "ARGV": {}} // parts read KEYS[1]
	from := map[string]int{}                                       // everything from here on is used
	sweep := func(name, first string) {
		n, err := strconv.Atoi(first)
		if err != nil {
			n = 1
		}
		if from[name] == 0 || n < from[name] {
			from[name] = n
		}
	}
	for _, m := range indexed.FindAllStringSubmatch(code, -1) {
		n, _ := strconv.Atoi(m[2])
		used[m[1]][n] = true
		if n > count[m[1]] && (open[m[1]] == 0 || n < open[m[1]]) {
			faults = append(faults, fmt.Sprintf("%s is used and not documented", m[0]))
		}
	}
	for _, m := range unpacked.FindAllStringSubmatch(code, -1) {
		sweep(m[1], m[2])
	}
	for _, m := range offset.FindAllStringSubmatch(code, -1) {
		n, _ := strconv.Atoi(m[2])
		sweep(m[1], strconv.Itoa(n+1))
	}
	for _, m := range looped.FindAllStringSubmatch(code, -1) {
		sweep(m[2], m[1])
	}
	for name, n := range count {
		for i := 1; i <= n; i++ {
			if !used[name][i] && (from[name] == 0 || i < from[name]) {
				faults = append(faults, fmt.Sprintf("%s[%d] is documented and not used", name, i))
			}
		}
	}
	for name, first := range open {
		if from[name] == 0 {
			faults = append(faults, fmt.Sprintf("%s[%d…] is documented and nothing reads so many", name, first))
		}
	}
	return faults
}

// splitScript returns the text of the comment lines at the top, without dashes, and the rest without comments.
func splitScript(source string) (header []string, code string) {
	top := true
	var b strings.Builder
	for line := range strings.Lines(source) {
		line = strings.TrimSpace(line)
		switch text, comment := strings.CutPrefix(line, "--"); {
		case strings.HasPrefix(line, "#!"):
		case comment && top:
			header = append(header, strings.TrimSpace(text))
		case !comment:
			top = false
			line, _, _ = strings.Cut(line, " -- ")
			b.WriteString(line + "\n")
		}
	}
	return header, b.String()
}

func TestScriptHeadersMatchTheCode(t *testing.T) {
	scripts := 0
	for _, path := range files(t, ".lua") {
		if strings.HasPrefix(path, "bench/peers/") { // what others would do, for comparison
			continue
		}
		source := read(t, path)
		header, code := splitScript(source)
		if len(header) == 0 {
			t.Errorf("%s begins with no comment", path)
		}
		if strings.HasSuffix(path, ".part.lua") { // the scripts it stands in document what is passed
			if strings.Contains(code, "ARGV") {
				t.Errorf("%s is a part and reads ARGV, which belongs to the script around it", path)
			}
			continue
		}
		scripts++
		if !strings.HasPrefix(source, "#!lua") {
			t.Errorf("%s has no shebang", path)
		}
		for _, f := range scriptFaults(source) {
			t.Errorf("%s: %s", path, f)
		}
	}
	if scripts < 5 {
		t.Errorf("only %d scripts were looked at", scripts)
	}
}

func TestScriptFaults(t *testing.T) {
	good := "#!lua\n-- x: does\n--\n-- KEYS[1]  root\n-- ARGV[1]  rid\n-- ARGV[2…]  rest\n--\n-- reply  1\n-- repeat same\n-- cost  none\n" +
		"local a = ARGV[1] -- not ARGV[9]\nfor i = 2, #ARGV do end\nreturn KEYS[1]\n"
	if f := scriptFaults(good); len(f) != 0 {
		t.Fatalf("a good script: %v", f)
	}
	for what, bad := range map[string]string{
		"no repeat":      strings.Replace(good, "-- repeat same\n", "", 1),
		"gap":            strings.Replace(good, "ARGV[1]  rid", "ARGV[2]  rid", 1),
		"unused":         strings.Replace(good, "local a = ARGV[1]", "local a = 1", 1),
		"undocumented":   strings.Replace(good, "-- ARGV[2…]  rest\n", "", 1) + "x = ARGV[3]\n",
		"nothing swept":  strings.Replace(good, "for i = 2, #ARGV do end\n", "", 1),
		"no key":         strings.Replace(good, "-- KEYS[1]  root\n", "", 1),
		"second key":     good + "x = KEYS[2]\n",
		"header too low": "local x\n" + good,
	} {
		if f := scriptFaults(bad); len(f) == 0 {
			t.Errorf("%s passes:\n%s", what, bad)
		}
	}
}
