package builder

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unicode"

	"kingpost/internal/scratch"
)

// Options says what to build and where.
type Options struct {
	// Recipe is the recipe's file, inside the sources that it is built from.
	Recipe string
	// Arch is the architecture to build; empty takes this machine's if the recipe has it, else its first.
	Arch string
	// Out is the folder below which the output goes, Out/NAME.
	Out string
	// Cache is the folder of what builds keep; see DefaultCacheDir.
	Cache string
	// Debs is a folder of .deb files that are used before anything is downloaded.
	Debs string
	// Mirror is a base URL of Debian to use instead of the machine's own apt sources.
	Mirror string
	// Outputs are the names of the outputs to make, in place of the recipe's; see Outputs and DefaultOutputs.
	Outputs []string
	// UpdateLock writes the lock anew, for every architecture of the recipe, before building.
	UpdateLock bool
	// Report is told about the phases; nil is nobody.
	Report Reporter
}

// Check says what of o cannot be meant, before anything is done: Debs that is no folder, a Mirror that is no URL.
func (o Options) Check() error {
	if _, err := chooseOutputs(o.Outputs); err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	if o.Debs != "" {
		if st, err := os.Stat(o.Debs); err != nil {
			return fmt.Errorf("--debs: %w; it names a folder of .deb files", err)
		} else if !st.IsDir() {
			return fmt.Errorf("--debs: %s is no folder; it names a folder of .deb files", o.Debs)
		}
	}
	if o.Mirror != "" {
		// It becomes a word of a line of sources.list.
		u, err := url.Parse(o.Mirror)
		if err != nil || strings.ContainsFunc(o.Mirror, func(r rune) bool {
			return unicode.IsSpace(r) || !unicode.IsPrint(r) || strings.ContainsRune(`[]"#\`, r)
		}) {
			return fmt.Errorf("--mirror: %.200q is no URL; it has the form http://HOST/debian", o.Mirror)
		}
		switch u.Scheme {
		case "http", "https":
			if u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
				return fmt.Errorf("--mirror: %.200q is no base URL of a mirror; it has the form http://HOST/debian", o.Mirror)
			}
		case "file":
			if st, err := os.Stat(u.Path); err != nil || !st.IsDir() {
				return fmt.Errorf("--mirror: %.200q: there is no folder %.200s", o.Mirror, u.Path)
			}
		default:
			return fmt.Errorf("--mirror: %.200q is none of http://, https:// and file://", o.Mirror)
		}
	}
	if o.Out == "" {
		return errors.New("--out is empty; it names the folder below which the output goes")
	}
	return nil
}

// build is one build under way.
type build struct {
	Options
	cache  *Cache
	repo   string // the sources
	recipe *Recipe
	name   string // of the recipe in the repository: "images/vm.yaml"
	arch   string
	lock   *Lock
	pkgs   *packages
	tool   *goTool
	plan   *seedPlan
	sums   map[string]string // go.sum files
	keys   map[string]string // of our programs, by package
	wanted []Output
}

// Build makes a node image and returns what it made. On an error, and when ctx ends, nothing has changed in the
// output folder.
func Build(ctx context.Context, o Options) (*Result, string, error) {
	if o.Report == nil {
		o.Report = silent{}
	}
	b := &build{Options: o}
	res, dir, err := b.run(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("stopped; nothing was put in place: %w", context.Cause(ctx))
		}
		return nil, "", explain(err, o.Out, o.Cache)
	}
	return res, dir, nil
}

func (b *build) run(ctx context.Context) (*Result, string, error) {
	if err := b.phase("recipe", func(p Phase) (string, error) { return b.readRecipe() }); err != nil {
		return nil, "", err
	}
	out, err := newOutput(filepath.Join(b.Out, b.recipe.Name))
	if err != nil {
		return nil, "", err
	}
	res, err := b.make(ctx, out)
	if err != nil {
		return nil, "", errors.Join(err, out.discard())
	}
	b.cache.prune()
	return res, out.final, nil
}

// phase runs f as one phase.
func (b *build) phase(name string, f func(Phase) (string, error)) error {
	p := b.Report.Phase(name)
	detail, err := f(p)
	p.Done(detail, err)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// make makes everything in out and commits it.
func (b *build) make(ctx context.Context, out *output) (*Result, error) {
	var (
		k          *kernel
		root       rootInputs
		efi        string
		components map[string]binary
		third      map[string]binary
		produced   string
	)
	res := &Result{ReleaseInfo: b.recipe.Info(b.arch)}
	made := newBuilt(b.recipe, res.ReleaseInfo, out.dir, b.wanted)
	seed := filepath.Join(out.dir, ".seed")
	type step struct {
		name string
		do   func(Phase) (string, error)
	}
	steps := []step{
		{"lock", func(p Phase) (string, error) { return b.checkLock(ctx, p) }},
		{"packages", func(p Phase) (string, error) {
			debs := b.lock.Debs[b.arch]
			return fmt.Sprintf("%d packages", len(debs)), b.pkgs.fetch(ctx, debs, p)
		}},
		{"kernel", func(Phase) (_ string, err error) {
			if k, err = b.takeKernel(ctx); err != nil {
				return "", err
			}
			return k.Version, b.takeFiles(ctx, &root, &efi)
		}},
		{"programs", func(Phase) (_ string, err error) {
			components, third, err = b.programs(ctx)
			return fmt.Sprintf("%d ours, %d third-party", len(components), len(third)), err
		}},
		{"seed", func(p Phase) (string, error) {
			ours := maps.Clone(components)
			maps.DeleteFunc(ours, func(n string, _ binary) bool { return !slices.Contains(b.plan.components, n) })
			return fmt.Sprintf("%d modules", len(b.plan.modules)), writeSeed(ctx, b.cache, seed, seedInputs{
				plan: b.plan, components: ours, thirdParty: third,
				version: b.recipe.Version, arch: b.arch, time: b.recipe.Time(),
			}, p)
		}},
		{"root", func(p Phase) (_ string, err error) {
			root.recipe, root.info, root.kernel, root.seed = b.recipe, res.ReleaseInfo, k, seed
			root.host, root.stub = components[programHost], components[programStub]
			file, err := made.place(FileRoot)
			if err != nil {
				return "", err
			}
			if root.data, err = made.packedData(ctx); err != nil {
				return "", err
			}
			if made.root, err = writeRoot(ctx, file, root, p); err != nil {
				return "", err
			}
			img := made.root
			res.Kernel, res.HashOffset, res.RootHash = k.Version, img.HashOffset, fmt.Sprintf("%x", img.RootHash)
			return fmt.Sprintf("%s, root hash %.16s...", mib(img.Size), res.RootHash), os.RemoveAll(seed)
		}},
		{"boot", func(Phase) (string, error) {
			initrd, err := makeInitrd(ctx, b.cache, res.ReleaseInfo, components[programInit], k)
			if err != nil {
				return "", err
			}
			if made.boot, err = makeBoot(ctx, b.recipe, res.ReleaseInfo, k, initrd, efi, made.root); err != nil {
				return "", err
			}
			res.Cmdline = made.boot.cmdline.String()
			if err := made.fill(); err != nil {
				return "", err
			}
			res.Room = made.room
			return fmt.Sprintf("UKI %s, initrd %s; %s", mib(int64(len(made.boot.uki))), mib(int64(len(initrd))), forecast(made.room)), nil
		}},
	}
	for _, o := range b.wanted {
		steps = append(steps, step{o.Info().Name, func(p Phase) (string, error) { return o.Write(ctx, made, p.Progress) }})
	}
	steps = append(steps, []step{
		{"check", func(Phase) (string, error) {
			if err := out.describe(ctx, res, made.mapWriter()); err != nil {
				return "", err
			}
			var err error
			produced, err = b.checkProduced(res)
			return produced, err
		}},
	}...)
	for _, s := range steps {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := b.phase(s.name, s.do); err != nil {
			return nil, err
		}
	}
	return res, b.phase("commit", func(Phase) (string, error) { return out.final, out.commit() })
}

// readRecipe reads everything that is checked before any work is done.
func (b *build) readRecipe() (_ string, err error) {
	if err := checkRecipeFile(b.Recipe); err != nil {
		return "", err
	}
	if b.repo, err = FindRepository(filepath.Dir(b.Recipe)); err != nil {
		return "", err
	}
	abs, err := filepath.Abs(b.Recipe)
	if err != nil {
		return "", err
	}
	rel, err := filepath.Rel(b.repo, abs)
	if err != nil {
		return "", err
	}
	b.name = filepath.ToSlash(rel)
	fsys := os.DirFS(b.repo)
	if b.recipe, err = ReadRecipe(fsys, b.name); err != nil {
		return "", err
	}
	if b.arch, err = b.recipe.Architecture(b.Arch, runtime.GOARCH); err != nil {
		return "", err
	}
	names := b.Outputs
	if len(names) == 0 {
		names = b.recipe.Outputs
	}
	if b.wanted, err = chooseOutputs(names); err != nil {
		return "", err
	}
	if b.plan, err = planSeed(fsys, b.recipe.Seed); err != nil {
		return "", err
	}
	if b.cache, err = OpenCache(b.Cache); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %s for %s", b.recipe.Name, b.recipe.Version, b.arch), nil
}

// checkRecipeFile tells somebody who names no recipe what one is.
func checkRecipeFile(name string) error {
	st, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("there is no recipe %s; the recipes are in the folder images of Kingpost's sources, and there `kingpost build images/vm.yaml` builds the one for virtual machines", name)
	case err != nil:
		return err
	case st.IsDir():
		return fmt.Errorf("%s is a folder; name a recipe, as in `kingpost build images/vm.yaml`", name)
	case !strings.HasSuffix(name, ".yaml"):
		// Its lock is named after it: without the ending that would be some other file.
		return fmt.Errorf("%s is no recipe: a recipe is called NAME.yaml", name)
	}
	return nil
}

// relockCommand is how the lock is written anew, for messages.
func (b *build) relockCommand() string { return "kingpost build --update-lock " + b.Recipe }

// relocks adds to an error of the lock how it is written anew.
func (b *build) relocks(err error) error {
	return fmt.Errorf("%w\nTo write it anew: %s", err, b.relockCommand())
}

// checkLock reads the lock, or makes it where that was asked for, and checks that everything matches it.
func (b *build) checkLock(ctx context.Context, p Phase) (string, error) {
	repo := os.DirFS(b.repo)
	lockName := LockName(b.name)
	lock, err := ReadLock(repo, lockName)
	pinned := ""
	switch {
	case b.UpdateLock:
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("%s is missing: it pins what the recipe comes down to. Make it: %s", lockName, b.relockCommand())
	case err != nil:
		return "", err
	default:
		pinned = lock.Go
	}
	if b.tool, err = openGo(ctx, b.cache, b.arch, b.repo, pinned); err != nil {
		var other *otherGoError
		if errors.As(err, &other) {
			err = fmt.Errorf("%w\nInstall %s, let GOPROXY name a module proxy that has it, or lock the Go that is here: %s", err, other.pinned, b.relockCommand())
		}
		return "", err
	}
	if b.sums, err = sumFiles(repo, b.plan); err != nil {
		return "", err
	}
	b.pkgs = b.packagesFor(b.arch)
	if b.UpdateLock {
		if b.lock, err = b.makeLock(ctx, p); err != nil {
			return "", err
		}
		return "made anew", b.saveLock()
	}
	b.lock = lock
	if err := b.lock.matches(b.recipe, b.arch); err != nil {
		return "", b.relocks(err)
	}
	return lockName, b.lock.checkToolchain(b.tool.version, b.sums, b.relockCommand())
}

func (b *build) packagesFor(arch string) *packages {
	return &packages{cache: b.cache, folder: b.Debs, relock: b.relockCommand(), apt: sync.OnceValues(func() (*apt, error) {
		return openApt(b.cache, b.recipe.Debian.Suite, arch, b.Mirror)
	})}
}

// makeLock resolves the recipe for all its architectures.
func (b *build) makeLock(ctx context.Context, p Phase) (*Lock, error) {
	l := &Lock{Kind: lockKind, Suite: b.recipe.Debian.Suite, Kernel: b.recipe.Debian.Kernel, Go: b.tool.version, Modules: b.sums, Debs: map[string][]LockedDeb{}, Produced: map[string]Produced{}}
	for _, arch := range b.recipe.Arch {
		pkgs := b.packagesFor(arch)
		a, err := pkgs.apt()
		if err != nil {
			return nil, err
		}
		if l.Debs[arch], err = resolveDebs(ctx, b.recipe, arch, a, pkgs, p); err != nil {
			return nil, fmt.Errorf("%s: %w", arch, err)
		}
	}
	return l, nil
}

// saveLock writes the lock beside the recipe by one rename.
func (b *build) saveLock() error {
	raw, err := b.lock.Render()
	if err != nil {
		return err
	}
	name := filepath.Join(b.repo, filepath.FromSlash(LockName(b.name)))
	held, err := scratch.File(filepath.Dir(name), ".lock-")
	if err != nil {
		return err
	}
	_, err = held.File.Write(raw)
	if err := errors.Join(err, held.File.Chmod(0o644), held.File.Sync()); err != nil {
		return errors.Join(err, held.Remove())
	}
	if err := os.Rename(held.Path, name); err != nil {
		return errors.Join(err, held.Remove())
	}
	return held.Release()
}

func (b *build) takeKernel(ctx context.Context) (*kernel, error) {
	d, err := b.lock.deb(b.arch, forKernel)
	if err != nil {
		return nil, b.relocks(err)
	}
	tree, err := b.pkgs.tree(ctx, d)
	if err != nil {
		return nil, err
	}
	return takeKernel(ctx, b.cache, tree, d, b.recipe.Debian.on(b.arch))
}

// takeFiles finds what goes from packages into the root, and the unpacked boot loader.
func (b *build) takeFiles(ctx context.Context, in *rootInputs, efi *string) error {
	d, err := b.lock.deb(b.arch, forBoot)
	if err != nil {
		return b.relocks(err)
	}
	if *efi, err = b.pkgs.tree(ctx, d); err != nil {
		return err
	}
	trees := map[string]string{}
	var programs []pkgFile
	for _, d := range b.lock.debs(b.arch, forProgram, forLibrary) {
		if trees[d.Package], err = b.pkgs.tree(ctx, d); err != nil {
			return err
		}
		if d.For == forProgram {
			f, err := programFiles(trees[d.Package])
			if err != nil {
				return err
			}
			programs = append(programs, f...)
		}
	}
	if in.programs, _, err = newLibraryIndex(trees).closure(programs); err != nil {
		return err
	}
	for _, d := range b.lock.debs(b.arch, forFirmware) {
		tree, err := b.pkgs.tree(ctx, d)
		if err != nil {
			return err
		}
		in.firmware = append(in.firmware, tree)
	}
	return nil
}

// The programs that are in every root.
const (
	programInit = "mesh-init"
	programHost = "mesh-host"
	programStub = "mesh-stub"
)

// programs builds ours in one run of go, and meanwhile the third-party ones.
func (b *build) programs(ctx context.Context) (ours, third map[string]binary, err error) {
	names := append([]string{programInit, programHost, programStub}, b.plan.components...)
	slices.Sort(names)
	names = slices.Compact(names)
	var pkgs []string
	for _, n := range names {
		pkgs = append(pkgs, "./"+path.Join(commandsDir, n))
	}
	third, ours = map[string]binary{}, map[string]binary{}
	thirdErr := make(chan error, 1)
	go func() { thirdErr <- b.thirdParty(ctx, third) }()
	err = func() error {
		// The builder itself is listed as well: what it does decides about the bytes as much as a program's sources.
		src, err := b.tool.listSources(ctx, b.repo, append(slices.Clone(pkgs), builderPackage))
		if err != nil {
			return err
		}
		if b.keys, err = src.keys(); err != nil {
			return err
		}
		built, err := b.tool.build(ctx, b.repo, pkgs, names, b.keys, src.keys)
		for _, p := range built {
			ours[p.Name] = p
		}
		return err
	}()
	return ours, third, errors.Join(err, <-thirdErr)
}

const builderPackage = "./builder"

func (b *build) thirdParty(ctx context.Context, out map[string]binary) error {
	for _, n := range slices.Sorted(maps.Keys(b.plan.thirdParty)) {
		t := b.plan.thirdParty[n]
		dir := filepath.Join(b.repo, filepath.FromSlash(thirdPartyDir), n)
		key := func() (map[string]string, error) {
			k, err := b.tool.folderKey(dir)
			return map[string]string{t.Package: hashStrings(k, t.Package)}, err
		}
		keys, err := key()
		if err != nil {
			return fmt.Errorf("third-party program %s: %w", n, err)
		}
		built, err := b.tool.build(ctx, dir, []string{t.Package}, []string{t.Program}, keys, key)
		if err != nil {
			return fmt.Errorf("third-party program %s: %w", n, err)
		}
		out[n] = built[0]
	}
	return nil
}

// checkProduced compares with what the lock says came out of the same inputs, and notes it when the lock is made.
func (b *build) checkProduced(res *Result) (string, error) {
	inputs, err := inputsDigest(b.recipe, b.lock, b.arch, b.plan, b.keys)
	if err != nil {
		return "", err
	}
	files := map[string]string{}
	for _, f := range res.Files {
		files[f.Name] = f.SHA256
	}
	if b.UpdateLock {
		b.lock.Produced[b.arch] = Produced{inputs, files}
		return "digests noted in the lock", b.saveLock()
	}
	known := b.lock.Produced[b.arch]
	if known.Inputs != inputs {
		return "sources differ from those that the lock was made with", nil
	}
	var differ []string
	note := "as the lock says"
	for _, n := range slices.Sorted(maps.Keys(known.Files)) {
		switch {
		case files[n] == known.Files[n]:
		case files[n] == "": // of an output that is not made now
		case holdsData(b.wanted, b.recipe, n):
			// mke2fs makes the data partition, and its versions differ in details that nobody depends on.
			note = "as the lock says, but for the data partition, which another mke2fs made"
		default:
			differ = append(differ, n)
		}
	}
	if len(differ) > 0 {
		return "", fmt.Errorf("the same inputs gave other bytes than the lock says: %s. The cache may be damaged (build once with KINGPOST_CACHE at an empty folder), or the build is not reproducible on this machine",
			strings.Join(differ, ", "))
	}
	return note, nil
}
