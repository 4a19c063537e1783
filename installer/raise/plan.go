package raise

import (
	"fmt"
	"slices"
	"strings"

	"kingpost/internal/mesh"
)

// The modules that a raise declares one by one, and the controller's resource. Every other module of the
// seed is declared by the controller, with these.
const (
	moduleRegistry   = "registry"
	moduleBroker     = "broker"
	moduleController = "controller"
	controllerID     = "server"
	controllerKey    = moduleController + "/" + controllerID
)

// componentSeats are the seats that must answer at the end, the controller's first.
var componentSeats = [...]string{mesh.SeatController, mesh.SeatCatalogue, mesh.SeatBuilder, mesh.SeatVault}

// module is a manifest with the digests of what it names.
type module struct {
	manifest mesh.Manifest
	digests  mesh.Digests
}

// plan is what a raise puts on its node: pure data, computed from the seed and the request.
type plan struct {
	arch    string
	entries []mesh.SeedEntry
	// modules in the order in which they are pushed: registry, broker, controller, then by name.
	modules []module
	// temporary is the controller/server of step 6 with its volumes and files.
	temporary []mesh.Declared
}

// newPlan binds the seed's manifests, replaced by those of the request where names are equal, to the
// seed's digests. Its errors name the module and what is missing.
func newPlan(seed, request []mesh.Manifest, entries []mesh.SeedEntry, arch string) (*plan, error) {
	p := &plan{arch: arch, entries: entries}
	manifests := map[string]mesh.Manifest{}
	for _, m := range seed {
		manifests[m.Module] = m
	}
	original := manifests[moduleController]
	for _, m := range request {
		manifests[m.Module] = m
	}
	for name, m := range manifests {
		if err := m.Validate(); err != nil {
			return nil, fmt.Errorf("module %s: %w", name, err)
		}
		digests, err := bind(m, entries, arch)
		if err != nil {
			return nil, err
		}
		p.modules = append(p.modules, module{m, digests})
	}
	slices.SortFunc(p.modules, func(a, b module) int {
		if x, y := rank(a.manifest.Module), rank(b.manifest.Module); x != y {
			return x - y
		}
		return strings.Compare(a.manifest.Module, b.manifest.Module)
	})
	for _, need := range []struct{ module, seat string }{
		{moduleRegistry, mesh.SeatStore}, {moduleBroker, mesh.SeatBroker}, {moduleController, mesh.SeatController},
	} {
		if err := p.holds(need.module, need.seat); err != nil {
			return nil, err
		}
	}
	var err error
	p.temporary, err = p.makeTemporary(original)
	return p, err
}

func rank(name string) int {
	if i := slices.Index([]string{moduleRegistry, moduleBroker, moduleController}, name); i >= 0 {
		return i
	}
	return 3
}

// bind finds the digest of everything that m names.
func bind(m mesh.Manifest, entries []mesh.SeedEntry, arch string) (mesh.Digests, error) {
	digests := mesh.Digests{}
	for i := range m.Resources {
		ref := m.Resources[i].Artifact()
		if ref.IsZero() {
			continue
		}
		d := digestOf(entries, ref, arch)
		if d == "" {
			return nil, fmt.Errorf("module %s: %s/%s names %s, which the seed does not hold for %s; take an image whose seed has it, or correct the manifest",
				m.Module, m.Module, m.Resources[i].ID, ref, arch)
		}
		digests[ref.String()] = map[string]string{arch: d}
	}
	return digests, nil
}

func digestOf(entries []mesh.SeedEntry, ref mesh.Ref, arch string) string {
	for _, e := range entries {
		if e.Ref == ref && (e.Arch == arch || e.Arch == "") {
			return e.Digest
		}
	}
	return ""
}

func (p *plan) module(name string) *module {
	for i := range p.modules {
		if p.modules[i].manifest.Module == name {
			return &p.modules[i]
		}
	}
	return nil
}

// holds checks that a module is there and holds a seat.
func (p *plan) holds(name, seat string) error {
	m := p.module(name)
	if m == nil {
		return fmt.Errorf("the seed has no module %s, and a mesh cannot be raised without it; build the image with %s in the recipe's seed", name, name)
	}
	for i := range m.manifest.Resources {
		if slices.Contains(m.manifest.Resources[i].Seats, seat) {
			return nil
		}
	}
	return fmt.Errorf("module %s: no resource of it holds the seat %s; correct its manifest", name, seat)
}

// declared is a module's resources as a declaration of epoch 0 carries them: by digest, from the seed,
// because there is no store yet or it is the store itself.
func (p *plan) declared(name string) []mesh.Declared {
	if name == moduleController {
		return slices.Clone(p.temporary)
	}
	m := p.module(name)
	out := make([]mesh.Declared, 0, len(m.manifest.Resources))
	for _, r := range m.manifest.Resources {
		if ref := r.Artifact(); !ref.IsZero() {
			r.Digest = m.digests[ref.String()][p.arch]
			r.Source = mesh.SourceSeed
		}
		out = append(out, mesh.Declared{Module: name, Resource: r})
	}
	return out
}

// makeTemporary derives the temporary controller: a process from the seed's bundle, with the declared
// manifest's environment, account, volumes and files, so that it opens the same state as the declared
// one will. How it is started and checked comes from the seed's own manifest: a declared controller that
// cannot become healthy must not take the temporary one with it.
func (p *plan) makeTemporary(original mesh.Manifest) ([]mesh.Declared, error) {
	manifest := p.module(moduleController).manifest
	want := find(manifest, controllerID)
	if want == nil || (want.Type != mesh.KindProcess && want.Type != mesh.KindContainer) {
		return nil, fmt.Errorf("module %s: it has no process or container with the id %q; the controller must be that one", moduleController, controllerID)
	}
	base := find(original, controllerID)
	if base == nil || base.Artifact().IsZero() {
		base = want
	}
	ref := mesh.Ref{Kind: mesh.ArtifactBundle, Name: base.Artifact().Name}
	digest := digestOf(p.entries, ref, p.arch)
	if digest == "" {
		return nil, fmt.Errorf("module %s: the seed does not hold %s for %s, from which the temporary controller starts; rebuild the image", moduleController, ref, p.arch)
	}
	temporary := mesh.Declared{Module: moduleController, Resource: mesh.Resource{
		ID: controllerID, Type: mesh.KindProcess, Bundle: ref.Name, Digest: digest, Source: mesh.SourceSeed,
		Args: base.Args, Health: base.Health, Stop: base.Stop, Seats: base.Seats,
		Env: want.Env, Account: want.Account, Volumes: want.Volumes, Files: want.Files,
		Identity: base.Identity, HostAPI: base.HostAPI, Critical: base.Critical,
	}}
	var out []mesh.Declared
	for _, r := range manifest.Resources {
		if r.Type == mesh.KindVolume || r.Type == mesh.KindFile {
			out = append(out, mesh.Declared{Module: moduleController, Resource: r})
		}
	}
	return append(out, temporary), nil
}

func find(m mesh.Manifest, id string) *mesh.Resource {
	for i := range m.Resources {
		if m.Resources[i].ID == id {
			return &m.Resources[i]
		}
	}
	return nil
}

// seedBytes is the size of the seed's artifacts. Blobs that artifacts share count in each, so it is more
// than what is on disk.
func (p *plan) seedBytes() int64 {
	var n int64
	for _, e := range p.entries {
		n += e.Size
	}
	return n
}
