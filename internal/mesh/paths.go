package mesh

// Paths on a node. Everything below PathData survives a reboot; PathRun does not.
const (
	PathRelease = "/usr/share/kingpost/release.json" // ReleaseInfo of the booted release
	PathSeed    = "/usr/share/kingpost/seed"         // OCI image layout
	// PathDataImage is an empty data partition, compressed with zstd: what an installation puts onto a new disk, since a
	// node has no mkfs.
	PathDataImage = "/usr/share/kingpost/data.ext4.zst"

	PathHost    = "/usr/bin/mesh-host" // the baked-in host
	PathStub    = "/usr/bin/mesh-stub" // what becomes a declared process; the baked-in host's
	PathRunc    = "/usr/sbin/runc"
	PathModules = "/usr/lib/modules"
	PathESP     = "/boot"                // the booted disk's ESP, mounted read-only
	PathConfig  = PathESP + "/node.yaml" // NodeConfig
	// PathMemoryConfig is node.yaml where it came with a root image in memory; it then stands for the ESP's.
	PathMemoryConfig = PathRun + "/boot-node.yaml"

	PathData  = "/var" // the data partition
	PathState = PathData + "/lib/kingpost"
	PathRun   = "/run/kingpost"

	// PathClockSynced holds the last time that time servers confirmed, in seconds since 1970: the clock's floor.
	PathClockSynced = PathState + "/launcher/clock-synced"

	PathHostSocket = PathRun + "/host.sock"     // the host's API, plain HTTP
	PathExits      = PathRun + "/exits"         // ExitRecord files written by PID 1
	PathBoot       = PathRun + "/boot.json"     // BootInfo written by PID 1 before the launcher starts
	PathLauncher   = PathRun + "/launcher.json" // LauncherInfo written by PID 1 at every change

	PathCgroups = "/sys/fs/cgroup/kingpost" // below it one cgroup per resource: MODULE.ID

	PortAPI   = 7443 // the host's API over mTLS
	PortStore = 5000 // the host's mTLS front of the artifact store
	PortNATS  = 4222 // the broker, mTLS
)

// ReleaseInfo is what a release says about itself.
type ReleaseInfo struct {
	Name         string `json:"name"`
	Version      string `json:"version"`
	Date         string `json:"date"` // YYYY-MM-DD, the floor of a node's clock
	Architecture string `json:"architecture"`
}

// BootInfo is what PID 1 found out while booting, for the host.
type BootInfo struct {
	Release  ReleaseInfo `json:"release"`
	RootHash string      `json:"rootHash"` // hex, the verity root hash that was mounted
	Disk     string      `json:"disk"`     // "/dev/vda", the booted disk; empty without one
	Slot     string      `json:"slot"`     // "a" or "b"; empty when the root is no slot
	Data     string      `json:"data"`     // "/dev/vda4"; empty when the data partition is missing, Warnings says why
	ESP      string      `json:"esp"`
	// Clock says what was done to the clock: "" or a warning such as "raised from 1970-01-01 to 2026-12-01".
	Clock    string   `json:"clock,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// ExitRecord is what PID 1 writes of every orphan that it reaps: PathExits/PID-START.json.
type ExitRecord struct {
	PID    int    `json:"pid"`
	Start  uint64 `json:"start"`  // field 22 of /proc/PID/stat, in clock ticks since boot
	Cgroup string `json:"cgroup"` // path below the cgroup v2 mount, "/kingpost/controller.server"
	Code   int    `json:"code"`   // exit code, or -1 when Signal is set
	Signal int    `json:"signal,omitempty"`
}
