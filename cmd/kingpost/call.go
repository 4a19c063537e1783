package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"kingpost/internal/mesh"
)

func newCallCommand() *cobra.Command {
	var params []string
	var probe bool
	cmd := &cobra.Command{
		Use:   "call SEAT VERB [JSON]",
		Short: "Call a verb of a seat",
		Long: `Calls a verb of the holder of a seat, wherever it runs. Parameters are a JSON object, or --param NAME=VALUE
for each; a VALUE that is JSON counts as that, anything else is a string. ` + "`describe`" + ` lists the verbs of a seat.`,
		Example: `  kingpost call controller describe
  kingpost call controller status -o json
  kingpost call catalogue resolve --param kind=bundle --param name=mesh-controller --param arch=amd64
  kingpost call controller declare --probe`,
		Args: cobra.RangeArgs(2, 3),
	}
	cmd.Flags().StringArrayVar(&params, "param", nil, "a parameter, NAME=VALUE; may be given many times")
	cmd.Flags().BoolVar(&probe, "probe", false, "everything but the effect: authorised, decoded, state opened, nothing changed")
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return []string{mesh.SeatController, mesh.SeatCatalogue, mesh.SeatBuilder, mesh.SeatVault, mesh.SeatStore, mesh.SeatBroker}, cobra.ShellCompDirectiveNoFileComp
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	out := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req := mesh.CallRequest{Probe: probe}
		var err error
		if len(args) == 3 && len(params) > 0 {
			return usageError("parameters are given as JSON and by --param; use one of the two")
		}
		if len(args) == 3 {
			if req.Params, err = jsonObject(args[2]); err != nil {
				return err
			}
		} else if req.Params, err = paramObject(params); err != nil {
			return err
		}
		return withNode(cmd, 0, func(ctx context.Context, n node) error {
			resp, err := n.CallRaw(ctx, args[0], args[1], req)
			if err == nil && resp.Error != nil {
				err = resp.Error
			}
			if err != nil {
				return fmt.Errorf("call %s %s: %w", args[0], args[1], err)
			}
			return out.print(cmd.OutOrStdout(), resp.Result, func(w io.Writer) error {
				if probe && len(resp.Result) == 0 {
					_, err := fmt.Fprintf(w, "%s %s answers\n", args[0], args[1])
					return err
				}
				return render(w, resp.Result)
			})
		})
	}
	return cmd
}

func jsonObject(s string) (json.RawMessage, error) {
	var o map[string]json.RawMessage
	if err := json.Unmarshal([]byte(s), &o); err != nil {
		return nil, usageError("the parameters are no JSON object: %v", err)
	}
	return json.RawMessage(s), nil
}

// paramObject makes an object of NAME=VALUE pairs, nil of none.
func paramObject(pairs []string) (json.RawMessage, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	o := map[string]json.RawMessage{}
	for _, p := range pairs {
		name, value, ok := strings.Cut(p, "=")
		if !ok || name == "" {
			return nil, usageError("--param %q is not NAME=VALUE", p)
		}
		if _, twice := o[name]; twice {
			return nil, usageError("--param %s is given twice", name)
		}
		raw := json.RawMessage(value)
		if !json.Valid(raw) {
			b, err := json.Marshal(value)
			if err != nil {
				return nil, errors.Join(usageError("--param %s", name), err)
			}
			raw = b
		}
		o[name] = raw
	}
	return json.Marshal(o)
}
