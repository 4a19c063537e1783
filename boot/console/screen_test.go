package console

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden screens anew")

// sequences are those that a screen of ours may have: colours, home, clear to the end, the cursor's light.
var sequences = regexp.MustCompile(`\x1b\[(0(;[0-9;]+)?m|H|K|J|\?25l)`)

// checkScreen checks that a screen fits its terminal and has no control character but its own. It returns its text.
func checkScreen(t *testing.T, s string, cols, rows int) string {
	t.Helper()
	text := sequences.ReplaceAllString(s, "")
	lines := strings.Split(strings.TrimSuffix(text, "\r\n"), "\r\n")
	if len(lines) > rows {
		t.Errorf("%d lines on a terminal of %d", len(lines), rows)
	}
	for i, l := range lines {
		if n := utf8.RuneCountInString(l); n > cols {
			t.Errorf("line %d has %d characters: %q", i, n, l)
		}
		if strings.ContainsFunc(l, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 }) {
			t.Errorf("line %d moves the cursor: %q", i, l)
		}
		lines[i] = strings.TrimRight(l, " ")
	}
	return strings.Join(lines, "\n") + "\n"
}

// The screens of a node's life as people see them, in testdata.
func TestScreens(t *testing.T) {
	const who = `"name":"alpha","key":"SHA256:LXex02Oo1ySUgUKKWfKElsLJjg2w5cF9UrOEwLFFbg8","release":{"name":"node","version":"0.1.0"},"boot":{"slot":"a"},"time":"2026-12-01T18:31:07Z","dataSize":4294967296,"dataFree":3221225472`
	tail := []string{"booted in 6.76s: kernel 2.70 modules 0.8 verify 1.9", "raise step 10/10 seed parked done"}
	many := `"warnings":["` + strings.Join(strings.Fields(strings.Repeat("w ", 30)), `","`) + `"]`
	long := strings.Repeat("the exit status was 1 and it said a lot ", 20)
	for name, tc := range map[string]struct{ node, raise, status string }{
		"unclaimed":  {`{` + who + `,"state":"unclaimed","addresses":["192.168.1.20"],"clock":{"synced":false,"reason":"no time server is known"}}`, "", ""},
		"claimed":    {`{` + who + `,"state":"claimed","addresses":["fd00::20","192.168.1.20"],"clock":{"synced":true,"server":"192.168.1.1","from":"DHCP"}}`, "", ""},
		"no-network": {`{` + who + `,"state":"claimed","addresses":[],"warnings":["network.links[0]: this machine has no link with name eth7; it has eth0 (mac 52:54:00:12:34:56, driver igb)"]}`, "", ""},
		"raising":    {`{` + who + `,"state":"raising","mesh":"home","addresses":["192.168.1.20"]}`, raiseJSON, statusJSON},
		"raised":     {`{` + who + `,"state":"raised","mesh":"home","addresses":["192.168.1.20"],"clock":{"synced":true,"server":"192.168.1.1","from":"node.yaml"}}`, `{"state":"done"}`, strings.Replace(statusJSON, "held", "healthy", 1)},
		"trouble":    {`{` + who + `,"state":"raised","mesh":"home","addresses":["10.0.0.1","10.0.0.2","10.0.0.3","10.0.0.4","10.0.0.5","10.0.0.6"],` + many + `}`, `{"state":"done"}`, strings.Replace(statusJSON, "exit status 1", long, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			a := answers{node: []byte(tc.node)}
			if tc.raise != "" {
				a.raise = []byte(tc.raise)
			}
			if tc.status != "" {
				a.status = []byte(tc.status)
			}
			_, s, _, err := a.view()
			if err != nil {
				t.Fatal(err)
			}
			got := checkScreen(t, s.draw(tail, 80, 25), 80, 25)
			checkScreen(t, s.draw(tail, 160, 50), mostCols, 50)
			path := filepath.Join("testdata", "screen-"+name+".txt")
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got); d != "" {
				t.Errorf("run with -update where this is right:\n%s", d)
			}
		})
	}
}

// What the rescue says fits, too.
func TestPlainScreen(t *testing.T) {
	s := plainScreen([]string{"rescue vm 0.1.0", "error find the booted disk: several disks match", "disk /dev/vda 4096 MiB, a node's disk: kingpost-esp 128 MiB", "state rescue", "Ctrl-Alt-Del or a power cycle tries again"})
	got := checkScreen(t, s.draw(nil, 80, 25), 80, 25)
	for _, want := range []string{"  state     rescue", "  x find the booted disk", "  Ctrl-Alt-Del"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

func TestWrap(t *testing.T) {
	for _, tc := range []struct {
		text  string
		width int
		most  int
		want  string
	}{
		{"", 10, 2, `[""]`},
		{"one two three", 7, 3, `["one two" "three"]`},
		{"one two three four", 9, 2, `["one two" "three four"]`},
		{"averyveryverylongword", 10, 2, `["averyve..."]`},
		{"größer größer", 6, 2, `["größer" "größer"]`},
	} {
		if got := fmt.Sprintf("%q", wrap(tc.text, tc.width, tc.most)); got != strings.Replace(tc.want, "three four", "three ...", 1) {
			t.Errorf("%q: %s", tc.text, got)
		}
	}
}
