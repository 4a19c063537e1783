package builder

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"kingpost/internal/child"
	"kingpost/internal/scratch"
)

// goTool builds programs with the locked toolchain. What was built is kept by what it was built from, since the
// linker's result is not in Go's own cache.
type goTool struct {
	cache   *Cache
	arch    string
	version string // go env GOVERSION
	// toolchain is what GOTOOLCHAIN is set to: "local", or the locked version where the machine's own is another one.
	toolchain string
}

// buildFlags are those that make a program depend on its sources alone: no path, no VCS stamp, no build id, no
// profile that happens to lie about.
var buildFlags = []string{"-trimpath", "-buildvcs=false", "-pgo=off", "-ldflags=-s -w -buildid="}

// binary is a program that was built.
type binary struct {
	Name   string
	File   string
	SHA256 string
	Size   int64
}

// openGo finds the go command for the version pinned ("" for whatever the machine has). Where the machine's own is
// another one, go brings the pinned one from the module proxy and checks it, as for any module.
func openGo(ctx context.Context, cache *Cache, arch, repo, pinned string) (*goTool, error) {
	t := &goTool{cache: cache, arch: arch, toolchain: "local"}
	if err := t.ask(ctx, repo); err != nil {
		return nil, err
	}
	if own := t.version; pinned != "" && pinned != own {
		t.toolchain = pinned
		if err := t.ask(ctx, repo); err != nil {
			if ctx.Err() != nil {
				return nil, err
			}
			return nil, &otherGoError{pinned, own, err}
		}
	}
	return t, nil
}

// otherGoError says that the lock is for a Go which is not here and cannot be brought.
type otherGoError struct {
	pinned, own string
	err         error
}

func (e *otherGoError) Error() string {
	return fmt.Sprintf("the lock is for %s, this machine's go is %s, and the locked one cannot be brought: %v", e.pinned, e.own, e.err)
}

func (e *otherGoError) Unwrap() error { return e.err }

// ask asks go for its version and for what would change its results.
func (t *goTool) ask(ctx context.Context, repo string) error {
	out, err := t.run(ctx, repo, "env", "-json", "GOVERSION", "GOEXPERIMENT")
	if err != nil {
		return err
	}
	var env struct{ GOVERSION, GOEXPERIMENT string }
	if err := json.Unmarshal(out, &env); err != nil {
		return fmt.Errorf("go env: %w", err)
	}
	if env.GOEXPERIMENT != "" {
		return fmt.Errorf("GOEXPERIMENT is set to %q, which changes what Go builds: unset it", env.GOEXPERIMENT)
	}
	t.version = env.GOVERSION
	return nil
}

// run runs the go command in dir for the target, with all that could change its result taken out of the environment.
func (t *goTool) run(ctx context.Context, dir string, args ...string) ([]byte, error) {
	return t.runWith(ctx, dir, nil, args...)
}

// runWith is run with more in the environment.
func (t *goTool) runWith(ctx context.Context, dir string, env []string, args ...string) ([]byte, error) {
	cmd := child.Command(ctx, syscall.SIGINT, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(t.environ(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, exec.ErrNotFound):
		return nil, errors.New("go is not installed or not in PATH: install the version that go.mod asks for")
	case err != nil:
		return nil, noSpace(fmt.Errorf("go %s in %s: %w\n%s", args[0], dir, err, tail(errs.String(), 30)), errs.String())
	}
	return out.Bytes(), nil
}

func (t *goTool) environ() []string {
	drop := []string{"GOFLAGS", "GOWORK", "GOOS", "GOARCH", "GOAMD64", "GOARM64", "CGO_ENABLED", "GO111MODULE", "GODEBUG", "GOTOOLCHAIN", "GOFIPS140", "PWD"}
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		k, _, _ := strings.Cut(kv, "=")
		return slices.Contains(drop, k)
	})
	// GOFLAGS is not left empty, since go would then take it from the user's own configuration.
	env = append(env, "GOFLAGS=-mod=readonly", "GOWORK=off", "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+t.arch, "GOTOOLCHAIN="+t.toolchain, "GOFIPS140=off")
	env = append(env, archs[t.arch].goEnv...)
	if os.Getenv("HOME") == "" {
		env = append(env, "HOME="+t.cache.path("home"))
	}
	return env
}

