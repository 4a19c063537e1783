package strictyaml

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
)

type part struct {
	Name  string            `yaml:"name"`
	Count int               `yaml:"count"`
	Share float64           `yaml:"share"`
	On    *bool             `yaml:"on"`
	List  []string          `yaml:"list"`
	Sums  map[string]string `yaml:"sums"`
	Parts []part            `yaml:"parts"`
	Deep  *part             `yaml:"deep"`
}

func TestUnmarshal(t *testing.T) {
	yes := true
	for _, c := range []struct {
		text string
		want part
	}{
		{"", part{}},
		{"# nothing\n", part{}},
		{"---\nname: a\n...\n", part{Name: "a"}},
		{"name: a\n---\n", part{Name: "a"}},
		{"name: \"1.0\"\ncount: 5\nshare: 2\non: true\n", part{Name: "1.0", Count: 5, Share: 2, On: &yes}},
		{"list: []\nsums: { a: b }\n", part{List: []string{}, Sums: map[string]string{"a": "b"}}},
		{"list:\n  - 2026-12-01\n  - 0.1.0\n  - |\n    x\n", part{List: []string{"2026-12-01", "0.1.0", "x\n"}}},
		{"parts:\n  - name: '[[[['\n    deep: { deep: { name: b } }\n", part{Parts: []part{{Name: "[[[[", Deep: &part{Deep: &part{Name: "b"}}}}}},
		{"name: a\r\nlist: [b]\r\n", part{Name: "a", List: []string{"b"}}},
	} {
		var got part
		if err := Unmarshal([]byte(c.text), &got); err != nil {
			t.Errorf("%q: %v", c.text, err)
		} else if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%q: %s", c.text, d)
		}
	}
}

func TestUnmarshalRefuses(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"nmae: a\n", `unknown field "nmae"`},
		{"name: a\nname: b\n", "already defined"},
		{"name: 5\n", `[1:7] text is wanted here, found a number; to mean the text write it in quotes, "5"`},
		{"name: 1.0\n", `"1.0"`},
		{"name: 0123\n", `"0123"`},
		{"name: 0x10\n", `"0x10"`},
		{"name: .inf\n", `".inf"`},
		{"name: true\n", "found true or false"},
		{"name:\n", "[1:7] text is wanted here, found nothing"},
		{"name: ~\n", "found nothing"},
		{"name: [a]\n", "text is wanted here, found a list"},
		{"name: { a: b }\n", "text is wanted here, found a mapping"},
		{"list: a\n", "a list is wanted here, found text"},
		{"list:\n", "a list is wanted here, found nothing"},
		{"list: [a, 5]\n", "[1:11] text is wanted here"},
		{"list: [a, ~]\n", "[1:11] text is wanted here, found nothing"},
		{"count: a\n", "a whole number is wanted here, found text"},
		{"count: \"5\"\n", "a whole number is wanted here, found text"},
		{"count: 5.5\n", "a whole number is wanted here, found a number"},
		{"share: a\n", "a number is wanted here, found text"},
		{"on: 1\n", "true or false is wanted here, found a number"},
		{"sums: { a: 1 }\n", "[1:12] text is wanted here"},
		{"sums: { 1: a }\n", "[1:9] text is wanted here"},
		{"parts:\n  - name: 5\n", "[2:11] text is wanted here"},
		{"deep: { deep: { name: 5 } }\n", "[1:23] text is wanted here"},
		{"deep:\n", "a mapping (key: value) is wanted here, found nothing"},
		{"name: a\n---\nname: b\n", "[3:5] there is a second document"},
		{"name: &a b\n", "anchors"},
		{"name: *a\n", "anchors"},
		{"<<: { name: a }\n", "anchors"},
		{"name: !!str 5\n", "tags"},
		{"hello\n", "a mapping (key: value) is wanted here, found text"},
		{"[a]\n", "a mapping (key: value) is wanted here, found a list"},
		{"name: [\n", ""},
	} {
		var v part
		err := Unmarshal([]byte(c.text), &v)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v, want %q in it", c.text, err, c.want)
		}
		var at yaml.Error
		if err != nil && !errors.As(err, &at) {
			t.Errorf("%q: the error has no place: %v", c.text, err)
		}
	}
}

func TestUnmarshalEmptyIsAbsent(t *testing.T) {
	var v part
	if err := Unmarshal([]byte("name:\nlist:\ndeep:\nparts:\n  - count: 1\n    list:\n"), &v, EmptyIsAbsent); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(part{Parts: []part{{Count: 1}}}, v); d != "" {
		t.Error(d)
	}
}

// TestUnmarshalBombs has small files that would take minutes and all memory if they reached the parser.
func TestUnmarshalBombs(t *testing.T) {
	const n = 100_000
	bomb := "list: &x0 [a, a, a, a, a, a, a, a, a, a]\n"
	for i := 1; i < 12; i++ {
		bomb += fmt.Sprintf("x%d: &x%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*x%d, ", i-1), 10), ", "))
	}
	steps := ""
	for i := range 600 {
		steps += strings.Repeat(" ", i) + "a:\n"
	}
	for name, text := range map[string]string{
		"lists":           "list: " + strings.Repeat("[", n) + strings.Repeat("]", n),
		"open lists":      "list: " + strings.Repeat("[", n),
		"lists in lines":  "list: " + strings.Repeat("[\n", n),
		"mappings":        strings.Repeat("{deep: ", n),
		"both":            strings.Repeat("[{deep: ", n),
		"blocks":          steps,
		"blocks of lists": "list:\n  " + strings.Repeat("- ", n),
		"keys":            strings.Repeat("? ", n),
		"aliases":         bomb,
		"a long line":     "nmae: [" + strings.Repeat("a, ", n) + "]",
		"tags":            "name: " + strings.Repeat("!a ", n),
	} {
		start := time.Now()
		var v part
		if err := Unmarshal([]byte(text), &v); err == nil || err.Error() == "" { // the text has an excerpt
			t.Errorf("%s: accepted", name)
		}
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("%s: took %s", name, d)
		}
	}
}

func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte("name: a\ncount: 5\nlist: [a, b]\nsums: { a: b }\nparts:\n  - deep: { on: true }\n"))
	f.Add([]byte("name: 1.0\n---\n- &a [*a]\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var v part
		_ = Unmarshal(b, &v)
	})
}

// TestNoText: what is no text is refused before an excerpt of it can reach a terminal.
func TestNoText(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"a program":     {"\x7fELF\x02\x01", "line 1, column 1"},
		"zeros":         {"name: a\nb: \x00", "line 2, column 4"},
		"an escape":     {"name: \"\x1b[31m\"", "column 8"},
		"not UTF-8":     {"name: a\xffb", "0xff"},
		"a C1 control":  {"name: \u009b31m", "line 1"},
		"tabs and CRLF": {"name: a # \tb\r\n", ""},
		"umlauts":       {"name: ü\n", ""},
	} {
		var v struct {
			Name string `yaml:"name"`
			B    string `yaml:"b"`
		}
		err := Unmarshal([]byte(c.in), &v)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 }) {
			t.Errorf("%s: the error echoes it: %q", name, err)
		}
	}
}
