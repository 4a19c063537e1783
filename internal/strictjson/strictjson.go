// Package strictjson decodes JSON the way that a person who made a typing error wants it decoded: an
// unknown field, a field in the wrong case, a key that stands twice, a wrong type and anything after
// the value are errors that name their place ("resources[2].health.retries"), and input is bounded.
//
// It never guesses and keeps no state. Start at Decode.
package strictjson

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"sort"
	"strconv"
	"strings"
)

// ErrTooLarge is wrapped by the error of Decode when the input is larger than its bound.
var ErrTooLarge = errors.New("too large")

// Decode reads one JSON value of at most max bytes from r into v, a pointer.
func Decode(r io.Reader, max int64, v any) error {
	b, err := io.ReadAll(io.LimitReader(r, max+1))
	if err != nil {
		return fmt.Errorf("read JSON: %w", err)
	}
	if int64(len(b)) > max {
		return fmt.Errorf("JSON is %w: more than the %d bytes that are allowed", ErrTooLarge, max)
	}
	return Unmarshal(b, v)
}

// Unmarshal decodes b, one JSON value and nothing else, into v, a pointer.
func Unmarshal(b []byte, v any) error {
	t := reflect.TypeOf(v)
	if t == nil || t.Kind() != reflect.Pointer {
		return fmt.Errorf("decode JSON: %T is no pointer", v)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	c := checker{dec: dec, src: b, known: map[reflect.Type]map[string]reflect.Type{}}
	if err := c.value(t.Elem(), ""); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return fmt.Errorf("%s: there is more after the JSON value; remove it", c.line())
	}
	if err := json.Unmarshal(b, v); err != nil {
		var te *json.UnmarshalTypeError
		if errors.As(err, &te) && te.Field != "" {
			return fmt.Errorf("%s: a JSON %s does not fit here", te.Field, te.Value)
		}
		return fmt.Errorf("decode JSON: %w", err)
	}
	return nil
}

// maxDepth bounds how deep values may stand in each other. Nothing of ours is deeper than ten; without
// a bound the places of a million opening brackets alone fill a machine's memory.
const maxDepth = 64

type checker struct {
	dec   *json.Decoder
	src   []byte
	depth int
	known map[reflect.Type]map[string]reflect.Type // to look a type's fields up once, not at each of its keys
}

func (c *checker) fieldsOf(t reflect.Type) map[string]reflect.Type {
	f, ok := c.known[t]
	if !ok {
		f = fieldsOf(t)
		c.known[t] = f
	}
	return f
}

// line is where the decoder stands, for syntax errors, which have no place in the value.
func (c *checker) line() string {
	off := min(int(c.dec.InputOffset()), len(c.src))
	return "line " + strconv.Itoa(1+bytes.Count(c.src[:off], []byte("\n")))
}

func (c *checker) syntax(path string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("the JSON ends in the middle")
	}
	if path != "" {
		return fmt.Errorf("%s (%s): %w", path, c.line(), err)
	}
	return fmt.Errorf("%s: %w", c.line(), err)
}