// build builds the main packages pkgs of the module in dir, those that changed, in one run of go, and returns them in
// order. names are what they are called.
// still reports keys as they are after the build: what changed under it is not kept under a key that it does not have.
func (t *goTool) build(ctx context.Context, dir string, pkgs, names []string, keys map[string]string, still func() (map[string]string, error)) ([]binary, error) {
	var todo []string
	for _, p := range pkgs {
		if !t.cache.has("program", keys[p]) {
			todo = append(todo, p)
		}
	}
	if len(todo) > 0 {
		if err := os.MkdirAll(t.cache.path("program"), 0o755); err != nil {
			return nil, err
		}
		tmp, err := scratch.Dir(t.cache.path("program"), cacheScratch)
		if err != nil {
			return nil, err
		}
		defer tmp.Remove()
		// What go and its tools leave lying about when they are interrupted goes with the folder.
		made, work := filepath.Join(tmp.Path, "made"), filepath.Join(tmp.Path, "scratch")
		if err := errors.Join(os.Mkdir(made, 0o755), os.Mkdir(work, 0o755)); err != nil {
			return nil, err
		}
		args := append([]string{"build"}, buildFlags...)
		args = append(append(args, "-o", made+"/"), todo...)
		if _, err := t.runWith(ctx, dir, []string{"TMPDIR=" + work, "GOTMPDIR=" + work}, args...); err != nil {
			return nil, err
		}
		now, err := still()
		if err != nil {
			return nil, err
		}
		for _, p := range todo {
			if now[p] != keys[p] {
				return nil, fmt.Errorf("the sources of %s changed while it was built: build again", p)
			}
			if err := t.keep(ctx, made, p, keys[p]); err != nil {
				return nil, err
			}
		}
	}
	var out []binary
	for i, p := range pkgs {
		b, err := t.kept(names[i], keys[p])
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

// keep takes a program that go has just built into the cache.
func (t *goTool) keep(ctx context.Context, made, pkg, key string) error {
	_, err := t.cache.item(ctx, "program", key, func(dir string) error {
		built, err := builtName(made, pkg)
		if err != nil {
			return err
		}
		name := filepath.Join(dir, "program")
		if err := os.Rename(built, name); err != nil {
			return err
		}
		sum, size, err := hashFile(ctx, name)
		if err != nil {
			return err
		}
		raw, err := json.Marshal(binary{SHA256: sum, Size: size})
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "program.json"), raw, 0o644)
	})
	return err
}

// builtName finds what go build called a package's program: the last element of its path that is no major version.
func builtName(made, pkg string) (string, error) {
	for p := pkg; p != "." && p != "/"; p = path.Dir(p) {
		name := filepath.Join(made, path.Base(p))
		if _, err := os.Stat(name); err == nil {
			return name, nil
		}
	}
	// ".": named after its module.
	found, err := filepath.Glob(filepath.Join(made, "*"))
	if err == nil && len(found) == 1 {
		return found[0], nil
	}
	return "", fmt.Errorf("go build made no program of %s: it is no main package", pkg)
}

func (t *goTool) kept(name, key string) (binary, error) {
	dir := t.cache.path("program", key)
	raw, err := os.ReadFile(filepath.Join(dir, "program.json"))
	if err != nil {
		return binary{}, err
	}
	b := binary{}
	if err := json.Unmarshal(raw, &b); err != nil {
		return b, fmt.Errorf("%s: %w", dir, err)
	}
	b.Name, b.File = name, filepath.Join(dir, "program")
	return b, nil
}

