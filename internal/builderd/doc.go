// Package builderd is the builder component: it makes bundles inside the mesh, out of files that are built
// already, puts them into the artifact store and remembers which it made.
//
// It never compiles or runs what it is given, never writes outside its state folder, and never moves a tag
// that stands: a version of a bundle is one digest for ever. The same files give the same digest, at any
// time, since nothing of the clock goes into a bundle. (Node images are built by package builder, outside.)
//
// A newcomer starts with build.go.
package builderd
