// Package raise makes a mesh out of one installed node: the ten steps from an empty data partition to a
// controller that runs, from the store, as it is declared.
//
// It runs on the control-node, inside the host, and drives everything by declarations. State is what is
// observed: on every start all steps are observed from the first one, so a power cut at any moment costs
// time and nothing else. Nothing is torn down on failure.
//
// It never touches a process, a file of a resource or the network itself; all of that it asks of a Node.
// A newcomer starts with the table of steps in steps.go, then reads Raiser, which walks it.
package raise
