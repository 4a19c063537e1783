package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"kingpost/internal/mesh/hostapi"
)

// resetOptions are the flags of `kingpost node reset`.
type resetOptions struct {
	yes       bool
	name      string
	keepClaim bool
	dryRun    bool
}

func newResetCommand() *cobra.Command {
	var o resetOptions
	cmd := &cobra.Command{
		Use:   "reset NODE",
		Short: "Wipe a node back to unclaimed: everything on its data partition is lost",
		Long: `Wipes a node back to unclaimed. It stops everything in order, reboots, and on the way up removes all
that is on its data partition: its key and certificates, volumes, what is declared, bundles, images and logs. Its
release stays, and it comes up as a new node with a new key. On the control-node the mesh itself is lost.

The node.yaml that it has does not count as far as claim, install and mesh are concerned until somebody edits it.
With --keep-claim its claim does, so that the same operator can raise the node again from afar.

It asks twice. Without a terminal --yes and --name NODE answer.`,
		Example: "  kingpost node reset alpha\n  kingpost node reset alpha --yes --name alpha --keep-claim",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withNode(cmd, 0, func(ctx context.Context, n node) error { return o.reset(ctx, cmd, n, args[0]) })
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.yes, "yes", false, "do not ask; needs --name")
	f.StringVar(&o.name, "name", "", "the node's name once more, for --yes")
	f.BoolVar(&o.keepClaim, "keep-claim", false, "let the claim in the node's node.yaml count afterwards")
	f.BoolVar(&o.dryRun, "dry-run", false, "say what would be lost, and change nothing")
	return cmd
}

func (o *resetOptions) reset(ctx context.Context, cmd *cobra.Command, n node, name string) error {
	ask, cancel := context.WithTimeout(ctx, askTime)
	s, err := n.state(ask)
	cancel()
	if err != nil {
		return fmt.Errorf("reset %s: %w", name, err)
	}
	if s.Node.Name != name {
		return refusedError("reset %s: the context %s leads to the node %s; choose another one by --context. Nothing was changed", name, n.at.Name, s.Node.Name)
	}
	out := cmd.ErrOrStderr()
	if err := o.loss(out, &s); err != nil || o.dryRun {
		return err
	}
	if err := o.confirm(cmd.InOrStdin(), out, name); err != nil {
		return err
	}
	send, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	if err := n.Reset(send, hostapi.ResetRequest{Name: name, KeepClaim: o.keepClaim}); err != nil {
		return fmt.Errorf("reset %s: %w", name, err)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), `the node %s reboots and wipes itself; it comes back with a new key, which its console shows
%s
the context %s is of no use any more: kingpost context remove %s
`, name, o.next(), n.at.Name, n.at.Name)
	return err
}

// next says how the node comes into a mesh again.
func (o *resetOptions) next() string {
	if o.keepClaim {
		return "the claim of its node.yaml counts: kingpost raise ADDRESS --mesh NAME --replace"
	}
	return "it is unclaimed: edit node.yaml on its ESP to claim it"
}

// loss says what a reset costs.
func (o *resetOptions) loss(w io.Writer, s *nodeStatus) error {
	n := &s.Node
	_, err := fmt.Fprintf(w, "node %s, key %s\nlost will be: its key and certificates, %d resources with their volumes and logs, %s of data\n",
		n.Name, n.Key, len(s.Status.Resources), size(n.DataSize-n.DataFree))
	if err == nil && n.State == "raised" {
		_, err = fmt.Fprintf(w, "this is the control-node: the mesh %s with its store, its controller and its CA is lost for all its nodes\n", n.Mesh)
	}
	return err
}

// confirm asks twice, on a terminal; else the flags must have answered.
func (o *resetOptions) confirm(in io.Reader, w io.Writer, name string) error {
	if o.yes || o.name != "" {
		switch {
		case !o.yes:
			return usageError("--name goes with --yes")
		case o.name == "":
			return usageError("--yes alone wipes no node: say its name once more by --name %s", name)
		case o.name != name:
			return refusedError("reset %s: --name says %s; nothing was changed", name, o.name)
		}
		return nil
	}
	if !isTerminal(in) {
		return refusedError("reset %s: there is no terminal to ask on; answer by --yes --name %s. Nothing was changed", name, name)
	}
	r := bufio.NewReader(in)
	for _, q := range []struct{ ask, want string }{
		{"Wipe this node? There is no way back. [yes/no] ", "yes"},
		{"Type the node's name to wipe it: ", name},
	} {
		fmt.Fprint(w, q.ask)
		answer, err := r.ReadString('\n')
		if err != nil && err != io.EOF {
			return fmt.Errorf("read the answer: %w", err)
		}
		if strings.TrimSpace(answer) != q.want {
			return refusedError("reset %s: the answer was not %q; nothing was changed", name, q.want)
		}
	}
	return nil
}
