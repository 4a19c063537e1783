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
// of objects as a table, and what nests deeper as an indented block below. The order is that of the JSON.
func render(w io.Writer, raw json.RawMessage) error {
	v, err := parse(raw)
	if err != nil {
		return err
	}
	var r renderer
	if v == nil {
		return nil
	}
	err = r.block(w, v)
	if err == nil && r.cut {
		_, err = fmt.Fprintln(w, "\nA cell that ends in … was cut; -o json shows it whole.")
	}
	return err
}

// maxCell is how many characters a list or an object may take in a cell.
const maxCell = 60

// renderer knows whether anything was cut.
type renderer struct{ cut bool }

// cell is a value in a table. Plain text stays whole, since somebody may want to copy it.
func (r *renderer) cell(v any) string {
	s := text(v)
	switch v.(type) {
	case object, []any:
		short := cut(s, maxCell)
		r.cut = r.cut || short != s
		return short
	}
	return s
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

// object writes the fields that fit on a line, then the others under their names.
func (r *renderer) object(w io.Writer, o object) error {
	width := 0
	for _, f := range o {
		if !isBlock(f.value) {
			width = max(width, len(f.name))
		}
	}
	for _, f := range o {
		if isBlock(f.value) {
			continue
		}
		if _, err := fmt.Fprintf(w, "%-*s  %s\n", width, f.name, text(f.value)); err != nil {
			return err
		}
	}
	for _, f := range o {
		if !isBlock(f.value) {
			continue
		}
		if _, err := fmt.Fprintf(w, "\n%s\n", strings.ToUpper(f.name)); err != nil {
			return err
		}
		below := w
		if _, ok := f.value.(object); ok {
			below = &indented{w: w}
		}
		if err := r.block(below, f.value); err != nil {
			return err
		}
	}
	return nil
}

// block writes a value on lines of its own.
func (r *renderer) block(w io.Writer, v any) error {
	switch v := v.(type) {
	case object:
		return r.object(w, v)
	case []any:
		return r.list(w, v)
	}
	_, err := fmt.Fprintln(w, text(v))
	return err
}

func isTable(v any) bool {
	list, ok := v.([]any)
	if !ok || len(list) == 0 {
		return false
	}
	_, ok = list[0].(object)
	return ok
}

// isBlock says whether a value has a table in it, which no line can hold.
func isBlock(v any) bool {
	if o, ok := v.(object); ok {
		return slices.ContainsFunc(o, func(f field) bool { return isBlock(f.value) })
	}
	return isTable(v)
}

func (r *renderer) list(w io.Writer, list []any) error {
	if !isTable(list) {
		for _, v := range list {
			if _, err := fmt.Fprintln(w, text(v)); err != nil {
				return err
			}
		}
		return nil
	}
	// Columns are what the rows have; what has a table in it in any row comes below, row by row.
	var columns, blocks []string
	for _, v := range list {
		o, _ := v.(object)
		for _, f := range o {
			if isBlock(f.value) && !slices.Contains(blocks, f.name) {
				blocks = append(blocks, f.name)
			}
			if !slices.Contains(columns, f.name) {
				columns = append(columns, f.name)
			}
		}
	}
	columns = slices.DeleteFunc(columns, func(c string) bool { return slices.Contains(blocks, c) })
	if err := r.table(w, columns, list); err != nil {
		return err
	}
	for i, v := range list {
		o, _ := v.(object)
		name := fmt.Sprint(i + 1)
		if len(columns) > 0 && text(o.get(columns[0])) != "" {
			name = text(o.get(columns[0]))
		}
		for _, b := range blocks {
			value := o.get(b)
			if value == nil {
				continue
			}
			if _, err := fmt.Fprintf(w, "\n%s of %s\n", strings.ToUpper(b), name); err != nil {
				return err
			}
			if err := r.block(&indented{w: w}, value); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *renderer) table(w io.Writer, columns []string, rows []any) error {
	if len(columns) == 0 {
		return nil
	}
	header := make([]string, len(columns))
	for i, c := range columns {
		header[i] = strings.ToUpper(c)
	}
	t := newTable(header...)
	for _, v := range rows {
		o, _ := v.(object)
		row := make([]string, len(columns))
		for i, c := range columns {
			row[i] = r.cell(o.get(c))
		}
		t.add(row...)
	}
	return t.write(w)
}

// indented writes every line that is not empty two columns further right.
type indented struct {
	w       io.Writer
	midLine bool
}

const indent = "  "

func (i *indented) Write(p []byte) (int, error) {
	var b bytes.Buffer
	for line := range bytes.Lines(p) {
		if !i.midLine && len(line) > 1 {
			b.WriteString(indent)
		}
		b.Write(line)
		i.midLine = line[len(line)-1] != '\n'
	}
	if _, err := i.w.Write(b.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// text is a value on one line, as a terminal may show it.
func text(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return printableLine(strings.ReplaceAll(v, "\n", " "))
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
