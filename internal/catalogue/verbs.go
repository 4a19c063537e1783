package catalogue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/sirupsen/logrus"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/artifact"
	"kingpost/internal/mesh/seat"
	"kingpost/internal/mesh/verbs"
)

// Server answers the verbs of the catalogue seat in the mesh meshName.
func (c *Catalogue) Server(meshName string, log logrus.FieldLogger) *seat.Server {
	s := seat.New(seat.Options{Seat: mesh.SeatCatalogue, Mesh: meshName, Open: c.Check, Log: log})
	seat.Register(s, seat.Verb[verbs.ListParams]{
		Name: verbs.List, Summary: "the artifacts that stand in the store", Roles: seat.Everybody(),
		Check: func(_ context.Context, _ seat.Request, p *verbs.ListParams) error {
			if p.Name != "" {
				if err := mesh.CheckName(p.Name); err != nil {
					return err
				}
			}
			return checkKind(p.Kind, p.Kind == "")
		},
		Run: func(ctx context.Context, _ seat.Request, p *verbs.ListParams) (any, error) { return c.List(ctx, p) },
	})
	seat.Register(s, seat.Verb[verbs.ShowParams]{
		Name: verbs.Show, Summary: "one artifact with its layers, and a module with its manifest", Roles: seat.Everybody(),
		Check: func(_ context.Context, _ seat.Request, p *verbs.ShowParams) error { return checkShow(p) },
		Run:   func(ctx context.Context, _ seat.Request, p *verbs.ShowParams) (any, error) { return c.Show(ctx, p) },
	})
	seat.Register(s, seat.Verb[verbs.ResolveParams]{
		Name: verbs.Resolve, Summary: "the digest that a name stands for on an architecture", Roles: seat.Everybody(),
		Check: func(_ context.Context, _ seat.Request, p *verbs.ResolveParams) error { return checkResolve(p) },
		Run: func(ctx context.Context, _ seat.Request, p *verbs.ResolveParams) (any, error) {
			return c.Resolve(ctx, p)
		},
	})
	return s
}

func checkKind(k mesh.ArtifactKind, optional bool) error {
	switch k {
	case mesh.ArtifactBundle, mesh.ArtifactImage, mesh.ArtifactModule:
		return nil
	}
	if optional {
		return nil
	}
	return fmt.Errorf("kind: %.40q is none of bundle, image, module", k)
}

func checkRef(kind mesh.ArtifactKind, name string) error {
	if err := checkKind(kind, false); err != nil {
		return err
	}
	if err := mesh.CheckName(name); err != nil {
		return fmt.Errorf("name: %w", err)
	}
	return nil
}

func checkShow(p *verbs.ShowParams) error {
	if err := checkRef(p.Kind, p.Name); err != nil {
		return err
	}
	switch {
	case p.Tag != "" && p.Digest != "":
		return errors.New("tag and digest: give one of them")
	case p.Tag == "" && p.Digest == "":
		return errors.New("tag or digest: give one of them; list shows what there is")
	case p.Digest != "":
		return mesh.CheckDigest(p.Digest)
	}
	return nil
}

func checkResolve(p *verbs.ResolveParams) error {
	if err := checkRef(p.Kind, p.Name); err != nil {
		return err
	}
	if p.Kind == mesh.ArtifactModule {
		if p.Arch != "" {
			return errors.New("arch: a module has none")
		}
		return nil
	}
	if err := mesh.CheckName(p.Arch); err != nil {
		return fmt.Errorf("arch: %w", err)
	}
	return nil
}

// List lists what stands in the store. While the store is away it lists what stood there, and says so.
func (c *Catalogue) List(ctx context.Context, p *verbs.ListParams) (*verbs.ListResult, error) {
	ix, stale, err := c.current(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	res := &verbs.ListResult{Artifacts: []verbs.CatalogueEntry{}, At: ix.At, Stale: stale}
	for _, e := range ix.Entries {
		if (p.Kind == "" || p.Kind == e.Kind) && (p.Name == "" || p.Name == e.Name) {
			res.Artifacts = append(res.Artifacts, e)
		}
	}
	return res, nil
}

// Show shows one artifact, read from the store.
func (c *Catalogue) Show(ctx context.Context, p *verbs.ShowParams) (*verbs.ShowResult, error) {
	ref := mesh.Ref{Kind: p.Kind, Name: p.Name}
	digest := p.Digest
	if digest == "" {
		desc, err := c.store.Resolve(ctx, ref, p.Tag)
		if err != nil {
			return nil, missing(ref, p.Tag, err)
		}
		digest = string(desc.Digest)
	}
	raw, err := c.store.Manifest(ctx, ref, digest)
	if err != nil {
		return nil, missing(ref, digest, err)
	}
	m, err := artifact.ParseManifest(raw)
	if err != nil {
		return nil, fmt.Errorf("%s@%s: %w", ref, digest, err)
	}
	e := describe(ref, digest, raw)
	if e.Tag = p.Tag; p.Tag != "" {
		e.Version, e.Arch = splitTag(ref.Kind, p.Tag)
	}
	res := &verbs.ShowResult{CatalogueEntry: e, MediaType: m.MediaType, Config: string(m.Config.Digest), Layers: []verbs.Layer{}}
	for _, l := range m.Layers {
		res.Layers = append(res.Layers, verbs.Layer{MediaType: l.MediaType, Digest: string(l.Digest), Size: l.Size})
	}
	if ref.Kind == mesh.ArtifactModule {
		data, err := artifact.ReadModule(ctx, c.store, ref, digest)
		if err != nil {
			return nil, fmt.Errorf("read the manifest of %s@%s: %w", ref, digest, err)
		}
		man, err := mesh.DecodeManifest(bytes.NewReader(data))
		if err != nil {
			return nil, fmt.Errorf("%s@%s: %w", ref, digest, err)
		}
		res.Manifest = &man
	}
	return res, nil
}

// Resolve binds a name to a digest by the store as it is now, never by an old index: what it says is
// going to run.
func (c *Catalogue) Resolve(ctx context.Context, p *verbs.ResolveParams) (*verbs.ResolveResult, error) {
	ref := mesh.Ref{Kind: p.Kind, Name: p.Name}
	tags, err := c.store.Tags(ctx, ref)
	if err != nil {
		return nil, unavailable(fmt.Errorf("read the store: %w", err))
	}
	best, version := "", ""
	for _, t := range tags {
		v, arch := splitTag(p.Kind, t)
		if arch != p.Arch || p.Version != "" && v != p.Version {
			continue
		}
		if best == "" || compareVersions(v, version) > 0 {
			best, version = t, v
		}
	}
	if best == "" {
		what := ref.String()
		if p.Version != "" {
			what += " " + p.Version
		}
		if p.Arch != "" {
			what += " for " + p.Arch
		}
		have := "the store has no tag of it"
		if len(tags) > 0 {
			have = fmt.Sprintf("the store has %.300s", strings.Join(tags, ", "))
		}
		return nil, seat.Errorf(mesh.CodeNotFound, "%s is not in the store: %s", what, have)
	}
	desc, err := c.store.Resolve(ctx, ref, best)
	if err != nil {
		return nil, missing(ref, best, err)
	}
	return &verbs.ResolveResult{Digest: string(desc.Digest), Tag: best, Version: version}, nil
}

func missing(ref mesh.Ref, what string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return seat.Errorf(mesh.CodeNotFound, "%s %s is not in the store", ref, what)
	}
	return unavailable(fmt.Errorf("read %s %s: %w", ref, what, err))
}

func unavailable(err error) error { return seat.Errorf(mesh.CodeUnavailable, "%v", err) }
