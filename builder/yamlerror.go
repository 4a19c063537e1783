package builder

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// explainYAML says an error of the YAML decoder in the words of somebody who writes a recipe: name, line and column,
// what is wrong there, and the lines around it.
func explainYAML(name string, err error) error {
	var at yaml.Error
	if !errors.As(err, &at) {
		return fmt.Errorf("%s: %w", name, err)
	}
	where, text := name, strings.TrimSpace(yaml.FormatError(at, false, true))
	if t := at.GetToken(); t != nil && t.Position != nil {
		where = fmt.Sprintf("%s:%d:%d", name, t.Position.Line, t.Position.Column)
		text = strings.TrimPrefix(text, fmt.Sprintf("[%d:%d] ", t.Position.Line, t.Position.Column))
	}
	if words := typeWords(err); words != "" {
		text = strings.Replace(text, at.GetMessage(), words, 1)
	}
	return fmt.Errorf("%s: %s", where, text)
}

// typeWords says what was wanted and what was found, "" where err is not about that.
func typeWords(err error) string {
	var node *yaml.UnexpectedNodeTypeError
	var typ *yaml.TypeError
	wanted, found := "", ""
	switch {
	case errors.As(err, &node):
		wanted, found = nodeWord(node.Expected), nodeWord(node.Actual)
	case errors.As(err, &typ):
		wanted, found = typeWord(typ.DstType), typeWord(typ.SrcType)
	}
	if wanted == "" || found == "" {
		return ""
	}
	return fmt.Sprintf("%s is wanted here, found %s", wanted, found)
}

const (
	wordList    = "a list"
	wordMapping = "a mapping (key: value)"
	wordText    = "text"
	wordNumber  = "a number"
	wordBool    = "true or false"
)

func nodeWord(t ast.NodeType) string {
	switch t {
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
		return "nothing"
	}
	return ""
}

func typeWord(t reflect.Type) string {
	if t == nil {
		return "nothing"
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		return wordList
	case reflect.Map, reflect.Struct:
		return wordMapping
	case reflect.String:
		return wordText
	case reflect.Bool:
		return wordBool
	case reflect.Pointer:
		return typeWord(t.Elem())
	}
	if t.Kind() >= reflect.Int && t.Kind() <= reflect.Float64 {
		return wordNumber
	}
	return ""
}
