package builder

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"kingpost/internal/child"
	"kingpost/internal/scratch"
)

// apt is a private state of apt for one suite and architecture: it never touches the machine's own, and works
// as any user.
type apt struct {
	dir    string // state
	conf   string // APT_CONFIG
	suite  string
	arch   string
	mirror string // a base URL to use instead of the machine's own sources
	fresh  bool   // the lists were brought up to date by this build

	noSecurity bool // the machine's sources have no security updates of the suite

	little int64 // free bytes on the cache's disk below which apt's failures are put down to that
}

// listsAge is how old package lists may be before a new lock is made from them.
const listsAge = 12 * time.Hour

func openApt(cache *Cache, suite, arch, mirror string) (*apt, error) {
	name := suite + "-" + arch
	if mirror != "" {
		name += "-" + hashStrings(mirror)[:8]
	}
	a := &apt{dir: cache.path("apt", name), suite: suite, arch: arch, mirror: mirror, little: littleSpace}
	a.conf = filepath.Join(a.dir, "apt.conf")
	for _, d := range []string{"lists/partial", "cache/archives/partial", "etc/preferences.d"} {
		if err := os.MkdirAll(filepath.Join(a.dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	var sources []aptSource
	if mirror != "" {
		sources = []aptSource{debianSource(mirror, suite)}
	} else {
		var err error
		if sources, err = suiteSources(os.DirFS("/etc"), suite); err != nil {
			return nil, err
		}
		a.noSecurity = !slices.ContainsFunc(sources, func(s aptSource) bool { return s.suite == suite+"-security" })
	}
	if err := a.configure(sources); err != nil {
		return nil, err
	}
	return a, nil
}

// addSecurity takes security updates to the machine's sources, which have none: what is locked may come from there
// alone. A mirror that has them has them beside the archive, in a folder of the same name with "-security".
func (a *apt) addSecurity(ctx context.Context) error {
	sources, err := suiteSources(os.DirFS("/etc"), a.suite)
	if err != nil {
		return err
	}
	beside := ""
	for _, s := range sources {
		if u := strings.TrimRight(s.uri, "/"); s.suite == a.suite && strings.HasSuffix(u, "/debian") {
			beside = u + "-security"
			break
		}
	}
	if beside == "" {
		return fmt.Errorf("none of the machine's sources of %s ends in /debian, so it is not known where its security updates are", a.suite)
	}
	if err := a.configure(append(sources, debianSource(beside, a.suite+"-security"))); err != nil {
		return err
	}
	a.noSecurity, a.fresh = false, false
	return a.update(ctx, 0)
}

func (a *apt) configure(sources []aptSource) error {
	var lines []string
	for _, s := range sources {
		lines = append(lines, s.line())
	}
	if err := os.WriteFile(filepath.Join(a.dir, "etc/sources.list"), []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		return err
	}
	conf := fmt.Sprintf(`Dir::State "%[1]s";
Dir::State::Lists "%[1]s/lists";
Dir::State::status "/dev/null";
Dir::Cache "%[1]s/cache";
Dir::Etc::sourcelist "%[1]s/etc/sources.list";
Dir::Etc::sourceparts "-";
Dir::Etc::preferences "-";
Dir::Etc::preferencesparts "%[1]s/etc/preferences.d";
APT::Architecture "%[2]s";
APT::Architectures { "%[2]s"; };
Acquire::Languages "none";
Acquire::Retries "3";
`, a.dir, a.arch)
	if os.Geteuid() == 0 {
		// The unprivileged user that apt would change to cannot enter root's cache folder.
		conf += "APT::Sandbox::User \"root\";\n"
	}
	return os.WriteFile(a.conf, []byte(conf), 0o644)
}

// run runs one of apt's programs with the private state in folder dir.
func (a *apt) run(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	// What apt's programs leave lying about when they are interrupted goes with the folder.
	tmp, err := scratch.Dir(a.dir, aptScratch)
	if err != nil {
		return nil, err
	}
	defer tmp.Remove()
	cmd := child.Command(ctx, syscall.SIGKILL, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "APT_CONFIG="+a.conf, "TMPDIR="+tmp.Path, "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, exec.ErrNotFound):
		return nil, fmt.Errorf("%s is not installed: packages come through Debian's apt; on another system put every .deb of the lock into a folder and give it with --debs", name)
	case err != nil:
		err = fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, tail(errs.String(), 15))
		if free, ok := freeSpace(a.dir); name == "apt-get" && ok && free < a.little {
			return nil, &spaceError{a.dir, free, err}
		}
		return nil, noSpace(err, errs.String())
	}
	return out.Bytes(), nil
}

// littleSpace is how many free bytes are so few that apt has probably run out of them: package lists and a kernel
// package take about that much.
const littleSpace = 200 << 20

// spaceError is a failure of apt on a disk that is nearly full, which apt itself often tells as one of the mirror.
type spaceError struct {
	dir  string
	free int64
	err  error
}

func (e *spaceError) Error() string {
	return fmt.Sprintf("the disk of the cache has little space left: %s at %s. Free some, or let KINGPOST_CACHE name a folder elsewhere. What apt says of it: %v",
		mib(e.free), e.dir, e.err)
}

func (e *spaceError) Unwrap() error { return e.err }

// freeSpace is how many bytes may still be written to the file system of dir.
func freeSpace(dir string) (int64, bool) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, false
	}
	return int64(st.Bavail) * st.Bsize, true
}

