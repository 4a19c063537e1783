package seat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// maxDepth bounds how deep parameters may nest; a manifest needs seven.
const maxDepth = 32

// decode reads params into p, strictly: one JSON object, no field that p lacks, no field twice, names in
// their exact case. given is false for absent or null params, which leave p as it is.
func decode(params json.RawMessage, names []string, p any) (given bool, err error) {
	trimmed := bytes.TrimSpace(params)
	if len(trimmed) == 0 || bytes.Equal(trimmed, []byte("null")) {
		return false, nil
	}
	if trimmed[0] != '{' {
		return true, errors.New("must be a JSON object")
	}
	// encoding/json takes the last of two equal fields and matches names in any case. Both would let
	// two readers of the same bytes see different things.
	if err := checkObject(trimmed, names); err != nil {
		return true, err
	}
	dec := json.NewDecoder(bytes.NewReader(trimmed))
	dec.DisallowUnknownFields()
	if err := dec.Decode(p); err != nil {
		return true, explain(err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return true, errors.New("something follows the JSON object")
	}
	return true, nil
}

// explain says a type error in words of the caller's JSON, not of Go's types.
func explain(err error) error {
	var te *json.UnmarshalTypeError
	if errors.As(err, &te) {
		return fmt.Errorf("%s cannot be a %s", te.Field, te.Value)
	}
	return err
}

// checkObject walks JSON and refuses repeated fields at any depth, and names at the top that are not in names.
func checkObject(b []byte, names []string) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	type level struct {
		object bool
		key    bool // the next string is a key
		seen   map[string]struct{}
	}
	var stack []level
	for {
		tok, err := dec.Token()
		if err == io.EOF {
			if len(stack) > 0 {
				return io.ErrUnexpectedEOF
			}
			return nil
		}
		if err != nil {
			return err
		}
		top := len(stack) - 1
		if d, ok := tok.(json.Delim); ok {
			switch d {
			case '{', '[':
				if len(stack) == maxDepth {
					return fmt.Errorf("nested deeper than %d", maxDepth)
				}
				stack = append(stack, level{object: d == '{', key: d == '{', seen: map[string]struct{}{}})
				continue
			default:
				stack = stack[:top]
				top--
				if top < 0 {
					continue
				}
			}
		} else if top >= 0 && stack[top].key {
			k := tok.(string)
			if _, twice := stack[top].seen[k]; twice {
				return fmt.Errorf("the field %q is given twice", k)
			}
			stack[top].seen[k] = struct{}{}
			if top == 0 && !slices.Contains(names, k) {
				return fmt.Errorf("unknown field %q (known: %v)", k, names)
			}
			stack[top].key = false
			continue
		}
		if top >= 0 && stack[top].object {
			stack[top].key = true
		}
	}
}
