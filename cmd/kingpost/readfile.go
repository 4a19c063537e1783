package main

import (
	"fmt"
	"io"
	"os"
)

// maxSmallFile bounds what is read whole of keys and settings, in bytes.
const maxSmallFile = 1 << 20

// readSmall reads a file that somebody named, a pipe as well; one that never ends must not fill the memory.
func readSmall(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSmallFile+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(b) > maxSmallFile {
		return nil, fmt.Errorf("%s has more than %d bytes; is it the right file?", name, maxSmallFile)
	}
	return b, nil
}
