package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/artifact"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/verbs"
	"kingpost/internal/scratch"
)

func newModuleCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "module", Short: "Bring modules into the mesh",
		Example: "  kingpost module push ./web --bundle web=./web/bin/web",
	}
	cmd.AddCommand(newModulePushCommand())
	return cmd
}

// moduleInput is what push and plan take.
type moduleInput struct {
	bundles []string
	nodes   []string
	arch    string
}

func (in *moduleInput) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&in.nodes, "node", nil, "a node that runs the module; may be given many times (default: where it is, else the control-node)")
}

func (in *moduleInput) placement() *[]string {
	if in.nodes == nil {
		return nil
	}
	return &in.nodes
}

func newModulePushCommand() *cobra.Command {
	var in moduleInput
	var hold, dry bool
	cmd := &cobra.Command{
		Use:   "push DIR|module.json",
		Short: "Bring a module, or a new version or form of it, into the mesh",
		Long: `Reads module.json, packs the bundles given by --bundle from files that are built already and brings them
into the artifact store, then pushes the manifest to the controller, bound to their digests. What the
manifest names beside them is taken from the store. A bundle's FILE is its program, put at bin/NAME, or a
folder with everything that the bundle holds.`,
		Example: `  kingpost module push images/modules/controller
  kingpost module push web/module.json --bundle web=web/bin/web --dry-run`,
		Args: cobra.ExactArgs(1),
	}
	in.flags(cmd)
	f := cmd.Flags()
	f.StringArrayVar(&in.bundles, "bundle", nil, "a bundle to pack, NAME=FILE or NAME=DIR; may be given many times")
	f.StringVar(&in.arch, "arch", "", "the architecture of the bundles (default: the control-node's)")
	f.BoolVar(&hold, "hold", false, "store it, and declare it at the next declare")
	f.BoolVar(&dry, "dry-run", false, "show what would change; nothing is stored, bundles are packed and forgotten")
	out := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		m, err := readModule(args[0])
		if err != nil {
			return err
		}
		sources, err := in.sources(&m)
		if err != nil {
			return err
		}
		return withNode(cmd, 0, func(ctx context.Context, n node) error {
			p := &pusher{client: n.Client, err: cmd.ErrOrStderr(), dry: dry}
			digests, err := p.bundles(ctx, &m, sources, in.arch)
			if err != nil {
				return err
			}
			if dry {
				return n.plan(ctx, cmd, *out, verbs.PlanParams{Manifest: &m, Digests: digests, Placement: in.placement()})
			}
			if err := p.module(ctx, &m); err != nil {
				return err
			}
			var res verbs.PushResult
			if err := n.Call(ctx, mesh.SeatController, verbs.Push, verbs.PushParams{Manifest: m, Digests: digests, Placement: in.placement(), Hold: hold}, &res); err != nil {
				return fmt.Errorf("push the module %s: %w", m.Module, err)
			}
			return out.print(cmd.OutOrStdout(), res, func(w io.Writer) error { return pushed(w, &res) })
		})
	}
	return cmd
}

func pushed(w io.Writer, res *verbs.PushResult) error {
	switch {
	case res.Same && len(res.Changes) == 0:
		_, err := fmt.Fprintf(w, "the module %s is there already, as version %d\n", res.Module, res.Version)
		return err
	case !res.Declared:
		_, err := fmt.Fprintf(w, "the module %s is stored as version %d: %s\n", res.Module, res.Version, res.Reason)
		return err
	}
	if _, err := fmt.Fprintf(w, "the module %s is declared as version %d\n", res.Module, res.Version); err != nil {
		return err
	}
	return changesTable(w, res.Changes)
}

// plan prints what the controller says would change.
func (n node) plan(ctx context.Context, cmd *cobra.Command, out outputFlag, params verbs.PlanParams) error {
	var plan verbs.PlanResult
	if err := n.Call(ctx, mesh.SeatController, verbs.Plan, params, &plan); err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	return out.print(cmd.OutOrStdout(), plan, func(w io.Writer) error { return changesTable(w, plan.Changes) })
}

func newPlanCommand() *cobra.Command {
	var in moduleInput
	cmd := &cobra.Command{
		Use:     "plan [DIR|module.json]",
		Short:   "Show what a push of a module, or a declare of what is held, would change",
		Example: "  kingpost plan\n  kingpost plan web/module.json",
		Args:    cobra.MaximumNArgs(1),
	}
	in.flags(cmd)
	out := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		params := verbs.PlanParams{Placement: in.placement()}
		if len(args) == 1 {
			m, err := readModule(args[0])
			if err != nil {
				return err
			}
			params.Manifest = &m
		} else if in.nodes != nil {
			return usageError("--node needs a module")
		}
		return withNode(cmd, 0, func(ctx context.Context, n node) error { return n.plan(ctx, cmd, *out, params) })
	}
	return cmd
}

func changesTable(w io.Writer, changes []verbs.Change) error {
	if len(changes) == 0 {
		_, err := fmt.Fprintln(w, "nothing changes")
		return err
	}
	t := newTable("NODE", "RESOURCE", "CHANGE", "FROM", "TO", "WHY")
	for _, c := range changes {
		t.add(c.Node, c.Key, c.Action, shortDigest(c.From), shortDigest(c.To), text(c.Why))
	}
	return t.write(w)
}

