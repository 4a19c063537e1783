// Package release is a release and its place on a disk: partition layout, command line, boot entries, slots, the ESP and
// node.yaml on it.
//
// Builder, installer, boot and tests share this one truth. It works over io.ReaderAt and io.WriterAt, needs no
// privilege and no loop device, and asks no clock. Start with NewPlan (what a disk looks like), WriteDisk (making
// one), ReadGPT and FindRoots (finding a release on one).
package release
