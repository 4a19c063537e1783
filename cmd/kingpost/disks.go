package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"kingpost/installer/install"
)

func newNodeDisksCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "disks [NODE]", Short: "Show a node's disks, what is on them, and which one its node.yaml selects",
		Long: `Shows the disks of a node, what is on each, which one the section install of its node.yaml selects, why not the
others, and which partitions the selected one would have. It reads, and changes nothing. NODE says which node is meant; the
context must lead to it.`,
		Example: "  kingpost node disks\n  kingpost node disks alpha -o json", Args: cobra.MaximumNArgs(1),
	}
	out := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withNode(cmd, askTime, func(ctx context.Context, n node) error {
			if len(args) == 1 {
				who, err := n.Node(ctx)
				if err != nil {
					return err
				}
				if who.Name != args[0] {
					return refusedError("disks of %s: the context %s leads to the node %s; choose another one by --context", args[0], n.at.Name, who.Name)
				}
			}
			d, err := n.Disks(ctx)
			if err != nil {
				return fmt.Errorf("look at the disks of %s: %w", n.at.Node, err)
			}
			return out.print(cmd.OutOrStdout(), d, func(w io.Writer) error { return install.Text(w, d) })
		})
	}
	return cmd
}