// readModule reads module.json from its folder or by its own name.
func readModule(name string) (mesh.Manifest, error) {
	if st, err := os.Stat(name); err == nil && st.IsDir() {
		name = filepath.Join(name, "module.json")
	}
	if st, err := os.Stat(name); err == nil && !st.Mode().IsRegular() {
		return mesh.Manifest{}, fmt.Errorf("%s is no regular file", name)
	}
	return readManifest(name)
}

// sources are the bundles to pack, by name; each must be named by the manifest.
func (in *moduleInput) sources(m *mesh.Manifest) (map[string]string, error) {
	sources := map[string]string{}
	for _, s := range in.bundles {
		name, file, ok := strings.Cut(s, "=")
		if !ok || name == "" || file == "" {
			return nil, usageError("--bundle %q is not NAME=FILE", s)
		}
		if _, twice := sources[name]; twice {
			return nil, usageError("--bundle %s is given twice", name)
		}
		if !slices.ContainsFunc(m.Resources, func(r mesh.Resource) bool { return r.Type == mesh.KindProcess && r.Bundle == name }) {
			return nil, usageError("--bundle %s: the module %s has no process with that bundle", name, m.Module)
		}
		sources[name] = file
	}
	return sources, nil
}

// pusher brings artifacts into the store.
type pusher struct {
	client *hostapi.Client
	err    io.Writer
	dry    bool
}

func (p *pusher) store() *artifact.Client {
	return &artifact.Client{HTTP: p.client.HTTP(), Base: p.client.BaseURL()}
}

// unversioned is the version of what comes from a manifest without one.
const unversioned = "0.0.0"

func origin(m *mesh.Manifest, arch string) artifact.Origin {
	version := m.Version
	if version == "" {
		version = unversioned
	}
	// No clock: the same files give the same bundle, so that a push again changes nothing.
	return artifact.Origin{Version: version, Arch: arch, Created: time.Unix(0, 0).UTC()}
}

func (p *pusher) bundles(ctx context.Context, m *mesh.Manifest, sources map[string]string, arch string) (mesh.Digests, error) {
	if len(sources) == 0 {
		return nil, nil
	}
	if arch == "" {
		n, err := p.client.Node(ctx)
		if err != nil {
			return nil, err
		}
		arch = n.Release.Architecture
	}
	digests := mesh.Digests{}
	for name, file := range sources {
		d, err := p.bundle(ctx, m, name, file, arch)
		if err != nil {
			return nil, fmt.Errorf("bundle %s from %s: %w", name, file, err)
		}
		digests[mesh.Ref{Kind: mesh.ArtifactBundle, Name: name}.String()] = map[string]string{arch: d}
	}
	return digests, nil
}

// bundle packs one bundle aside and pushes it; it returns its digest.
func (p *pusher) bundle(ctx context.Context, m *mesh.Manifest, name, file, arch string) (digest string, err error) {
	files, err := bundleFiles(name, file)
	if err != nil {
		return "", err
	}
	tmp, err := scratch.File(os.TempDir(), "kingpost-bundle-")
	if err != nil {
		return "", err
	}
	defer tmp.Remove()
	o := origin(m, arch)
	layer, err := artifact.PackLayer(ctx, tmp.File, files, o.Created)
	if err != nil {
		return "", err
	}
	a, err := artifact.NewBundle(name, o, layer, func(context.Context) (io.ReadCloser, error) { return os.Open(tmp.Path) })
	if err != nil {
		return "", err
	}
	digest = string(a.Desc.Digest)
	if p.dry {
		return digest, nil
	}
	if err := p.store().Push(ctx, a); err != nil {
		return "", err
	}
	fmt.Fprintf(p.err, "bundle %s: %d files, %s, %s\n", name, len(files), size(layer.Size), digest)
	return digest, nil
}

// bundleFiles lists what goes into a bundle: one program, or all regular files and links of a folder.
func bundleFiles(name, file string) ([]artifact.File, error) {
	st, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if !st.IsDir() {
		f, err := artifact.FileFromDisk(path.Join("bin", name), file, 0o755)
		return []artifact.File{f}, err
	}
	var files []artifact.File
	err = filepath.WalkDir(file, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(file, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		switch d.Type() {
		case 0:
			st, err := d.Info()
			if err != nil {
				return err
			}
			mode := uint32(0o644)
			if st.Mode()&0o111 != 0 {
				mode = 0o755
			}
			f, err := artifact.FileFromDisk(rel, p, mode)
			files = append(files, f)
			return err
		case fs.ModeSymlink:
			to, err := os.Readlink(p)
			files = append(files, artifact.File{Path: rel, Link: to})
			return err
		}
		return fmt.Errorf("%s is a %s; a bundle holds regular files and links", rel, d.Type())
	})
	return files, err
}

// module brings the manifest itself into the store, where the catalogue finds it.
func (p *pusher) module(ctx context.Context, m *mesh.Manifest) error {
	raw, err := manifestJSON(m)
	if err != nil {
		return err
	}
	a, err := artifact.NewModule(m.Module, origin(m, ""), raw)
	if err != nil {
		return err
	}
	if err := p.store().Push(ctx, a); err != nil {
		return fmt.Errorf("bring the manifest into the store: %w", err)
	}
	return nil
}

func manifestJSON(m *mesh.Manifest) ([]byte, error) {
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the manifest of %s: %w", m.Module, err)
	}
	return append(b, '\n'), nil
}
