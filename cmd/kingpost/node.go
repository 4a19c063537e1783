package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/verbs"
)

func newNodeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "node",
		Short:   "List nodes, look at one, restart it, switch it off or wipe it",
		Example: "  kingpost node list\n  kingpost node reboot",
	}
	cmd.AddCommand(newNodeListCommand(), newNodeStatusCommand(), newNodeHostsCommand(), newNodeDisksCommand(), newNodeClearCommand(),
		newPowerCommand("reboot", "Stop everything in order and start the node again", "reboots"),
		newPowerCommand("poweroff", "Stop everything in order and switch the node off", "switches itself off"),
		newResetCommand())
	return cmd
}

func newNodeListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List the nodes of the mesh, what they must run and whether they have it",
		Example: "  kingpost node list", Args: cobra.NoArgs,
	}
	out := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withNode(cmd, askTime, func(ctx context.Context, n node) error {
			var m verbs.StatusResult
			if err := n.Call(ctx, mesh.SeatController, verbs.Status, nil, &m); err != nil {
				return fmt.Errorf("list the nodes: %w", err)
			}
			if m.Nodes == nil {
				m.Nodes = []verbs.NodeStatus{}
			}
			return out.print(cmd.OutOrStdout(), m.Nodes, func(w io.Writer) error { return nodesTable(w, m.Nodes) })
		})
	}
	return cmd
}

// nodeStatus is what `kingpost node status` prints.
type nodeStatus struct {
	Node   hostapi.Node   `json:"node"`
	Status hostapi.Status `json:"status"`
}

func newNodeStatusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Show who a node is, how it booted and what it runs",
		Example: "  kingpost node status", Args: cobra.NoArgs,
	}
	out := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withNode(cmd, askTime, func(ctx context.Context, n node) error {
			s, err := n.state(ctx)
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), s, s.table)
		})
	}
	return cmd
}

// state asks the node who it is and what it runs.
func (n node) state(ctx context.Context) (s nodeStatus, err error) {
	who, err := n.Node(ctx)
	if err != nil {
		return s, err
	}
	runs, err := n.Status(ctx)
	if err != nil {
		return s, err
	}
	return nodeStatus{*who, *runs}, nil
}

func (s *nodeStatus) table(w io.Writer) error {
	n := &s.Node
	err := lines(w,
		"node", n.Name,
		"id", n.ID,
		"key", n.Key,
		"mesh", n.Mesh,
		"state", n.State,
		"addresses", strings.Join(n.Addresses, " "),
		"release", fmt.Sprintf("%s %s (%s), %s", n.Release.Name, n.Release.Version, n.Release.Date, n.Release.Architecture),
		"root", strings.TrimSpace(n.Boot.RootHash+" "+slot(n.Boot.Slot)),
		"disk", n.Boot.Disk,
		"data", fmt.Sprintf("%s free of %s", size(n.DataFree), size(n.DataSize)),
		"host", fmt.Sprintf("%s, pid %d", n.Host.Digest, n.Host.PID),
		"up", age(time.Duration(n.Uptime*float64(time.Second))),
		"clock", strings.TrimSpace(n.Time.UTC().Format(time.RFC3339)+" "+synced(n.Clock)+" "+n.Boot.Clock),
		"declared", declared(s.Status),
		"warnings", strings.Join(append(append([]string{}, n.Boot.Warnings...), n.Warnings...), "; "))
	if err != nil {
		return err
	}
	if len(s.Status.Resources) == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return resourcesTable(w, s.Status.Resources, n.Time)
}

// synced says who keeps a clock right.
func synced(c *hostapi.TimeStatus) string {
	switch {
	case c == nil:
		return ""
	case c.Synced:
		return fmt.Sprintf("synced with %s (%s), was off by %+.3f s;", c.Server, c.From, c.Offset)
	}
	return "not synced: " + c.Reason + ";"
}

// declared is what the node must run, by version, beside what it last had whole.
func declared(st hostapi.Status) string {
	v := fmt.Sprintf("(%d,%d)", st.Declared.Epoch, st.Declared.Revision)
	if st.Settled {
		return v + ", all as declared"
	}
	differ := 0
	for _, r := range st.Resources {
		if r.Reason != "" || r.Wanted == nil {
			differ++
		}
	}
	return fmt.Sprintf("%s, last reached (%d,%d); %d of %d resources differ", v, st.Applied.Epoch, st.Applied.Revision, differ, len(st.Resources))
}

func slot(s string) string {
	if s == "" {
		return ""
	}
	return "in slot " + s
}

func newPowerCommand(action, short, does string) *cobra.Command {
	return &cobra.Command{
		Use: action, Short: short, Example: "  kingpost node " + action, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withNode(cmd, askTime, func(ctx context.Context, n node) error {
				if err := n.Power(ctx, action); err != nil {
					return fmt.Errorf("%s %s: %w", action, n.at.Node, err)
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "the node %s %s\n", n.at.Node, does)
				return err
			})
		},
	}
}
