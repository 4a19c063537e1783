package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/verbs"
)

func newModuleRemoveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "Take a module off the mesh; the data in its volumes stays",
		Long: `Takes a module and its history off the mesh. Its nodes stop what it runs and keep what its volumes hold, so
that a push of the same module finds it again; its artifacts stay in the store. Exits with 3 when the
mesh cannot be without it: what holds a seat of the mesh's own is replaced by a push, not removed.`,
		Example: "  kingpost module remove web",
		Args:    cobra.ExactArgs(1),
	}
	out := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := mesh.CheckName(args[0]); err != nil {
			return usageError("module remove: %v", err)
		}
		return withNode(cmd, 0, func(ctx context.Context, n node) error {
			var res verbs.RemoveResult
			err := n.Call(ctx, mesh.SeatController, verbs.Remove, verbs.RemoveParams{Module: args[0]}, &res)
			var refused *mesh.CallError
			if errors.As(err, &refused) && refused.Code == mesh.CodeConflict {
				return &exitError{exitRefused, err}
			}
			if err != nil {
				return fmt.Errorf("take the module %s off the mesh: %w", args[0], err)
			}
			return out.print(cmd.OutOrStdout(), res, func(w io.Writer) error { return removed(w, &res) })
		})
	}
	return cmd
}

func removed(w io.Writer, res *verbs.RemoveResult) error {
	data := "it had no volume"
	if len(res.Kept) > 0 {
		data = "kept is what these volumes hold: " + strings.Join(res.Kept, ", ")
	}
	if _, err := fmt.Fprintf(w, "the module %s is off the mesh; %s\n", res.Module, data); err != nil {
		return err
	}
	return changesTable(w, res.Changes)
}
