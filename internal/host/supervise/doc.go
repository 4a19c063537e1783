// Package supervise makes a node run what its declaration says: processes, containers, volumes and files.
//
// It is level-triggered. What is declared is compared with what is observed (the cgroup, the process,
// exit records of PID 1, health), and the difference is done. On disk it keeps only what cannot be
// observed: the declaration, completed runs, failures, holds, the last good and the failed spec of a
// handover, the epoch, and accounts. Workloads are children of PID 1, not of the host: when Run
// returns they go on, and the next host adopts them by cgroup.
//
// It never decides what should run, never talks to a controller, and never serves an API.
//
// Start reading at Supervisor (the API), then unit.go (one resource's life, in steps), run.go and handover.go (what a step
// does), and runner.go: the line between what is decided and the machine. Below it machine.go, process.go and container.go
// run things, and stub.go is what stands between the host and a process.
package supervise
