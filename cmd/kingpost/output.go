package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// outputFlag is -o of a command.
type outputFlag string

var outputs = [...]string{"table", "json", "yaml"}

func (o *outputFlag) String() string { return string(*o) }
func (o *outputFlag) Type() string   { return "FORMAT" }
func (o *outputFlag) Set(s string) error {
	if !slices.Contains(outputs[:], s) {
		return fmt.Errorf("wanted one of %s", strings.Join(outputs[:], ", "))
	}
	*o = outputFlag(s)
	return nil
}

// addOutput gives cmd the flag -o.
func addOutput(cmd *cobra.Command) *outputFlag {
	o := outputFlag("table")
	cmd.Flags().VarP(&o, "output", "o", "how to print: table, json or yaml")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs[:], cobra.ShellCompDirectiveNoFileComp))
	return &o
}

// print writes v as JSON or YAML, or has table write it.
func (o outputFlag) print(w io.Writer, v any, table func(io.Writer) error) error {
	if o == "table" {
		return table(&escaping{w})
	}
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write the result as JSON: %w", err)
	}
	if o == "yaml" {
		// By way of JSON, so that both have the same names.
		if b, err = yaml.JSONToYAML(b); err != nil {
			return fmt.Errorf("write the result as YAML: %w", err)
		}
		b = []byte(strings.TrimSuffix(string(b), "\n"))
	}
	_, err = fmt.Fprintf(w, "%s\n", b)
	return err
}

// table is rows under a header. Where the output is a terminal that is too narrow, the widest column is
// cut; anywhere else nothing is.
type table struct {
	header []string
	rows   [][]string
}

func newTable(header ...string) *table { return &table{header: header} }

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

const gap = "  "

func (t *table) write(w io.Writer) error {
	t.dropEmpty()
	widths := make([]int, len(t.header))
	all := append([][]string{t.header}, t.rows...)
	for _, row := range all {
		for i, c := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	fit(widths, terminalWidth(w))
	for _, row := range all {
		var line strings.Builder
		for i, c := range row {
			c = cut(c, widths[i])
			line.WriteString(c)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c)) + gap)
			}
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// dropEmpty leaves out columns in which no row says anything.
func (t *table) dropEmpty() {
	if len(t.rows) == 0 {
		return
	}
	for i := len(t.header) - 1; i >= 0; i-- {
		if slices.ContainsFunc(t.rows, func(r []string) bool { return r[i] != "" }) {
			continue
		}
		t.header = slices.Delete(slices.Clone(t.header), i, i+1)
		for j := range t.rows {
			t.rows[j] = slices.Delete(slices.Clone(t.rows[j]), i, i+1)
		}
	}
}

// fit shrinks the widest columns until all fit into width; 0 is no limit. No column gets below 8.
func fit(widths []int, width int) {
	if width == 0 {
		return
	}
	for {
		sum, widest := len(gap)*(len(widths)-1), 0
		for i, n := range widths {
			sum += n
			if n > widths[widest] {
				widest = i
			}
		}
		if sum <= width || widths[widest] <= 8 {
			return
		}
		widths[widest]--
	}
}

func cut(s string, width int) string {
	r := []rune(s)
	if len(r) <= width {
		return s
	}
	return string(r[:width-1]) + "…"
}

// terminalWidth is the width of the terminal that w is, 0 when it is none.
func terminalWidth(w io.Writer) int {
	if in, ok := w.(*indented); ok {
		if width := terminalWidth(in.w); width > 0 {
			return max(width-len(indent), 1)
		}
		return 0
	}
	if s, ok := w.(*escaping); ok {
		return terminalWidth(s.w)
	}
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// isTerminal says whether v is a terminal.
func isTerminal(v any) bool {
	f, ok := v.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
