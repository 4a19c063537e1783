// Command kingpost is the operator's CLI: it builds and inspects node images, raises a mesh from a node
// and talks to a mesh afterwards. It only parses, wires and prints; what it does lives in builder,
// installer and internal/mesh. Start reading at newRootCommand.
package main

import (
	"os"

	"github.com/spf13/cobra"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// commands are the subcommands, each made by a function in the file named after it.
func commands() []*cobra.Command {
	return []*cobra.Command{
		newBuildCommand(),
		newInspectCommand(),
		newFlashCommand(),
		newVMCommand(),
		newInstallCommand(),
		newRaiseCommand(),
		newStatusCommand(),
		newCallCommand(),
		newLogsCommand(),
		newNodeCommand(),
		newModuleCommand(),
		newPlanCommand(),
		newContextCommand(),
		newClaimCommand(),
		newVersionCommand(),
	}
}
