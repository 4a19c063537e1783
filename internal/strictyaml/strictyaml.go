// Package strictyaml decodes YAML the way that a person who made a typing error wants it decoded: an unknown or
// repeated key, a wrong type, a value that is left out, and a second document are errors that show their place. It
// takes neither anchors nor tags, and bounds how deep values may stand in each other: of those a small file can be
// made that fills a machine's memory.
//
// A text must be written as one. Where YAML reads a number, the decoder would hand on another text than was written:
// "1" for 1.0, "83" for 0123.
//
// It keeps no state. The caller bounds the size of what it reads. Start at Unmarshal.
package strictyaml

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Option changes what Unmarshal accepts.
type Option int

// EmptyIsAbsent takes a key without a value as if it was not there.
const EmptyIsAbsent Option = iota

const (
	// maxDepth bounds how deep values may stand in each other; nothing of ours is deeper than ten. The parser takes
	// memory by the square of the depth.
	maxDepth = 64
	// maxIndent bounds the column of what begins a line of blocks, and with it their depth.
	maxIndent = 256
)

// Unmarshal decodes data, at most one YAML document, into v, a pointer. Its errors are a yaml.Error with the place
// wherever there is one. Without a document v is left as it is.
func Unmarshal(data []byte, v any, options ...Option) (err error) {
	// The decoder trips over some inputs (found by fuzzing); a file must not be able to stop a program so.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("is no YAML that can be read: %v", p)
		}
		shortenExcerpt(err)
	}()
	if err := checkText(data); err != nil {
		return err
	}
	if err := checkTokens(lexer.Tokenize(string(data))); err != nil {
		return err
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return err
	}
	c := checker{}
	for _, o := range options {
		c.emptyIsAbsent = c.emptyIsAbsent || o == EmptyIsAbsent
	}
	seen := false
	for _, d := range file.Docs {
		switch {
		case d.Body == nil || d.Body.Type() == ast.CommentType:
		case seen:
			return at(d.Body, "there is a second document behind the first; one is expected")
		default:
			seen = true
			if err := c.value(d.Body, reflect.TypeOf(v)); err != nil {
				return err
			}
		}
	}
	if !seen {
		return nil
	}
	return yaml.UnmarshalWithOptions(data, v, yaml.Strict())
}

// checkText refuses what is no text. YAML does not allow it (1.2, 5.1), and an excerpt of it would go to a terminal.
func checkText(data []byte) error {
	line, column := 1, 1
	for rest := data; len(rest) > 0; {
		r, n := utf8.DecodeRune(rest)
		switch {
		case r == utf8.RuneError && n == 1, r < ' ' && r != '\t' && r != '\n' && r != '\r', r >= 0x7f && r < 0xa0 && r != 0x85:
			return fmt.Errorf("line %d, column %d: the byte %#02x is no text; is this a YAML file?", line, column, rest[0])
		case r == '\n':
			line, column = line+1, 0
		}
		column++
		rest = rest[n:]
	}
	return nil
}

// checkTokens refuses what is not to reach the parser.
func checkTokens(tokens token.Tokens) error {
	flow, line := 0, 0
	for _, t := range tokens {
		first := t.Position.Line != line
		line = t.Position.Line
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			flow++
		case token.SequenceEndType, token.MappingEndType:
			flow--
		case token.AnchorType, token.AliasType, token.MergeKeyType:
			return &yaml.SyntaxError{Message: "anchors, aliases and merges are not taken; write the value itself", Token: t}
		case token.TagType:
			return &yaml.SyntaxError{Message: "tags are not taken; write a text in quotes", Token: t}
		case token.SequenceEntryType, token.MappingKeyType:
			first = true // one line may begin many blocks: "- - - a"
		}
		if flow > maxDepth || flow <= 0 && first && t.Position.Column > maxIndent && t.Type != token.CommentType {
			return &yaml.SyntaxError{Message: fmt.Sprintf("values stand in each other deeper than %d levels", maxDepth), Token: t}
		}
	}
	return nil
}

// excerptTokens bounds what an error shows before and behind its place. The excerpt takes time by the square of the
// length of a line.
const excerptTokens = 200

