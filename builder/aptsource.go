package builder

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// aptSource is one source of packages, as a line of sources.list.
type aptSource struct {
	options string // what stands in brackets, without them
	uri     string
	suite   string
	parts   []string // components
}

func (s aptSource) line() string {
	opt := ""
	if s.options != "" {
		opt = "[" + s.options + "] "
	}
	return "deb " + opt + s.uri + " " + s.suite + " " + strings.Join(s.parts, " ")
}

// debianSource is a source of Debian itself that the machine's sources do not name.
func debianSource(uri, suite string) aptSource {
	return aptSource{"signed-by=/usr/share/keyrings/debian-archive-keyring.gpg", uri, suite, []string{"main", "non-free-firmware"}}
}

// suiteSources is the machine's own sources of Debian itself, in etc ("/etc" as fs.FS), turned to another suite:
// its codename, and that with -updates and -security. Sources of others are left out.
func suiteSources(etc fs.FS, suite string) ([]aptSource, error) {
	codename, err := osCodename(etc)
	if err != nil {
		return nil, err
	}
	all, err := readSources(etc)
	if err != nil {
		return nil, err
	}
	var out []aptSource
	for _, s := range all {
		rest, ok := strings.CutPrefix(s.suite, codename)
		if !ok || (rest != "" && rest != "-updates" && rest != "-security") {
			continue
		}
		if !slices.Contains(s.parts, "main") || (strings.Contains(s.options, "signed-by") && !strings.Contains(s.options, "debian-archive")) {
			continue
		}
		s.suite = suite + rest
		// Firmware packages live there.
		s.parts = []string{"main", "non-free-firmware"}
		if !slices.ContainsFunc(out, func(o aptSource) bool { return o.line() == s.line() }) {
			out = append(out, s)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("this machine's apt sources have none of Debian %s to turn to %s; --mirror names one", codename, suite)
	}
	return out, nil
}

func osCodename(etc fs.FS) (string, error) {
	b, err := fs.ReadFile(etc, "os-release")
	if err != nil {
		return "", fmt.Errorf("find out which Debian this machine has: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "VERSION_CODENAME="); ok {
			return strings.Trim(v, `"'`), nil
		}
	}
	return "", errors.New("/etc/os-release has no VERSION_CODENAME: packages are taken from Debian's apt, or from --debs")
}

func readSources(etc fs.FS) ([]aptSource, error) {
	var out []aptSource
	names := []string{"apt/sources.list"}
	for _, pattern := range []string{"apt/sources.list.d/*.list", "apt/sources.list.d/*.sources"} {
		more, err := fs.Glob(etc, pattern)
		if err != nil {
			return nil, err
		}
		names = append(names, more...)
	}
	for _, n := range names {
		b, err := fs.ReadFile(etc, n)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read apt's sources: %w", err)
		}
		// Debian 12's images have a deb822 text under either name.
		if path.Ext(n) == ".sources" {
			out = append(out, parseDeb822(string(b))...)
		} else {
			out = append(out, parseSourceLines(string(b))...)
		}
	}
	return out, nil
}

// parseSourceLines reads the one-line format of sources.list(5).
func parseSourceLines(text string) []aptSource {
	var out []aptSource
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "deb ")
		if !ok {
			continue
		}
		var s aptSource
		rest = strings.TrimSpace(rest)
		if strings.HasPrefix(rest, "[") {
			opt, after, ok := strings.Cut(rest[1:], "]")
			if !ok {
				continue
			}
			s.options, rest = strings.TrimSpace(opt), after
		}
		f := strings.Fields(rest)
		if len(f) < 3 {
			continue
		}
		s.uri, s.suite, s.parts = f[0], f[1], f[2:]
		out = append(out, s)
	}
	return out
}

// parseDeb822 reads the stanza format of sources.list(5).
func parseDeb822(text string) []aptSource {
	var out []aptSource
	for _, st := range parseStanzas(text) {
		if !slices.Contains(strings.Fields(st["types"]), "deb") || strings.EqualFold(st["enabled"], "no") {
			continue
		}
		opt := ""
		if k := strings.TrimSpace(st["signed-by"]); strings.HasPrefix(k, "/") {
			opt = "signed-by=" + k
		} else if k != "" {
			continue // a key inside the stanza cannot be carried over in a line
		}
		for _, uri := range strings.Fields(st["uris"]) {
			for _, suite := range strings.Fields(st["suites"]) {
				out = append(out, aptSource{opt, uri, suite, strings.Fields(st["components"])})
			}
		}
	}
	return out
}

// parseStanzas reads deb822(5) paragraphs; keys are in lower case.
func parseStanzas(text string) []map[string]string {
	var out []map[string]string
	cur, last := map[string]string{}, ""
	flush := func() {
		if len(cur) > 0 {
			out = append(out, cur)
		}
		cur, last = map[string]string{}, ""
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.TrimSpace(line) == "":
			flush()
		case line[0] == ' ' || line[0] == '\t':
			if last != "" {
				cur[last] += "\n" + strings.TrimSpace(line)
			}
		default:
			if k, v, ok := strings.Cut(line, ":"); ok {
				last = strings.ToLower(strings.TrimSpace(k))
				cur[last] = strings.TrimSpace(v)
			}
		}
	}
	flush()
	return out
}
