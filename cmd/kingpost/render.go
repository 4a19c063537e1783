package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// render writes the result of a verb for a person, whatever the verb is: simple fields as lines, a list
// of objects as a table. The order is that of the JSON.
func render(w io.Writer, raw json.RawMessage) error {
	v, err := parse(raw)
	if err != nil {
		return err
	}
	switch v := v.(type) {
	case object:
		return renderObject(w, v)
	case []any:
		return renderList(w, v)
	case nil:
		return nil
	}
	_, err = fmt.Fprintln(w, text(v))
	return err
}

// object is a JSON object that keeps its order.
type object []field

type field struct {
	name  string
	value any
}

func (o object) get(name string) any {
	for _, f := range o {
		if f.name == name {
			return f.value
		}
	}
	return nil
}

func parse(raw json.RawMessage) (any, error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	v, err := parseValue(d, 0)
	if err != nil {
		return nil, fmt.Errorf("the answer is no JSON: %w", err)
	}
	return v, nil
}

// maxDepth bounds how deep an answer may nest: it comes from outside, and each level is a call here.
const maxDepth = 100

func parseValue(d *json.Decoder, depth int) (any, error) {
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	if depth > maxDepth {
		return nil, fmt.Errorf("it nests deeper than %d", maxDepth)
	}
	switch t {
	case json.Delim('{'):
		o := object{}
		for d.More() {
			name, err := d.Token()
			if err != nil {
				return nil, err
			}
			v, err := parseValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			o = append(o, field{name.(string), v})
		}
		_, err = d.Token()
		return o, err
	case json.Delim('['):
		list := []any{}
		for d.More() {
			v, err := parseValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err = d.Token()
		return list, err
	}
	return t, nil
}

// renderObject writes the fields that fit on a line, then the lists under their names.
func renderObject(w io.Writer, o object) error {
	width := 0
	for _, f := range o {
		if !isTable(f.value) {
			width = max(width, len(f.name))
		}
	}
	for _, f := range o {
		if isTable(f.value) {
			continue
		}
		if _, err := fmt.Fprintf(w, "%-*s  %s\n", width, f.name, text(f.value)); err != nil {
			return err
		}
	}
	for _, f := range o {
		if !isTable(f.value) {
			continue
		}
		if _, err := fmt.Fprintf(w, "\n%s\n", strings.ToUpper(f.name)); err != nil {
			return err
		}
		if err := renderList(w, f.value.([]any)); err != nil {
			return err
		}
	}
	return nil
}

func isTable(v any) bool {
	list, ok := v.([]any)
	if !ok || len(list) == 0 {
		return false
	}
	_, ok = list[0].(object)
	return ok
}

func renderList(w io.Writer, list []any) error {
	if !isTable(list) {
		for _, v := range list {
			if _, err := fmt.Fprintln(w, text(v)); err != nil {
				return err
			}
		}
		return nil
	}
	var columns []string
	for _, v := range list {
		o, _ := v.(object)
		for _, f := range o {
			if !slices.Contains(columns, f.name) {
				columns = append(columns, f.name)
			}
		}
	}
	header := make([]string, len(columns))
	for i, c := range columns {
		header[i] = strings.ToUpper(c)
	}
	t := newTable(header...)
	for _, v := range list {
		o, _ := v.(object)
		row := make([]string, len(columns))
		for i, c := range columns {
			row[i] = text(o.get(c))
		}
		t.add(row...)
	}
	return t.write(w)
}

// text is a value on one line.
func text(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return strings.ReplaceAll(v, "\n", " ")
	case bool:
		if v {
			return "yes"
		}
		return "no"
	case []any:
		parts := make([]string, len(v))
		for i, e := range v {
			parts[i] = text(e)
		}
		return strings.Join(parts, ", ")
	case object:
		parts := make([]string, len(v))
		for i, f := range v {
			parts[i] = f.name + "=" + text(f.value)
		}
		return strings.Join(parts, " ")
	}
	return fmt.Sprint(v)
}
