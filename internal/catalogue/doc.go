// Package catalogue is the component that says what stands in the artifact store: which bundles, images
// and modules there are, and which digest a name, a version and an architecture stand for.
//
// It keeps no truth of its own. What it has on its volume is an index, made from the store and from nothing
// else, so that it can say what there was while the store is away; losing it costs one reading.
//
// A newcomer starts with index.go (from the store to the index), then verbs.go.
package catalogue