// shortenExcerpt cuts off what is far from the place of err.
func shortenExcerpt(err error) {
	var place yaml.Error
	if !errors.As(err, &place) || place.GetToken() == nil {
		return
	}
	first, last := place.GetToken(), place.GetToken()
	for range excerptTokens {
		if first.Prev != nil {
			first = first.Prev
		}
		if last.Next != nil {
			last = last.Next
		}
	}
	first.Prev, last.Next = nil, nil
}

func at(n ast.Node, format string, a ...any) error {
	return &yaml.SyntaxError{Message: fmt.Sprintf(format, a...), Token: n.GetToken()}
}

// checker compares a document with the type that it is decoded into. Unknown keys are the decoder's to refuse.
type checker struct{ emptyIsAbsent bool }

func (c checker) value(n ast.Node, t reflect.Type) error {
	for t.Kind() == reflect.Pointer && !own(t) {
		t = t.Elem()
	}
	found := word(n)
	if found == wordNothing && c.emptyIsAbsent {
		return nil
	}
	if own(t) || own(reflect.PointerTo(t)) {
		if found == wordNothing {
			return at(n, "a value is wanted here, found nothing")
		}
		return nil
	}
	wanted := typeWord(t)
	switch {
	case wanted == "" || found == "":
		return nil
	case wanted == wordWhole && n.Type() == ast.IntegerType:
	case wanted == wordText && (found == wordNumber || found == wordBool):
		return at(n, "text is wanted here, found %s; to mean the text write it in quotes, %s", found, strconv.Quote(written(n)))
	case wanted != found:
		return at(n, "%s is wanted here, found %s", wanted, found)
	}
	switch n := n.(type) {
	case *ast.SequenceNode:
		for _, e := range n.Values {
			if err := c.value(e, t.Elem()); err != nil {
				return err
			}
		}
	case *ast.MappingNode:
		for _, e := range n.Values {
			if err := c.entry(e, t); err != nil {
				return err
			}
		}
	case *ast.MappingValueNode:
		return c.entry(n, t)
	}
	return nil
}

// entry checks one key of a mapping and its value.
func (c checker) entry(e *ast.MappingValueNode, t reflect.Type) error {
	if t.Kind() == reflect.Map {
		if err := c.value(e.Key, t.Key()); err != nil {
			return err
		}
		return c.value(e.Value, t.Elem())
	}
	key, ok := e.Key.(*ast.StringNode)
	if !ok {
		return nil
	}
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ","); name == key.Value {
			return c.value(e.Value, t.Field(i).Type)
		}
	}
	return nil
}

// written is a scalar as the file has it.
func written(n ast.Node) string { return strings.TrimSpace(n.GetToken().Origin) }

// own reports whether t decodes itself, so that its inside is not ours to check.
func own(t reflect.Type) bool {
	for _, i := range []reflect.Type{
		reflect.TypeFor[yaml.NodeUnmarshaler](), reflect.TypeFor[yaml.InterfaceUnmarshaler](), reflect.TypeFor[yaml.BytesUnmarshaler](),
	} {
		if t.Implements(i) {
			return true
		}
	}
	return t.Kind() == reflect.Interface
}

const (
	wordList    = "a list"
	wordMapping = "a mapping (key: value)"
	wordText    = "text"
	wordNumber  = "a number"
	wordWhole   = "a whole number"
	wordBool    = "true or false"
	wordNothing = "nothing"
)

// word says what a value is, "" for what is left to the decoder.
func word(n ast.Node) string {
	switch n.Type() {
	case ast.SequenceType:
		return wordList
	case ast.MappingType, ast.MappingValueType:
		return wordMapping
	case ast.StringType, ast.LiteralType:
		return wordText
	case ast.IntegerType, ast.FloatType, ast.InfinityType, ast.NanType:
		return wordNumber
	case ast.BoolType:
		return wordBool
	case ast.NullType:
		return wordNothing
	}
	return ""
}

func typeWord(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		return wordList
	case reflect.Map, reflect.Struct:
		return wordMapping
	case reflect.String:
		return wordText
	case reflect.Bool:
		return wordBool
	case reflect.Float32, reflect.Float64:
		return wordNumber
	}
	if t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64 {
		return wordWhole
	}
	return ""
}
