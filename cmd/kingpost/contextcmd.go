package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"kingpost/internal/mesh/tlsid"
)

// contextFlag is the flag --context of every command that talks to a mesh.
const contextFlag = "context"

// contextName is its value, "" for the current context.
func contextName(cmd *cobra.Command) string {
	name, _ := cmd.Flags().GetString(contextFlag)
	return name
}

func completeContexts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	c, err := openConfig()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	f, err := c.load()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, x := range f.Contexts {
		names = append(names, x.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func newContextCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "context",
		Short: "Choose the mesh that commands talk to",
		Long: `A context is a mesh, the node that is asked, and the operator's credentials for it. ` + "`kingpost raise`" + `
makes one. They are kept below kingpost/ in the configuration folder ($XDG_CONFIG_HOME or ~/.config).`,
		Example: "  kingpost context list\n  kingpost context use home",
	}
	cmd.AddCommand(newContextListCommand(), newContextUseCommand(), newContextShowCommand(), newContextRemoveCommand())
	return cmd
}

func newContextListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List the contexts", Example: "  kingpost context list", Args: cobra.NoArgs}
	out := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := openConfig()
		if err != nil {
			return err
		}
		f, err := c.load()
		if err != nil {
			return err
		}
		if f.Contexts == nil {
			f.Contexts = []meshContext{}
		}
		return out.print(cmd.OutOrStdout(), f.Contexts, func(w io.Writer) error {
			t := newTable("", "NAME", "MESH", "NODE", "ADDRESS", "NODE KEY")
			for _, x := range f.Contexts {
				mark := " "
				if x.Name == f.Current {
					mark = "*"
				}
				t.add(mark, x.Name, x.Mesh, x.Node, x.Address, x.Key)
			}
			return t.write(w)
		})
	}
	return cmd
}

// chosen is the context of a name, "" for the current one, and the folder that it is kept in.
func chosen(name string) (config, meshContext, error) {
	c, err := openConfig()
	if err != nil {
		return c, meshContext{}, err
	}
	x, err := c.choose(name)
	return c, x, err
}

func newContextUseCommand() *cobra.Command {
	return &cobra.Command{
		Use: "use NAME", Short: "Make a context the current one", Example: "  kingpost context use home",
		Args: cobra.ExactArgs(1), ValidArgsFunction: completeContexts,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, x, err := chosen(args[0])
			if err != nil {
				return err
			}
			f, err := c.load()
			if err != nil {
				return err
			}
			f.Current = x.Name
			if err := c.save(f); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "commands talk to the mesh %s by the node %s at %s\n", x.Mesh, x.Node, x.Address)
			return err
		},
	}
}

// shownContext is a context with what its certificate says.
type shownContext struct {
	meshContext
	Identity    string `json:"identity"`
	Expires     string `json:"expires"`
	Credentials string `json:"credentials"` // folder
}

func newContextShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show [NAME]", Short: "Show a context, the current one by default", Example: "  kingpost context show",
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: completeContexts,
	}
	out := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name := contextName(cmd)
		if len(args) == 1 {
			name = args[0]
		}
		c, x, err := chosen(name)
		if err != nil {
			return err
		}
		cred, err := tlsid.Load(c.credentials(x.Name))
		if err != nil {
			return err
		}
		id, err := cred.Identity()
		if err != nil {
			return err
		}
		s := shownContext{x, id.String(), cred.Certificate.Leaf.NotAfter.UTC().Format("2006-01-02"), c.credentials(x.Name)}
		return out.print(cmd.OutOrStdout(), s, func(w io.Writer) error {
			return lines(w, "context", s.Name, "mesh", s.Mesh, "node", s.Node, "address", s.Address, "node key", s.Key,
				"identity", s.Identity, "expires", s.Expires, "credentials", s.Credentials)
		})
	}
	return cmd
}

func newContextRemoveCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "remove NAME", Short: "Forget a context and its credentials", Example: "  kingpost context remove home --yes",
		Args: cobra.ExactArgs(1), ValidArgsFunction: completeContexts,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, x, err := chosen(args[0])
			if err != nil {
				return err
			}
			if !yes {
				return refusedError("remove the context %s: its credentials for the mesh %s would be gone; add --yes to do it", x.Name, x.Mesh)
			}
			return c.remove(x.Name)
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "really remove the credentials")
	return cmd
}

// remove forgets the entry first: credentials without a context do no harm.
func (c config) remove(name string) error {
	f, err := c.load()
	if err != nil {
		return err
	}
	var rest []meshContext
	for _, x := range f.Contexts {
		if x.Name != name {
			rest = append(rest, x)
		}
	}
	f.Contexts = rest
	if f.Current == name {
		f.Current = ""
	}
	if err := c.save(f); err != nil {
		return err
	}
	if err := os.RemoveAll(c.credentials(name)); err != nil {
		return fmt.Errorf("remove the credentials of the context %s: %w", name, err)
	}
	return nil
}

// lines writes pairs of name and value, aligned; pairs without a value are left out.
func lines(w io.Writer, pairs ...string) error {
	width := 0
	for i := 0; i < len(pairs); i += 2 {
		width = max(width, len(pairs[i]))
	}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "%-*s  %s\n", width, pairs[i], pairs[i+1]); err != nil {
			return err
		}
	}
	return nil
}