// tail is the last n lines of s.
func tail(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// update brings the package lists up to date, at most once a build, and not while they are younger than age and made
// with the same sources.
func (a *apt) update(ctx context.Context, age time.Duration) error {
	stamp := filepath.Join(a.dir, "updated")
	sources, err := os.ReadFile(filepath.Join(a.dir, "etc/sources.list"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if a.fresh || stamped(stamp, sources, age) {
		return nil
	}
	lock, err := lockFile(ctx, filepath.Join(a.dir, "lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	if _, err := a.run(ctx, a.dir, "apt-get", "-q", "update", "-o", "APT::Update::Error-Mode=any"); err != nil {
		return fmt.Errorf("bring the package lists of %s up to date: %w", a.suite, err)
	}
	a.fresh = true
	return os.WriteFile(stamp, sources, 0o644)
}

// stamped says whether the lists were made less than age ago with these sources, which the stamp holds.
func stamped(stamp string, sources []byte, age time.Duration) bool {
	st, err := os.Stat(stamp)
	if err != nil || time.Since(st.ModTime()) >= age {
		return false
	}
	made, err := os.ReadFile(stamp)
	return err == nil && bytes.Equal(made, sources)
}

// debInfo is a package as the lists have it.
type debInfo struct {
	LockedDeb
	Depends string
}

// show returns the version of a package that apt would install. ok is false when there is none.
func (a *apt) show(ctx context.Context, name string) (info debInfo, ok bool, err error) {
	out, err := a.run(ctx, a.dir, "apt-cache", "show", "--no-all-versions", name)
	if err != nil {
		if strings.Contains(err.Error(), "No packages found") || strings.Contains(err.Error(), "Unable to locate") {
			return debInfo{}, false, nil
		}
		return debInfo{}, false, err
	}
	st := parseStanzas(string(out))
	if len(st) == 0 || st[0]["sha256"] == "" {
		return debInfo{}, false, nil
	}
	info = debInfo{LockedDeb{Package: st[0]["package"], Version: st[0]["version"], Arch: st[0]["architecture"], SHA256: st[0]["sha256"]}, st[0]["depends"]}
	if pre := st[0]["pre-depends"]; pre != "" {
		info.Depends = strings.TrimPrefix(info.Depends+", "+pre, ", ")
	}
	if _, err := fmt.Sscan(st[0]["size"], &info.Size); err != nil {
		return debInfo{}, false, fmt.Errorf("apt-cache show %s: size %q: %w", name, st[0]["size"], err)
	}
	return info, true, nil
}

// download fetches one version of a package into folder dir.
func (a *apt) download(ctx context.Context, dir string, debs ...LockedDeb) error {
	args := []string{"-q", "download"}
	for _, d := range debs {
		args = append(args, d.Package+"="+d.Version)
	}
	_, err := a.run(ctx, dir, "apt-get", args...)
	return err
}

// dependNames lists the packages of a Depends field, the first of each set of alternatives.
func dependNames(depends string) []string {
	var out []string
	for part := range strings.SplitSeq(depends, ",") {
		first, _, _ := strings.Cut(part, "|")
		if f := strings.Fields(first); len(f) > 0 {
			name, _, _ := strings.Cut(f[0], ":")
			out = append(out, name)
		}
	}
	return out
}
