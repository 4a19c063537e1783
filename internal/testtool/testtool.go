// Package testtool finds the programs of other people that tests have their work judged by. It is for tests alone.
//
// A missing one skips a test on a person's machine; where CI is set it fails it, so that a green run cannot hide an install
// step that is missing from .ci/bootstrap.
package testtool

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Find returns the path of a program. pkg is the Debian package that has it.
func Find(t testing.TB, pkg, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if err != nil {
			path, err = exec.LookPath(filepath.Join(dir, name))
		}
	}
	switch {
	case err == nil:
		return path
	case os.Getenv("CI") != "":
		t.Fatalf("the package %s is not installed, and nothing may be left unjudged here: .ci/bootstrap has to name it", pkg)
	default:
		t.Skipf("not judged: the package %s is not installed", pkg)
	}
	return ""
}
