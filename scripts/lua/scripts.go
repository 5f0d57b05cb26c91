// Package lua is everything headgate asks of Redis that must happen at once: one script per file, and one function that
// declares it on a batch and gives its reply a type. The header of each script is its contract.
//
// A name that ends in .part.lua is no script: it is text that several of them share, put in place of a line
// `-- include <name>`, so that every script reaches Redis as one text with one SHA-1.
//
// Invariants:
//
//	I1. Every key a script touches is KEYS[1] or lies below it, so a script stays in one hash slot.
//	I2. Nothing is written before every key that will be written was read: a key of the wrong type changes nothing.
//	I3. No figure passes through a script as text with an exponent or a fraction: whole numbers to 9e15 come back exactly.
//	I4. Every script does the same on Redis and on the embedded store of `headgate dev`.
package lua

import (
	"embed"
	"fmt"
	"strings"

	"github.com/headgate/headgate/pipeline"
)

//go:embed *.lua
var texts embed.FS

// All is every script, for loading them when a store connects.
func All() []*pipeline.Script {
	return []*pipeline.Script{
		admitScript, extendScript, settleScript, renewScript, expireScript, allowedScript, // ledger
		placeScript, releaseScript, beatScript, clearScript, failScript, readingScript, beforeScript, // placement
		adoptScript, recountScript, weighScript, unwellScript, probeScript, probedScript, flowScript,
		cacheWriteScript,
		editScript, findScript, // directory
		booksScript, // audit
	}
}

// read returns the script in name.lua with the parts it includes.
func read(name string) *pipeline.Script {
	return pipeline.NewScript(name, whole(name+".lua"))
}

// whole is the text of a file with the parts it includes, and theirs.
func whole(file string) string {
	lines := strings.Split(text(file), "\n")
	for i, line := range lines {
		if part, ok := strings.CutPrefix(strings.TrimSpace(line), "-- include "); ok {
			lines[i] = whole(part)
		}
	}
	return strings.Join(lines, "\n")
}

// text panics on a missing file: which files there are is decided when the program is built.
func text(file string) string {
	b, err := texts.ReadFile(file)
	if err != nil {
		panic(fmt.Sprintf("lua: %v", err))
	}
	return string(b)
}