var (
	unmarshaler     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// own reports whether t decodes itself, so that its inside is not ours to check.
func own(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(unmarshaler) || p.Implements(textUnmarshaler) || t.Kind() == reflect.Interface
}

func (c *checker) value(t reflect.Type, path string) error {
	if c.depth++; c.depth > maxDepth {
		return fmt.Errorf("%s: values stand in each other deeper than %d levels", c.line(), maxDepth)
	}
	defer func() { c.depth-- }()
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	tok, err := c.dec.Token()
	if err != nil {
		return c.syntax(path, err)
	}
	where := func(format string, a ...any) error {
		p := path
		if p == "" {
			p = c.line()
		}
		return fmt.Errorf("%s: "+format, append([]any{p}, a...)...)
	}
	if own(t) {
		if d, ok := tok.(json.Delim); ok {
			return c.skip(d, path)
		}
		return nil
	}
	switch tok := tok.(type) {
	case json.Delim:
		switch {
		case tok == '{' && t.Kind() == reflect.Struct:
			fields := c.fieldsOf(t)
			return c.object(path, func(key string) (reflect.Type, error) {
				ft, ok := fields[key]
				if !ok {
					return nil, where("unknown field %.60q%s", key, nearest(key, fields))
				}
				return ft, nil
			})
		case tok == '{' && t.Kind() == reflect.Map:
			return c.object(path, func(string) (reflect.Type, error) { return t.Elem(), nil })
		case tok == '[' && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array):
			for i := 0; c.dec.More(); i++ {
				if err := c.value(t.Elem(), path+"["+strconv.Itoa(i)+"]"); err != nil {
					return err
				}
			}
			if _, err := c.dec.Token(); err != nil {
				return c.syntax(path, err)
			}
			return nil
		case tok == '{':
			return where("an object stands where %s belongs", kindName(t))
		default:
			return where("a list stands where %s belongs", kindName(t))
		}
	case string:
		if t.Kind() != reflect.String && !(t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8) {
			return where("a text stands where %s belongs", kindName(t))
		}
	case json.Number:
		if err := fits(t, tok.String()); err != nil {
			return where("%w", err)
		}
	case bool:
		if t.Kind() != reflect.Bool {
			return where("%t stands where %s belongs", tok, kindName(t))
		}
	case nil: // null leaves the zero value, as encoding/json does
	}
	return nil
}

func (c *checker) object(path string, field func(key string) (reflect.Type, error)) error {
	seen := map[string]bool{}
	for c.dec.More() {
		tok, err := c.dec.Token()
		if err != nil {
			return c.syntax(path, err)
		}
		key, ok := tok.(string)
		if !ok {
			return c.syntax(path, fmt.Errorf("%v is no key", tok))
		}
		p := shown(key)
		if path != "" {
			p = path + "." + p
		}
		if seen[key] {
			return fmt.Errorf("%s: the key stands twice", p)
		}
		seen[key] = true
		ft, err := field(key)
		if err != nil {
			return err
		}
		if err := c.value(ft, p); err != nil {
			return err
		}
	}
	if _, err := c.dec.Token(); err != nil {
		return c.syntax(path, err)
	}
	return nil
}

// skip reads to the end of a value whose first delimiter was d, refusing keys that stand twice.
func (c *checker) skip(d json.Delim, path string) error {
	anything := reflect.TypeFor[any]()
	if d == '{' {
		return c.object(path, func(string) (reflect.Type, error) { return anything, nil })
	}
	for i := 0; c.dec.More(); i++ {
		if err := c.value(anything, path+"["+strconv.Itoa(i)+"]"); err != nil {
			return err
		}
	}
	if _, err := c.dec.Token(); err != nil {
		return c.syntax(path, err)
	}
	return nil
}

// shown is a key as it may stand in a message: who wrote it may have written anything.
func shown(key string) string {
	if q := strconv.Quote(key); len(key) > 60 || q != `"`+key+`"` {
		return fmt.Sprintf("%.60q", key)
	}
	return key
}

func fits(t reflect.Type, n string) error {
	var err error
	switch t.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		_, err = strconv.ParseInt(n, 10, t.Bits())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		_, err = strconv.ParseUint(n, 10, t.Bits())
	case reflect.Float32, reflect.Float64:
		_, err = strconv.ParseFloat(n, t.Bits())
	default:
		return fmt.Errorf("a number stands where %s belongs", kindName(t))
	}
	if err != nil {
		return fmt.Errorf("%.40s is not %s", n, kindName(t))
	}
	return nil
}

func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a text"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number that is not negative"
	default:
		return "a whole number"
	}
}

// fieldsOf maps the JSON keys of struct t to their types, embedded structs included.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	m := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || !f.IsExported() || f.Anonymous && name == "" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		m[name] = f.Type
	}
	return m
}

// nearest suggests the field that differs from key by case only, or lists what there is.
func nearest(key string, fields map[string]reflect.Type) string {
	names := make([]string, 0, len(fields))
	for n := range fields {
		if strings.EqualFold(n, key) {
			return fmt.Sprintf("; %q is meant", n)
		}
		names = append(names, n)
	}
	if len(names) == 0 {
		return "; there are no fields here"
	}
	sort.Strings(names)
	return "; known are " + strings.Join(names, ", ")
}
