package catalogue

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// The file is read from the syntax tree and not into a struct: a number then is
// still what the operator wrote (0.20, not the double next to it), every fault
// has its line, and all of them are found at once. Anchors, aliases and merge
// keys work.

// object is a mapping of the file, its keys in order.
type object struct {
	tree   *tree
	fields []field
}

type field struct {
	tree  *tree
	name  string
	line  int
	value ast.Node
}

type tree struct {
	anchors map[string]ast.Node
	faults  *faultList
}

// parseTree returns the file's top mapping; empty where the file says nothing.
func parseTree(data []byte, faults *faultList) (top object) {
	defer func() {
		if r := recover(); r != nil {
			faults.add(0, "", "", "not YAML")
			top = object{}
		}
	}()
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		faults.add(yamlFault(err))
		return object{}
	}
	t := &tree{anchors: map[string]ast.Node{}, faults: faults}
	var bodies []ast.Node
	for _, doc := range file.Docs {
		if doc.Body != nil {
			bodies = append(bodies, doc.Body)
			ast.Walk(anchorVisitor{t}, doc.Body)
		}
	}
	switch len(bodies) {
	case 0:
		return object{}
	case 1:
		top, ok := t.object(bodies[0], 0)
		if !ok {
			faults.add(lineOf(bodies[0]), "", "", "the file must begin with models:")
		}
		return top
	}
	faults.add(lineOf(bodies[1]), "", "", "a second document in the file")
	return object{}
}

func yamlFault(err error) (line int, model, field, text string) {
	var y yaml.Error
	if errors.As(err, &y) {
		if tok := y.GetToken(); tok != nil && tok.Position != nil {
			line = tok.Position.Line
		}
		return line, "", "", y.GetMessage()
	}
	text, _, _ = strings.Cut(err.Error(), "\n")
	return 0, "", "", text
}

type anchorVisitor struct{ *tree }

func (v anchorVisitor) Visit(n ast.Node) ast.Visitor {
	if a, ok := n.(*ast.AnchorNode); ok && a.Name != nil {
		v.anchors[a.Name.GetToken().Value] = a.Value
	}
	return v
}

const maxDepth = 20

// follow goes through anchors, aliases and tags to what is meant.
func (t *tree) follow(n ast.Node) ast.Node {
	for range maxDepth {
		switch v := n.(type) {
		case *ast.AnchorNode:
			n = v.Value
		case *ast.TagNode:
			n = v.Value
		case *ast.AliasNode:
			if v.Value == nil {
				return nil
			}
			n = t.anchors[v.Value.GetToken().Value]
		default:
			return n
		}
	}
	return nil
}

// object reads a mapping; what stands in it goes before what is merged into it.
func (t *tree) object(n ast.Node, depth int) (object, bool) {
	o := object{tree: t}
	var values []*ast.MappingValueNode
	switch v := t.follow(n).(type) {
	case *ast.MappingNode:
		values = v.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{v}
	case *ast.NullNode, nil:
		return o, true
	default:
		return o, false
	}
	var merged []ast.Node
	for _, v := range values {
		if _, ok := v.Key.(*ast.MergeKeyNode); ok {
			merged = append(merged, v.Value)
			continue
		}
		name, ok := text(t.follow(v.Key))
		if !ok {
			t.faults.add(lineOf(v.Key), "", "", "a key must be a plain name")
			continue
		}
		if o.has(name) {
			t.faults.add(lineOf(v.Key), "", "", fmt.Sprintf("%q stands there twice", clip(name)))
			continue
		}
		o.fields = append(o.fields, field{tree: t, name: name, line: lineOf(v.Key), value: v.Value})
	}
	for _, n := range merged {
		o.merge(n, depth)
	}
	return o, true
}

func (o *object) merge(n ast.Node, depth int) {
	if depth > maxDepth {
		o.tree.faults.add(lineOf(n), "", "", "merged too deep")
		return
	}
	if list, ok := o.tree.follow(n).(*ast.SequenceNode); ok {
		for _, one := range list.Values {
			o.merge(one, depth+1)
		}
		return
	}
	other, ok := o.tree.object(n, depth+1)
	if !ok {
		o.tree.faults.add(lineOf(n), "", "", "only a mapping can be merged")
	}
	for _, f := range other.fields {
		if !o.has(f.name) {
			o.fields = append(o.fields, f)
		}
	}
}

func (o *object) has(name string) bool {
	for _, f := range o.fields {
		if f.name == name {
			return true
		}
	}
	return false
}

// list reads a sequence.
func (t *tree) list(n ast.Node) ([]ast.Node, bool) {
	switch v := t.follow(n).(type) {
	case *ast.SequenceNode:
		return v.Values, true
	case *ast.NullNode, nil:
		return nil, true
	}
	return nil, false
}

// text is a scalar as it is written in the file, without its quotes.
func text(n ast.Node) (string, bool) {
	switch v := n.(type) {
	case *ast.StringNode:
		return v.Value, true
	case *ast.LiteralNode:
		return v.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return v.GetToken().Value, true
	}
	return "", false
}

func lineOf(n ast.Node) int {
	if n == nil {
		return 0
	}
	return lineOfToken(n.GetToken())
}

func lineOfToken(tok *token.Token) int {
	if tok == nil || tok.Position == nil {
		return 0
	}
	return tok.Position.Line
}
