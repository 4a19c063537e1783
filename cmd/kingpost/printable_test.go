package main

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestPrintable(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"plain":        {"a: b, \"c\" – ü\n\tnext", "a: b, \"c\" – ü\n\tnext"},
		"escape":       {"x\x1b[31mred\x07", `x\x1b[31mred\x07`},
		"C1":           {"\u009b31m", `\u009b31m`},
		"not UTF-8":    {"\xff\xfeELF\x00", `\xff\xfeELF\x00`},
		"turned round": {"a\u202eb", `a\u202eb`},
		"overwritten":  {"all is well\rerror\r\nnext", `all is well\x0derror` + "\nnext"},
		"long line":    {strings.Repeat("y", 3000), strings.Repeat("y", 2001) + "... and 999 bytes more"},
	} {
		if got := printable(c.in); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := printable(strings.Repeat("line\n", 100_000)); len(got) > maxMessage+100 || !strings.HasSuffix(got, "bytes more") {
		t.Errorf("%d bytes", len(got))
	}
}

func TestEscaping(t *testing.T) {
	var b strings.Builder
	long := strings.Repeat("y", 10_000)
	n, err := (&escaping{&b}).Write([]byte("NAME\tx\x1b[31m\n" + long + "\n"))
	if want := "NAME\tx\\x1b[31m\n" + long + "\n"; err != nil || n != len(long)+13 || b.String() != want {
		t.Errorf("%d, %v, %.60q", n, err, b.String())
	}
}

// TestReadSmall: what never ends is not read into memory.
func TestReadSmall(t *testing.T) {
	if b, err := readSmall("/dev/zero"); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if _, err := readSmall("/dev/null"); err != nil {
		t.Error(err)
	}
}

func FuzzPrintable(f *testing.F) {
	f.Add("a\x1b[2Jb\r\n\xff")
	f.Fuzz(func(t *testing.T, s string) {
		got := printable(s)
		if !utf8.ValidString(got) {
			t.Errorf("%q is no text", got)
		}
		for _, r := range got {
			if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
				t.Errorf("%q holds %q", got, r)
			}
		}
	})
}
