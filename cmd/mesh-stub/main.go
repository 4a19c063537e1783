// Command mesh-stub becomes a declared process; the host starts it, nobody else. See package stub.
package main

import (
	"os"

	"kingpost/internal/host/stub"
)

func main() { os.Exit(stub.Main(os.Args[1:])) }
