package controller

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/seat"
	"kingpost/internal/mesh/verbs"
)

// Bounds of what may be pushed.
const (
	maxModules = 1024
	maxArches  = 16
	maxNodes   = 1024
)

func unmarshal(data []byte, v any) error { return json.Unmarshal(data, v) }

// proposal is a module that somebody wants in the mesh, for push and for plan.
type proposal struct {
	manifest  mesh.Manifest
	digests   mesh.Digests
	placement *[]string
	by        string
}

// check validates what can be without the state.
func (p *proposal) check() error {
	if err := p.manifest.Validate(); err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	for ref, arches := range p.digests {
		kind, name, ok := strings.Cut(ref, "/")
		if !ok || kind != string(mesh.ArtifactBundle) && kind != string(mesh.ArtifactImage) {
			return fmt.Errorf("digests: %.100q is not bundle/NAME or image/NAME", ref)
		}
		if err := mesh.CheckName(name); err != nil {
			return fmt.Errorf("digests: %.100q: %w", ref, err)
		}
		if len(arches) > maxArches {
			return fmt.Errorf("digests: %s has %d architectures, at most %d are allowed", ref, len(arches), maxArches)
		}
		for arch, d := range arches {
			if err := mesh.CheckName(arch); err != nil {
				return fmt.Errorf("digests: the architecture of %s: %w", ref, err)
			}
			if err := mesh.CheckDigest(d); err != nil {
				return fmt.Errorf("digests: %s for %s: %w", ref, arch, err)
			}
		}
	}
	if p.placement != nil && len(*p.placement) > maxNodes {
		return fmt.Errorf("placement: %d nodes, at most %d are allowed", len(*p.placement), maxNodes)
	}
	return nil
}

// place decides the nodes of the proposal: as asked, else where the module is, else the control-node; the host itself
// is everywhere.
func (p *proposal) place(w *world) ([]string, error) {
	if p.placement == nil {
		if m, ok := w.find(p.manifest.Module); ok && len(m.Placement) > 0 {
			return m.Placement, nil
		}
		if p.manifest.Module == mesh.HostModule {
			return w.nodeNames(), nil
		}
		return []string{w.control}, nil
	}
	nodes := slices.Clone(*p.placement)
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	for _, n := range nodes {
		if _, ok := w.nodes[n]; !ok {
			return nil, seat.Errorf(mesh.CodeNotFound, "placement: there is no node %.70q; there are %s", n, strings.Join(w.nodeNames(), ", "))
		}
	}
	return nodes, nil
}

// checkArches refuses digests for an architecture that no node has: they would stand in the mesh and never run, while what
// the caller meant to run stays away.
func (p *proposal) checkArches(w *world) error {
	have := map[string]bool{}
	for _, n := range w.nodes {
		have[n.Arch] = true
	}
	for _, ref := range slices.Sorted(maps.Keys(p.digests)) {
		for _, arch := range slices.Sorted(maps.Keys(p.digests[ref])) {
			if !have[arch] {
				return seat.Errorf(mesh.CodeBadParams, "digests: %s is given for %s, which no node of the mesh has; the nodes have %s", ref, arch, strings.Join(slices.Sorted(maps.Keys(have)), ", "))
			}
		}
	}
	return nil
}

// missing lists what is needed on nodes and not bound in digests, as ref and architecture, sorted.
func missing(w *world, m *mesh.Manifest, nodes []string, digests mesh.Digests) [][2]string {
	need := map[[2]string]mesh.Ref{}
	for i := range m.Resources {
		ref := m.Resources[i].Artifact()
		if ref.IsZero() {
			continue
		}
		for _, n := range nodes {
			arch := w.nodes[n].Arch
			if digests[ref.String()][arch] == "" {
				need[[2]string{ref.String(), arch}] = ref
			}
		}
	}
	return slices.SortedFunc(maps.Keys(need), func(a, b [2]string) int { return strings.Compare(a[0]+" "+a[1], b[0]+" "+b[1]) })
}

// bind completes digests by asking the catalogue. It returns a copy.
func (c *Controller) bind(ctx context.Context, digests mesh.Digests, need [][2]string) (mesh.Digests, error) {
	out := mesh.Digests{}
	for ref, arches := range digests {
		out[ref] = maps.Clone(arches)
	}
	for _, n := range need {
		ref, arch := n[0], n[1]
		kind, name, _ := strings.Cut(ref, "/")
		var res verbs.ResolveResult
		err := c.opt.Host.Call(ctx, mesh.SeatCatalogue, verbs.Resolve, verbs.ResolveParams{Kind: mesh.ArtifactKind(kind), Name: name, Arch: arch}, &res)
		if err == nil {
			err = mesh.CheckDigest(res.Digest)
		}
		if err != nil {
			return nil, fmt.Errorf("which digest has %s for %s: it was not given, and the catalogue does not say: %w", ref, arch, err)
		}
		if out[ref] == nil {
			out[ref] = map[string]string{}
		}
		out[ref][arch] = res.Digest
	}
	return out, nil
}

