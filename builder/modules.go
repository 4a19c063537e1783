package builder

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"kingpost/internal/mesh"
)

// Where things are in the repository.
const (
	modulesDir    = "images/modules"
	thirdPartyDir = "images/third-party"
	commandsDir   = "cmd"
	imageFile     = "image.yaml"
)

// ThirdParty says how the program of another project becomes an image: images/third-party/NAME/image.yaml.
type ThirdParty struct {
	Kind    string `yaml:"kind"` // "third-party-image"
	Version string `yaml:"version"`
	// Package is the main package to build, in the Go module beside the file.
	Package string `yaml:"package"`
	// Program is what it is called; the image runs /bin/PROGRAM.
	Program string   `yaml:"program"`
	Cmd     []string `yaml:"cmd,omitempty"`
}

const thirdPartyKind = "third-party-image"

// seedModule is a module that ships in the image.
type seedModule struct {
	Manifest mesh.Manifest
	Raw      []byte
}

// seedPlan is what a seed consists of, before anything is built.
type seedPlan struct {
	modules    []seedModule
	components []string // cmd/NAME, each a bundle and an image
	thirdParty map[string]ThirdParty
}

// planSeed reads the modules that a recipe names and checks that all that they name exists: every bundle a program of
// ours, every image one of ours or of images/third-party, every resource that another waits for.
func planSeed(repo fs.FS, names []string) (*seedPlan, error) {
	p := &seedPlan{thirdParty: map[string]ThirdParty{}}
	var errs []error
	for _, n := range names {
		m, err := readSeedModule(repo, n)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		p.modules = append(p.modules, *m)
		for _, r := range m.Manifest.Resources {
			if err := p.need(repo, r.Artifact()); err != nil {
				errs = append(errs, fmt.Errorf("%s/%s/module.json: resource %s: %w", modulesDir, n, r.ID, err))
			}
		}
	}
	errs = append(errs, p.checkAfter())
	slices.Sort(p.components)
	return p, errors.Join(errs...)
}

func readSeedModule(repo fs.FS, name string) (*seedModule, error) {
	file := path.Join(modulesDir, name, "module.json")
	raw, err := readBounded(repo, file, mesh.MaxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("seed: there is no module %s: %s is missing", name, file)
	}
	if err != nil {
		return nil, fmt.Errorf("seed: read module %s: %w", name, err)
	}
	m, err := mesh.DecodeManifest(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if m.Module != name {
		return nil, fmt.Errorf("%s: it calls itself %q", file, m.Module)
	}
	return &seedModule{m, raw}, nil
}

// need notes that the seed must have an artifact, and refuses one that nothing here makes.
func (p *seedPlan) need(repo fs.FS, ref mesh.Ref) error {
	if ref.IsZero() {
		return nil
	}
	if slices.Contains(p.components, ref.Name) {
		return nil
	}
	if st, err := fs.Stat(repo, path.Join(commandsDir, ref.Name)); err == nil && st.IsDir() {
		p.components = append(p.components, ref.Name)
		return nil
	}
	if ref.Kind == mesh.ArtifactBundle {
		return fmt.Errorf("nothing makes the bundle %s: there is no %s/%s", ref.Name, commandsDir, ref.Name)
	}
	if _, ok := p.thirdParty[ref.Name]; ok {
		return nil
	}
	t, err := readThirdParty(repo, ref.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("nothing makes the image %s: there is neither %s/%s nor %s/%s", ref.Name, commandsDir, ref.Name, thirdPartyDir, ref.Name)
	}
	if err != nil {
		return err
	}
	p.thirdParty[ref.Name] = *t
	return nil
}

func readThirdParty(repo fs.FS, name string) (*ThirdParty, error) {
	file := path.Join(thirdPartyDir, name, imageFile)
	raw, err := readBounded(repo, file, maxRecipe)
	if err != nil {
		return nil, err
	}
	var t ThirdParty
	if err := decodeYAML(file, raw, &t); err != nil {
		return nil, err
	}
	switch {
	case t.Kind != thirdPartyKind:
		return nil, fmt.Errorf("%s: kind: is %.40q, wanted %s", file, t.Kind, thirdPartyKind)
	case t.Package == "" || strings.HasPrefix(t.Package, "-"):
		return nil, fmt.Errorf("%s: package: %.60q is no Go package", file, t.Package)
	case !isVersion(t.Version):
		return nil, fmt.Errorf("%s: version: %.40q is no version", file, t.Version)
	}
	if err := mesh.CheckName(t.Program); err != nil {
		return nil, fmt.Errorf("%s: program: %w", file, err)
	}
	gomod := path.Join(thirdPartyDir, name, "go.mod")
	raw, err = readBounded(repo, gomod, maxRecipe)
	if err != nil {
		return nil, fmt.Errorf("%s: the Go module beside it: %v", file, err) // no missing image to the caller
	}
	if !slices.Contains(strings.Fields(string(raw)), "v"+t.Version) {
		return nil, fmt.Errorf("%s: version: is %s, and %s requires no module of that version", file, t.Version, gomod)
	}
	return &t, nil
}

// checkAfter checks what resources wait for over all modules: it exists, and there is no circle.
func (p *seedPlan) checkAfter() error {
	after := map[string][]string{}
	for _, m := range p.modules {
		for _, r := range m.Manifest.Resources {
			key := m.Manifest.Module + "/" + r.ID
			after[key] = []string{}
			for _, a := range r.After {
				if !strings.Contains(a, "/") {
					a = m.Manifest.Module + "/" + a
				}
				after[key] = append(after[key], a)
			}
		}
	}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(after)) {
		for _, a := range after[key] {
			if _, ok := after[a]; !ok {
				errs = append(errs, fmt.Errorf("seed: %s starts after %s, which no module of the seed has", key, a))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if circle := findCircle(after); circle != nil {
		return fmt.Errorf("seed: resources wait for each other: %s", strings.Join(circle, " -> "))
	}
	return nil
}

// findCircle returns a path that ends where it begins, or nil.
func findCircle(next map[string][]string) []string {
	const visiting, done = 1, 2
	state := map[string]int{}
	var walk func(key string, trail []string) []string
	walk = func(key string, trail []string) []string {
		trail = append(trail, key)
		switch state[key] {
		case visiting:
			return slices.Clone(trail[slices.Index(trail, key):])
		case done:
			return nil
		}
		state[key] = visiting
		for _, n := range next[key] {
			if c := walk(n, trail); c != nil {
				return c
			}
		}
		state[key] = done
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(next)) {
		if c := walk(key, nil); c != nil {
			return c
		}
	}
	return nil
}
