package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/artifact"
	"kingpost/internal/mesh/verbs"
)

func newModuleCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "module", Short: "Bring modules into the mesh, and take them off",
		Example: "  kingpost module push ./web --bundle web=./web/bin/web",
	}
	cmd.AddCommand(newModulePushCommand(), newModuleRemoveCommand())
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
		if err := in.checkArch(cmd, len(sources)); err != nil {
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
		_, err := fmt.Fprintf(w, "the module %s is there already, as version %d: nothing changed\n", res.Module, res.Version)
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

// checkArch refuses an --arch that would be without effect or that is none, before anything is asked of a node.
func (in *moduleInput) checkArch(cmd *cobra.Command, bundles int) error {
	if !cmd.Flags().Changed("arch") {
		return nil
	}
	if known := artifact.Architectures(); !slices.Contains(known, in.arch) {
		return usageError("--arch %q is no architecture that is known here; use %s", in.arch, strings.Join(known, " or "))
	}
	if bundles == 0 {
		return usageError("--arch says for which architecture a bundle is packed, and no --bundle is given")
	}
	return nil
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