// resolve binds p against the state as it is now. Resolving takes a call, so it is done outside of any
// transaction; the transaction that uses it looks again whether something is missing.
func (c *Controller) resolve(ctx context.Context, p *proposal) error {
	var need [][2]string
	err := c.db.view(func(t *txn) error {
		w, err := t.world()
		if err != nil {
			return err
		}
		nodes, err := p.place(w)
		if err != nil {
			return err
		}
		if err := p.checkArches(w); err != nil {
			return err
		}
		need = missing(w, &p.manifest, nodes, p.digests)
		return nil
	})
	if err != nil {
		return err
	}
	p.digests, err = c.bind(ctx, p.digests, need)
	return err
}

// apply puts p into w. same is true when it is there already, in that form and place.
func (c *Controller) apply(w *world, p *proposal) (m module, v *moduleVersion, same bool, err error) {
	nodes, err := p.place(w)
	if err != nil {
		return m, nil, false, err
	}
	if need := missing(w, &p.manifest, nodes, p.digests); len(need) > 0 {
		return m, nil, false, seat.Errorf(mesh.CodeConflict, "module %s was placed elsewhere meanwhile and needs %s for %s; push it again", p.manifest.Module, need[0][0], need[0][1])
	}
	m, known := w.find(p.manifest.Module)
	if !known {
		if len(w.modules) >= maxModules {
			return m, nil, false, seat.Errorf(mesh.CodeConflict, "the mesh has %d modules, the most it can have", maxModules)
		}
		m = module{moduleRecord: moduleRecord{Name: p.manifest.Module}}
	}
	sum, err := manifestSum(&p.manifest)
	if err != nil {
		return m, nil, false, err
	}
	same = known && m.latest.SHA256 == sum && reflect.DeepEqual(m.latest.Digests, p.digests) && slices.Equal(m.Placement, nodes)
	m.Placement = nodes
	if same {
		return m, m.latest, true, nil
	}
	v = &moduleVersion{At: c.opt.Now().UTC(), By: p.by, SHA256: sum, Digests: p.digests, Manifest: p.manifest}
	m.latest = v
	return m, v, false, nil
}

// manifestSum is the digest of a manifest as JSON, which Go writes in one way only.
func manifestSum(m *mesh.Manifest) (string, error) {
	data, err := json.Marshal(m)
	if err != nil {
		return "", fmt.Errorf("write manifest %s: %w", m.Module, err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// Push stores a module and, unless it is held, declares it.
func (c *Controller) Push(ctx context.Context, by string, params *verbs.PushParams) (*verbs.PushResult, error) {
	p := &proposal{manifest: params.Manifest, digests: params.Digests, placement: params.Placement, by: by}
	if err := p.check(); err != nil {
		return nil, seat.Errorf(mesh.CodeBadParams, "%v", err)
	}
	if err := c.resolve(ctx, p); err != nil {
		return nil, err
	}
	res := &verbs.PushResult{Module: p.manifest.Module}
	var touched []string
	err := c.db.update(func(t *txn) error {
		if err := t.fresh(params.Plan); err != nil {
			return err
		}
		w, err := t.world()
		if err != nil {
			return err
		}
		before, _ := w.find(p.manifest.Module)
		was := slices.Clone(before.Placement)
		m, v, same, err := c.apply(w, p)
		if err != nil {
			return err
		}
		res.Same = same
		if !same {
			if err := t.store(&m, v); err != nil {
				return err
			}
		}
		if !params.Hold {
			m.promote()
		}
		w.set(m)
		if err := w.checkSeats(); err != nil {
			return seat.Errorf(mesh.CodeConflict, "push %s: %v", m.Name, err)
		}
		if !same || m.Current != before.Current {
			t.meta.Revision++
			if err := t.put(bucketModules, m.Name, m.moduleRecord); err != nil {
				return err
			}
		}
		res.Version, res.Revision = m.Latest, t.meta.Revision
		switch {
		case params.Hold && m.Current != m.Latest:
			res.Reason = "held until `declare`, as asked"
		case !t.meta.Declaring:
			res.Reason = "nothing is declared before the first `declare`"
		default:
			touched = union(was, m.Placement)
			written, changes, err := c.write(t, w, touched)
			res.Declared, res.Changes = true, changes
			touched = written
			return err
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	c.deliver(touched)
	return res, nil
}

func union(a, b []string) []string {
	out := slices.Concat(a, b)
	slices.Sort(out)
	return slices.Compact(out)
}
