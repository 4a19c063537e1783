package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kingpost/internal/mesh/hostapi"
)

func newLogsCommand() *cobra.Command {
	var q hostapi.LogQuery
	cmd := &cobra.Command{
		Use:   "logs MODULE[/ID]",
		Short: "Show the logs of a module or of one of its resources",
		Example: `  kingpost logs controller
  kingpost logs registry/server -f --since 10m`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			module, id, slash := strings.Cut(args[0], "/")
			if module == "" || slash && id == "" || strings.Contains(id, "/") {
				return usageError("%q is neither MODULE nor MODULE/ID", args[0])
			}
			if q.Since < 0 || q.Bytes < 0 {
				return usageError("--since and --bytes cannot be negative")
			}
			return withNode(cmd, 0, func(ctx context.Context, n node) error {
				r, err := n.Logs(ctx, args[0], q)
				if err != nil {
					return fmt.Errorf("logs of %s: %w", args[0], err)
				}
				defer r.Close()
				if _, err := io.Copy(cmd.OutOrStdout(), r); err != nil {
					if ctx.Err() != nil {
						return nil // Ctrl-C is how following ends
					}
					return fmt.Errorf("logs of %s: %w", args[0], err)
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVarP(&q.Follow, "follow", "f", false, "go on as more is written, until Ctrl-C")
	cmd.Flags().DurationVar(&q.Since, "since", 0, "only what is younger than this, for example "+(10*time.Minute).String())
	cmd.Flags().Int64Var(&q.Bytes, "bytes", 0, "only the last so many bytes")
	return cmd
}
