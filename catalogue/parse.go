package catalogue

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Parse reads a models file. The error is one line with every fault, each with
// its line, model and field. (I5) An empty file is an empty catalogue.
func Parse(data []byte) (*Catalogue, error) {
	var faults faultList
	entries := readFile(data, &faults)
	c := &Catalogue{models: map[string]*Model{}, targets: map[string]*Model{}}
	for _, e := range entries {
		c.add(e, &faults)
	}
	for _, e := range entries {
		c.checkNames(e, &faults)
	}
	if err := faults.err(); err != nil {
		return nil, err
	}
	slices.Sort(c.names)
	return c, nil
}

// entry is one model as the file has it.
type entry struct {
	model Model
	line  int
}

func (c *Catalogue) add(e *entry, faults *faultList) {
	name := e.model.Name
	if !ValidName(name) {
		faults.add(e.line, name, "", "not a model name: 1 to 256 printable characters without space, comma, quotes, '*' and '|'")
		return
	}
	if _, ok := c.models[name]; ok {
		faults.add(e.line, name, "", "named twice")
		return
	}
	c.models[name] = &e.model
	c.names = append(c.names, name)
}

// checkNames holds what one entry says about others: aliases and fallbacks. (I4)
func (c *Catalogue) checkNames(e *entry, faults *faultList) {
	m := &e.model
	for _, alias := range m.Aliases {
		other := c.targets[alias]
		_, isName := c.models[alias]
		switch {
		case !ValidName(alias):
			faults.add(e.line, m.Name, "aliases", fmt.Sprintf("%q cannot be a model name", clip(alias)))
		case isName:
			faults.add(e.line, m.Name, "aliases", fmt.Sprintf("%q is a model's name", alias))
		case other == m:
			faults.add(e.line, m.Name, "aliases", fmt.Sprintf("%q stands there twice", alias))
		case other != nil:
			faults.add(e.line, m.Name, "aliases", fmt.Sprintf("%q is already an alias of %s", alias, other.Name))
		default:
			c.targets[alias] = m
		}
	}
	for i, name := range m.Fallbacks {
		switch _, ok := c.models[name]; {
		case name == m.Name:
			faults.add(e.line, m.Name, "fallbacks", "a model cannot fall back to itself")
		case !ok:
			faults.add(e.line, m.Name, "fallbacks", fmt.Sprintf("%q is no model of this file", clip(name)))
		case slices.Contains(m.Fallbacks[:i], name):
			faults.add(e.line, m.Name, "fallbacks", fmt.Sprintf("%q stands there twice", name))
		}
	}
}

// faultList collects faults; the zero value has none.
type faultList struct {
	lines []string
	more  int
}

const maxFaults = 20

// add notes one fault. line 0, no model and no field are left out.
func (f *faultList) add(line int, model, field, text string) {
	if len(f.lines) == maxFaults {
		f.more++
		return
	}
	var where []string
	if line > 0 {
		where = append(where, fmt.Sprintf("line %d", line))
	}
	if model != "" {
		where = append(where, "model "+clip(model))
	}
	if field != "" {
		where = append(where, field)
	}
	text = strings.Join(strings.Fields(text), " ")
	if len(where) > 0 {
		text = strings.Join(where, ", ") + ": " + text
	}
	f.lines = append(f.lines, text)
}

func (f *faultList) err() error {
	if len(f.lines) == 0 {
		return nil
	}
	text := strings.Join(f.lines, "; ")
	if f.more > 0 {
		text += fmt.Sprintf("; and %d more", f.more)
	}
	return errors.New(text)
}

// clip keeps an error readable whatever was written in the file.
func clip(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, s)
	if len(s) > 60 {
		return s[:60] + "…"
	}
	return s
}
