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

// meshStatus is what `kingpost status` prints: the controller's word, or, where it does not answer, why
// and what its node says.
type meshStatus struct {
	Mesh       string              `json:"mesh"`
	Node       hostapi.Node        `json:"node"`
	Host       hostapi.Status      `json:"host"`
	Controller *verbs.StatusResult `json:"controller,omitempty"`
	Unanswered string              `json:"unanswered,omitempty"` // why Controller is missing
}

func newStatusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what the mesh must run and what it runs",
		Long: `Asks the control-node and its controller: nodes, modules, and every resource beside the reason why it is
not as declared. Exits with 1 when the controller does not answer.`,
		Example: "  kingpost status\n  kingpost status -o json",
		Args:    cobra.NoArgs,
	}
	out := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withNode(cmd, askTime, func(ctx context.Context, n node) error {
			control, err := n.state(ctx)
			if err != nil {
				return err
			}
			s := meshStatus{Mesh: n.at.Mesh, Node: control.Node, Host: control.Status}
			var controller verbs.StatusResult
			callErr := n.Call(ctx, mesh.SeatController, verbs.Status, nil, &controller)
			if callErr == nil {
				s.Controller = &controller
			} else {
				s.Unanswered = callErr.Error()
			}
			if err := out.print(cmd.OutOrStdout(), s, s.table); err != nil {
				return err
			}
			if callErr != nil {
				return fmt.Errorf("the controller does not answer: %w; `kingpost logs controller` shows what it says", callErr)
			}
			return nil
		})
	}
	return cmd
}

func (s *meshStatus) table(w io.Writer) error {
	n := &s.Node
	settled := "settled"
	if !s.Host.Settled {
		settled = "not settled"
	}
	err := lines(w,
		"mesh", s.Mesh,
		"control-node", fmt.Sprintf("%s (%s), %s %s, up %s", n.Name, strings.Join(n.Addresses, " "), n.Release.Name, n.Release.Version, age(time.Duration(n.Uptime*float64(time.Second)))),
		"declared", fmt.Sprintf("(%d,%d), %s", s.Host.Declared.Epoch, s.Host.Declared.Revision, settled),
		"data", fmt.Sprintf("%s free of %s", size(n.DataFree), size(n.DataSize)),
		"warnings", strings.Join(n.Warnings, "; "))
	if err != nil {
		return err
	}
	if c := s.Controller; c != nil {
		if len(c.Nodes) > 1 {
			fmt.Fprintln(w)
			if err := nodesTable(w, c.Nodes); err != nil {
				return err
			}
		}
		for _, h := range c.Held {
			if _, err := fmt.Fprintf(w, "held: %s: %s\n", h.What, h.Why); err != nil {
				return err
			}
		}
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return resourcesTable(w, s.Host.Resources, n.Time)
}

func nodesTable(w io.Writer, nodes []verbs.NodeStatus) error {
	t := newTable("NODE", "ARCH", "ROLE", "DECLARED", "DELIVERED", "REASON")
	for _, n := range nodes {
		role := "node"
		if n.Control {
			role = "control-node"
		}
		t.add(n.Name, n.Arch, role, fmt.Sprintf("(%d,%d)", n.Declared.Epoch, n.Declared.Revision), text(n.Delivered), text(n.Reason))
	}
	return t.write(w)
}

// resourcesTable shows resources as of now, the node's own time.
func resourcesTable(w io.Writer, resources []hostapi.ResourceStatus, now time.Time) error {
	t := newTable("RESOURCE", "TYPE", "STATE", "FOR", "SEATS", "SOURCE", "DIGEST", "MEMORY", "RESTARTS", "REASON")
	for _, r := range resources {
		since, memory, restarts := "", "", ""
		if !r.Since.IsZero() {
			since = age(now.Sub(r.Since))
		}
		if r.Memory > 0 {
			memory = size(r.Memory)
		}
		if r.Restarts > 0 {
			restarts = fmt.Sprint(r.Restarts)
		}
		kind, digest := string(r.Type), shortDigest(r.Digest)
		if w := r.Wanted; w != nil && r.PID != 0 { // what runs, and what is declared where that is something else
			if w.Type != r.Type {
				kind += ", declared: " + string(w.Type)
			}
			if w.Digest != r.Digest {
				digest += ", declared: " + shortDigest(w.Digest)
			}
		}
		t.add(r.Key, kind, r.State, since, strings.Join(r.Seats, ","), string(r.Source), digest, memory, restarts, why(r))
	}
	return t.write(w)
}

// why says why a resource is not as declared, and how it changes.
func why(r hostapi.ResourceStatus) string {
	reason := text(r.Reason)
	if h := r.Handover; h != nil && h.State == "under way" {
		reason = strings.TrimSuffix(fmt.Sprintf("handover to %s by %s, since %s; %s", shortDigest(h.Digest), h.Way, text(h.Why), reason), "; ")
	}
	if r.Wanted == nil && r.PID != 0 && reason == "" {
		return "no longer declared"
	}
	return reason
}

// shortDigest is enough of a digest to tell two apart.
func shortDigest(d string) string {
	_, hex, ok := strings.Cut(d, ":")
	if !ok || len(hex) < 12 {
		return d
	}
	return hex[:12]
}

// age is a duration in its two largest units.
func age(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}

// size writes bytes in binary units.
func size(n int64) string {
	v, unit := float64(n), "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if v < 1024 {
			break
		}
		v, unit = v/1024, u
	}
	if unit == "B" {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, unit)
}
