// Command registry is CNCF Distribution's own registry with the one storage driver that a node can use.
// The stock command also links the drivers of three clouds, which makes it three times the size; nothing
// else is different.
package main

import (
	"fmt"
	"os"

	"github.com/distribution/distribution/v3/registry"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
)

func main() {
	if err := registry.RootCmd.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
