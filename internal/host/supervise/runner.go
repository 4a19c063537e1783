package supervise

import (
	"context"

	"kingpost/internal/mesh"
)

// runner is everything below the decisions: bytes are fetched; workloads are started, found again after a host, asked
// whether they are well, and ended. machine is the node itself. The state-machine test has a world of its own instead,
// so that what units decide can be driven through crashes and reboots without a process.
type runner interface {
	// volume makes a declared volume what it should be; note says what of its declaration is not kept.
	volume(sp *spec) (note string, err error)
	// fetch has sp's bytes on disk, checked.
	fetch(ctx context.Context, sp *spec) (*stored, error)
	// start starts sp from its bytes, as the instance that its slot names. epoch gives out the next term to what needs one.
	// From the moment at which the workload can do anything running finds it, whatever becomes of this host. An error
	// that is errSource says that something outside is not there yet.
	start(ctx context.Context, sp *spec, st *stored, restarts int, trial bool, epoch func() (uint64, error)) (workload, error)
	// running returns what an earlier host has left running, and removes what it has left unfinished.
	running(ctx context.Context) []workload
	// clean removes whatever is left of an instance that does not run.
	clean(ctx context.Context, sp *spec)
	// log begins to carry the log of a resource. Without it a workload would wait as soon as its pipe is full.
	log(key string) (*logWriter, error)
	// memory is what an instance uses, in bytes; 0 when that is not known.
	memory(instance string) int64
	// collect removes the artifacts that keep does not want, and says how many.
	collect(keep func(mesh.ArtifactKind, mesh.Source, string) bool) int
	// follow takes in what happens to workloads until ctx ends. It is called after running.
	follow(ctx context.Context) error
}

// workload is one running instance of a resource. All methods but release may be called until remove.
type workload interface {
	// record is what is known of it. Its owner may change it, and then calls keep.
	record() *runRecord
	keep() error
	// limit changes what may change while it runs, from one spec to another: limits, and who dies first for want of memory.
	limit(from, to *spec) error
	// wait returns nil when its process has ended, and an error after release.
	wait() error
	// exit is how its process ended, asked after wait.
	exit(ctx context.Context) exit
	signal(sig int) error
	// kill ends every process of it and waits for that.
	kill() error
	// check makes one check of its health.
	check(ctx context.Context, h *mesh.Health) error
	// listens names the ports of the node that it listens on, "tcp 8080".
	listens() []string
	// release lets go of it without touching it.
	release()
	// remove removes what is left of one that has ended, and releases it.
	remove(ctx context.Context)
}

// exit is how a workload's process ended.
type exit struct {
	code  int // as shells have it: 128 and the signal's number for one that was killed; -1 when it is not known
	known bool
	how   string // for people: "exited with code 1"
}
