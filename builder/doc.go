// Package builder makes a node image from a recipe: recipe, lock, packages, programs, seed, root image, verity
// tree, UKI, raw disk. One file per phase; Build calls them in that order.
//
// It needs no root, no loop device and no Docker, and takes nothing from the machine that the lock does not pin:
// the same recipe, lock and sources give the same bytes, in any folder, at any time, by any user. It never leaves
// anything in the output folder that is not whole: a build is made aside and put in place by one rename.
//
// Start with Recipe (what is asked for), Lock (what it comes down to) and Build.
package builder
