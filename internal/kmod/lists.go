package kmod

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Subset returns an index of only those modules, under the file names that rename gives them (nil: their own), for
// the lists of an image that holds only them. It reads each of them.
func (x *Index) Subset(ctx context.Context, modules []*Module, rename func(file string) string) (*Index, error) {
	y := &Index{Builtin: x.Builtin, fsys: x.fsys, byName: map[string]*Module{}}
	for _, m := range modules {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		info, err := x.Modinfo(m)
		if err != nil {
			return nil, fmt.Errorf("index kernel modules: %w", err)
		}
		n := &Module{Name: m.Name, File: m.File, info: info}
		n.once.Do(func() {}) // it is read already
		if rename != nil {
			n.File = rename(m.File)
		}
		y.byName[n.Name] = n
		y.Modules = append(y.Modules, n)
	}
	slices.SortFunc(y.Modules, func(a, b *Module) int { return strings.Compare(a.File, b.File) })
	return y, nil
}

// Decompressed is a rename for Subset: modules stored as plain ".ko".
func Decompressed(file string) string {
	return strings.TrimSuffix(strings.TrimSuffix(file, ".xz"), ".zst")
}

// Lists returns modules.dep, modules.alias, modules.softdep and modules.builtin by name, as depmod(8) writes them.
// What a Loader reads on a node.
func (x *Index) Lists(ctx context.Context) (map[string][]byte, error) {
	if err := x.readAll(ctx); err != nil {
		return nil, fmt.Errorf("index kernel modules: %w", err)
	}
	var dep, alias, softdep, builtin strings.Builder
	for _, m := range x.Modules {
		fmt.Fprintf(&dep, "%s:", m.File)
		// depmod lists all, indirect ones too, and what must be loaded first comes last.
		for _, d := range slices.Backward(x.hard(m)) {
			fmt.Fprintf(&dep, " %s", d.File)
		}
		dep.WriteByte('\n')
		for _, a := range m.info.Aliases {
			fmt.Fprintf(&alias, "alias %s %s\n", a, m.Name)
		}
		if len(m.info.Pre)+len(m.info.Post) > 0 {
			fmt.Fprintf(&softdep, "softdep %s", m.Name)
			if len(m.info.Pre) > 0 {
				fmt.Fprintf(&softdep, " pre: %s", strings.Join(m.info.Pre, " "))
			}
			if len(m.info.Post) > 0 {
				fmt.Fprintf(&softdep, " post: %s", strings.Join(m.info.Post, " "))
			}
			softdep.WriteByte('\n')
		}
	}
	var names []string
	for _, p := range x.Builtin {
		names = append(names, p)
	}
	slices.Sort(names)
	for _, p := range names {
		fmt.Fprintf(&builtin, "%s\n", p)
	}
	return map[string][]byte{
		"modules.dep":     []byte(dep.String()),
		"modules.alias":   []byte(alias.String()),
		"modules.softdep": []byte(softdep.String()),
		"modules.builtin": []byte(builtin.String()),
	}, nil
}

// hard returns what m needs, without m, in load order; only what is in the index.
func (x *Index) hard(m *Module) []*Module {
	var out []*Module
	seen := map[string]bool{m.Name: true}
	var visit func(m *Module)
	visit = func(m *Module) {
		for _, d := range m.info.Depends {
			n := x.byName[Name(d)]
			if n == nil || seen[n.Name] {
				continue
			}
			seen[n.Name] = true
			visit(n)
			out = append(out, n)
		}
	}
	visit(m)
	return out
}

// maxLine bounds a line of a list, in bytes.
const maxLine = 1 << 20

// readList returns the lines of a list, without empty ones and comments. A missing list is an empty one.
func readList(fsys fs.FS, name string) ([]string, error) {
	f, err := fsys.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines, err := lines(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return lines, nil
}

func lines(r io.Reader) ([]string, error) {
	var out []string
	s := bufio.NewScanner(r)
	s.Buffer(nil, maxLine)
	for s.Scan() {
		if l := strings.TrimSpace(s.Text()); l != "" && l[0] != '#' {
			out = append(out, l)
		}
	}
	return out, s.Err()
}

// ParseNames reads a list of module names or files, one a line, with # comments: "modules-load" and "modules/load".
func ParseNames(r io.Reader) ([]string, error) {
	out, err := lines(r)
	if err != nil {
		return nil, fmt.Errorf("read list of kernel modules: %w", err)
	}
	for _, l := range out {
		if strings.ContainsAny(l, " \t") || path.IsAbs(l) || !fs.ValidPath(l) {
			return nil, fmt.Errorf("read list of kernel modules: %q is no name", l)
		}
	}
	return out, nil
}

// matchAlias is fnmatch(3) without flags, as modprobe matches: "*" takes anything, slashes too.
func matchAlias(pattern, s string) bool {
	// Where the last star was, to go back to: enough, since a later star can take what an earlier one could.
	starP, starS := -1, 0
	p, i := 0, 0
	for i < len(s) {
		if p < len(pattern) {
			switch c := pattern[p]; c {
			case '*':
				starP, starS = p, i
				p++
				continue
			case '?':
				p, i = p+1, i+1
				continue
			case '[':
				if n, ok := matchClass(pattern[p:], s[i]); ok {
					p, i = p+n, i+1
					continue
				}
			default:
				if c == s[i] {
					p, i = p+1, i+1
					continue
				}
			}
		}
		if starP < 0 {
			return false
		}
		starS++
		p, i = starP+1, starS
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// matchClass matches c against the "[...]" at the start of pattern and returns its length.
func matchClass(pattern string, c byte) (int, bool) {
	end := strings.IndexByte(pattern, ']')
	if end < 2 {
		return 0, false
	}
	set, ok := pattern[1:end], false
	not := set[0] == '!' || set[0] == '^'
	if not {
		set = set[1:]
	}
	for i := 0; i < len(set); i++ {
		if i+2 < len(set) && set[i+1] == '-' {
			ok = ok || set[i] <= c && c <= set[i+2]
			i += 2
			continue
		}
		ok = ok || set[i] == c
	}
	return end + 1, ok != not
}