// listed is what go list tells about a package.
type listed struct {
	ImportPath string
	Dir        string
	Name       string
	Standard   bool
	Module     *struct{ Main bool }
	Deps       []string

	GoFiles, SFiles, HFiles, EmbedFiles, SysoFiles []string
}

// sources is what programs of one module depend on.
type sources struct {
	base string             // what all of them share
	pkgs []string           // as they were asked for
	own  map[string]*listed // the module's own packages among the dependencies, by import path
	dir  string
}

// listSources asks go for what the packages of the module in dir are made of.
func (t *goTool) listSources(ctx context.Context, dir string, pkgs []string) (*sources, error) {
	args := []string{"list", "-deps", "-json=ImportPath,Dir,Name,Standard,Module,Deps,GoFiles,SFiles,HFiles,EmbedFiles,SysoFiles"}
	out, err := t.run(ctx, dir, append(args, pkgs...)...)
	if err != nil {
		return nil, err
	}
	base, err := t.moduleKey(dir)
	if err != nil {
		return nil, err
	}
	own := map[string]*listed{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var l listed
		if err := d.Decode(&l); err == io.EOF {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		if l.Module != nil && l.Module.Main {
			own[l.ImportPath] = &l
		}
	}
	return &sources{base, pkgs, own, dir}, nil
}

// keys returns, for each package, a key of everything that its program depends on: toolchain, flags, target, go.sum
// and the sources, as they are now, of the module's own packages among its dependencies.
func (s *sources) keys() (map[string]string, error) {
	sums := packageSums{}
	keys := map[string]string{}
	for _, p := range s.pkgs {
		l := s.find(p)
		if l == nil {
			keys[p] = hashStrings(s.base, p) // a package of another module, which go.sum binds
			continue
		}
		parts := []string{s.base, l.ImportPath}
		for _, dep := range append(slices.Clone(l.Deps), l.ImportPath) {
			d := s.own[dep]
			if d == nil {
				continue
			}
			sum, err := sums.of(d)
			if err != nil {
				return nil, err
			}
			parts = append(parts, dep, sum)
		}
		keys[p] = hashStrings(parts...)
	}
	return keys, nil
}

func (s *sources) find(pkg string) *listed {
	for _, p := range slices.Sorted(maps.Keys(s.own)) {
		if s.own[p].Dir == filepath.Join(s.dir, filepath.FromSlash(pkg)) {
			return s.own[p]
		}
	}
	return nil
}

// folderKey is a key for a program of the small module in dir: all its files, which with go.sum bind everything.
func (t *goTool) folderKey(dir string) (string, error) {
	base, err := t.moduleKey(dir)
	if err != nil {
		return "", err
	}
	parts := []string{base}
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return "", err
	}
	for _, n := range names {
		raw, err := os.ReadFile(n)
		if err != nil {
			return "", err
		}
		parts = append(parts, filepath.Base(n), string(raw))
	}
	return hashStrings(parts...), nil
}

// moduleKey is a key of all that builds in a module share.
func (t *goTool) moduleKey(dir string) (string, error) {
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return "", err
	}
	sum, err := os.ReadFile(filepath.Join(dir, "go.sum"))
	if err != nil {
		return "", err
	}
	return hashStrings(t.version, t.arch, strings.Join(archs[t.arch].goEnv, " "), strings.Join(buildFlags, " "), string(mod), string(sum)), nil
}

// packageSums remembers the digests of packages' sources by import path.
type packageSums map[string]string

func (s packageSums) of(l *listed) (string, error) {
	if sum, ok := s[l.ImportPath]; ok {
		return sum, nil
	}
	var parts []string
	for _, f := range slices.Concat(l.GoFiles, l.SFiles, l.HFiles, l.EmbedFiles, l.SysoFiles) {
		b, err := os.ReadFile(filepath.Join(l.Dir, f))
		if err != nil {
			return "", err
		}
		parts = append(parts, f, string(b))
	}
	s[l.ImportPath] = hashStrings(parts...)
	return s[l.ImportPath], nil
}
