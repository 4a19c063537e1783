package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

func newNodeHostsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "hosts", Short: "Show which host a node runs, which ones it would go back to, and which failed",
		Example: "  kingpost node hosts", Args: cobra.NoArgs,
	}
	out := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withNode(cmd, askTime, func(ctx context.Context, n node) error {
			who, err := n.Node(ctx)
			if err != nil {
				return err
			}
			if who.Host.Launcher == nil {
				return errors.New("the node has no launcher: its host was started by hand")
			}
			return out.print(cmd.OutOrStdout(), who.Host, func(w io.Writer) error { return hostsTable(w, &who.Host) })
		})
	}
	return cmd
}

func hostsTable(w io.Writer, h *hostapi.HostInfo) error {
	l := h.Launcher
	t := newTable("HOST", "STATE", "FAILURES", "LAST", "REASON")
	for _, d := range hostDigests(h) {
		r := l.Find(d)
		if r == nil {
			r = &mesh.LauncherHost{Digest: d}
		}
		failures, last := "", ""
		if r.Failures > 0 {
			failures = fmt.Sprintf("%d of %d", r.Failures, r.Limit)
		}
		if !r.At.IsZero() {
			last = r.At.UTC().Format("2006-01-02 15:04")
		}
		reason := r.Last
		if r.Damaged != "" {
			reason = r.Damaged
		} else if l.Refused == d && reason == "" {
			reason = l.RefusedReason
		}
		t.add(shortDigest(d), hostState(h, r), failures, last, text(reason))
	}
	return t.write(w)
}

// hostDigests lists the hosts that there is something to say about: what runs, the ways back, and whoever was tried.
func hostDigests(h *hostapi.HostInfo) []string {
	l := h.Launcher
	all := []string{h.Digest, l.Current, l.Good, l.Previous, mesh.HostBakedIn}
	for _, r := range l.Hosts {
		all = append(all, r.Digest)
	}
	seen := map[string]bool{"": true}
	var out []string
	for _, d := range all {
		if !seen[d] {
			seen[d] = true
			out = append(out, d)
		}
	}
	return out
}

// hostState says what a host is to its node, in a few words.
func hostState(h *hostapi.HostInfo, r *mesh.LauncherHost) string {
	l := h.Launcher
	var words []string
	add := func(is bool, word string) {
		if is {
			words = append(words, word)
		}
	}
	add(r.Digest == h.Digest && l.Proven, "runs")
	add(r.Digest == h.Digest && !l.Proven, "runs, not proven yet")
	add(r.Quarantined, "quarantine")
	add(r.Damaged != "", "damaged")
	add(r.Digest != h.Digest && r.Digest == l.Good, "last good")
	add(r.Digest != h.Digest && r.Digest == l.Previous, "good before")
	add(len(words) == 0 && r.Digest == mesh.HostBakedIn, "of the release")
	add(len(words) == 0 && r.Failures > 0, "failed")
	return strings.Join(words, ", ")
}

func newNodeClearCommand() *cobra.Command {
	return &cobra.Command{
		Use: "clear MODULE/ID", Short: "Let a held resource try again: forget its failures",
		Long: `Forgets the failures of a resource that is held, or of a form or version of it that a handover has given up, and has
it tried again at once. ` + mesh.HostKey + ` is the host itself: the declared one is let out of quarantine.`,
		Example: "  kingpost node clear web/server\n  kingpost node clear " + mesh.HostKey, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if module, id, ok := strings.Cut(args[0], "/"); !ok || mesh.CheckName(module) != nil || mesh.CheckName(id) != nil {
				return usageError("%q is not MODULE/ID", args[0])
			}
			return withNode(cmd, askTime, func(ctx context.Context, n node) error {
				if err := n.Clear(ctx, args[0]); err != nil {
					return fmt.Errorf("clear %s: %w", args[0], err)
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is tried again\n", args[0])
				return err
			})
		},
	}
}
