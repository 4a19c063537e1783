package raise

import (
	"context"
	"fmt"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/tlsid"
)

// spare is what a data partition must hold beyond the copies of the seed: logs, volumes, databases.
const spare = 64 << 20

// needed is the smallest data partition for a seed: its artifacts in the store, and their unpacked files,
// which are about three times as large as the blobs; blobs that two artifacts share count twice in seed
// already. Bytes.
func needed(seed int64) int64 { return 3*seed + spare }

// Step 1. Everything that could stop the raise later, and can be known now, is looked at before
// anything is changed. The clock is no reason to refuse.
func observePreflight(ctx context.Context, w *walk) (observation, error) {
	info, err := w.node.Info(ctx)
	if err != nil {
		return observation{}, fmt.Errorf("ask the node who it is: %w", err)
	}
	if info.Boot.Clock != "" {
		w.warn("clock: " + info.Boot.Clock)
	}
	if err := mesh.CheckName(w.request.Mesh); err != nil {
		return refused("mesh: %v", err)
	}
	member, err := w.node.Membership(ctx)
	if err != nil {
		return observation{}, fmt.Errorf("read the node's mesh: %w", err)
	}
	switch {
	case member.Mesh != "" && member.Mesh != w.request.Mesh:
		return refused("other mesh: the node belongs to the mesh %s, wanted was %s; use another node, or one that was installed anew", member.Mesh, w.request.Mesh)
	case member.Joined:
		return refused("other mesh: the node joined the mesh %s, which has a control-node already", member.Mesh)
	}
	if member.Mesh == "" {
		if reason := checkClaim(info.Claim, w.request.Operator); reason != "" {
			return refused("claim: %s", reason)
		}
	}
	if info.Boot.Data == "" {
		return refused("data partition: there is none, and a mesh's state must survive a reboot; have no partition kingpost-data on the booted disk, need one (a flashed or installed disk has it)")
	}
	if err := w.saved(); err != nil {
		return refused("data partition: the request cannot be written to it: %v", err)
	}
	if o, err := preflightSeed(ctx, w, info.Release.Architecture); err != nil || !o.done {
		return o, err
	}
	switch need := needed(w.plan.seedBytes()); {
	case info.DataSize < need:
		return refused("data partition: %s has %s, needed are %s; use a larger disk, its data partition grows at the next boot",
			info.Boot.Data, bytesText(info.DataSize), bytesText(need))
	case member.Mesh == "" && info.DataFree < need:
		return refused("data partition: %s has %s free of %s, needed are %s; remove what fills it",
			info.Boot.Data, bytesText(info.DataFree), bytesText(info.DataSize), bytesText(need))
	}
	user, err := w.node.PortUser(ctx, mesh.PortStore)
	if err != nil {
		return observation{}, fmt.Errorf("look at port %d: %w", mesh.PortStore, err)
	}
	if user != "" {
		return refused("port %d: %s listens there, and the store needs it; stop that", mesh.PortStore, user)
	}
	return done()
}

func preflightSeed(ctx context.Context, w *walk, arch string) (observation, error) {
	if !w.verified {
		w.say("verifying the seed")
		if err := w.node.VerifySeed(ctx, func(n, total int64) {
			w.say("verifying the seed: %s of %s", bytesText(n), bytesText(total))
		}); err != nil {
			if ctx.Err() != nil {
				return observation{}, ctx.Err()
			}
			return refused("seed: %v; flash or install the node again", err)
		}
		w.verified = true
	}
	if w.plan != nil {
		return done()
	}
	entries, err := w.node.SeedEntries(ctx)
	if err != nil {
		return refused("seed: %v; flash or install the node again", err)
	}
	manifests, err := w.node.SeedModules(ctx)
	if err != nil {
		return refused("seed: %v; flash or install the node again", err)
	}
	w.plan, err = newPlan(manifests, w.request.Manifests, entries, arch)
	if err != nil {
		return refused("modules: %v", err)
	}
	return done()
}

// checkClaim compares the key in the request, if there is one, with the node's claim.
func checkClaim(claim, operator string) string {
	if claim == "" {
		return "the node is claimed by nobody; put the claim line that `kingpost claim new` prints into node.yaml on its ESP and boot it again"
	}
	if operator == "" {
		return ""
	}
	key, err := tlsid.ParsePublicKey(operator)
	if err != nil {
		return fmt.Sprintf("the operator's key in the request: %v", err)
	}
	if got := tlsid.Fingerprint(key); !tlsid.SameFingerprint(got, claim) {
		return fmt.Sprintf("the node is claimed by the key %s, the request is by %s; use that key, or change node.yaml on the node's ESP", claim, got)
	}
	return ""
}

// bytesText writes a size for people, in binary units.
func bytesText(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	v, i := float64(n)/unit, 0
	for ; v >= unit && i < 3; i++ {
		v /= unit
	}
	return fmt.Sprintf("%.1f %ciB", v, "KMGT"[i])
}
