package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/verbs"
	"kingpost/internal/qemu"
	"kingpost/qemu-tests/lab"
)

// fileTime is the time of files in images that live for one run.
func fileTime() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }

// repeats is how often a boot is measured; the median counts.
const repeats = 3

// measureRaise measures from power-on: to the API, to a raised mesh, to servers that answer after a power cycle.
func measureRaise(ctx context.Context, b *bench) error {
	dir, err := os.MkdirTemp("", "kingpost-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	api, err := b.measureBoot(ctx, dir)
	if err != nil {
		return err
	}
	if err := b.measureUnattended(ctx, api); err != nil {
		return err
	}
	if err := b.measureCycle(ctx, dir); err != nil {
		return err
	}
	return b.measureMemory(ctx)
}

// median measures several times.
func median(n int, measure func() (float64, error)) (float64, []float64, error) {
	var all []float64
	for range n {
		v, err := measure()
		if err != nil {
			return 0, nil, err
		}
		all = append(all, v)
	}
	slices.Sort(all)
	return all[len(all)/2], all, nil
}

// measureBoot compares power-on to API with the least that could boot.
func (b *bench) measureBoot(ctx context.Context, dir string) (float64, error) {
	base, err := b.makeBaseline(ctx, dir)
	if err != nil {
		return 0, fmt.Errorf("the baseline: %w", err)
	}
	least, leastAll, err := median(repeats, func() (float64, error) { return b.bootBaseline(ctx, base) })
	if err != nil {
		return 0, fmt.Errorf("the baseline: %w", err)
	}
	api, apiAll, err := median(repeats, func() (float64, error) {
		n, err := b.lab.Start(ctx, lab.Spec{UEFI: true})
		if err != nil {
			return 0, err
		}
		defer n.Discard()
		if err := n.WaitUp(ctx, 0); err != nil {
			return 0, err
		}
		return time.Since(n.Started).Seconds(), nil
	})
	if err != nil {
		return 0, err
	}
	b.add("raise.api-of-baseline", api/least, "times", 1.6, "power-on to API %.1f s %.1f, its UKI %.1f MB; baseline %.1f s %.1f, its UKI %.1f MB; first boots, medians",
		api, apiAll, float64(base.imageUK)/1e6, least, leastAll, float64(base.uki)/1e6)
	return api, nil
}

func (b *bench) bootBaseline(ctx context.Context, base *baseline) (float64, error) {
	firmware, err := qemu.FindFirmware("amd64")
	if err != nil {
		return 0, err
	}
	return b.bootOther(ctx, qemu.Config{Name: "baseline", Firmware: firmware, Disks: []qemu.Disk{{Path: base.disk, Unsafe: true}},
		NICs: []qemu.NIC{{User: &qemu.User{Restrict: true}}}}, func(ctx context.Context, vm *qemu.VM) error {
		_, err := vm.Serial.Wait(ctx, 0, regexp.MustCompile(baselineLine))
		return err
	})
}

// bootOther boots a machine that is no node of ours and returns the seconds until up is content.
func (b *bench) bootOther(ctx context.Context, c qemu.Config, up func(context.Context, *qemu.VM) error) (float64, error) {
	dir, err := b.lab.Dir(c.Name)
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	c.Dir, c.Accel = dir, "tcg"
	vm, err := qemu.Start(ctx, c, nil)
	if err != nil {
		return 0, err
	}
	defer vm.Kill()
	ctx, cancel := context.WithTimeout(ctx, lab.BootTime)
	defer cancel()
	if err := up(ctx, vm); err != nil {
		return 0, err
	}
	return time.Since(vm.Started).Seconds(), nil
}

// measureUnattended lets node.yaml alone raise a mesh.
func (b *bench) measureUnattended(ctx context.Context, api float64) error {
	n, err := b.lab.Boot(ctx, lab.Spec{UEFI: true, Config: &mesh.NodeConfig{Hostname: "alpha", Claim: b.lab.Claim, Mesh: mesh.MeshConfig{Raise: lab.MeshName}}})
	if n != nil {
		defer n.Discard()
	}
	if err != nil {
		return err
	}
	s, err := n.FollowRaise(ctx, nil)
	if err != nil {
		return err
	}
	if err := allVerbs(ctx, n); err != nil {
		return err
	}
	took := time.Since(n.Started).Seconds()
	steps := ""
	for _, st := range s.Steps {
		steps += fmt.Sprintf(" %s %.1f", st.Name, st.Seconds)
	}
	b.add("raise.unattended-of-api", took/api, "times", 4, "power-on to every verb of the controller answered %.1f s, to API %.1f s; steps:%s", took, api, steps)
	return nil
}

// allVerbs has every verb of the controller's seat answered.
func allVerbs(ctx context.Context, n *lab.Node) error {
	var infos []mesh.VerbInfo
	if err := n.Client().Call(ctx, mesh.SeatController, mesh.VerbDescribe, nil, &infos); err != nil {
		return err
	}
	for _, v := range infos {
		if err := n.Client().Call(ctx, mesh.SeatController, v.Name, nil, nil, mesh.Probe()); err != nil {
			return fmt.Errorf("controller %s: %w", v.Name, err)
		}
	}
	return nil
}

// measureCycle powers a raised node off and on again, and the peer.
func (b *bench) measureCycle(ctx context.Context, dir string) error {
	took, all, err := median(repeats, func() (float64, error) { return b.cycle(ctx) })
	if err != nil {
		return err
	}
	b.add("raise.cycle", took, "s", 20, "power-on of a raised node, under UEFI, to store and broker answering; median of %.1f", all)
	p, err := b.mkosi(ctx)
	if err != nil {
		b.miss("raise.cycle-of-peer", err.Error())
		return nil
	}
	if _, err := b.bootPeer(ctx, p, dir); err != nil { // its first boot makes keys and ids
		return fmt.Errorf("the peer's first boot: %w", err)
	}
	peerTook, peerAll, err := median(repeats, func() (float64, error) { return b.bootPeer(ctx, p, dir) })
	if err != nil {
		return fmt.Errorf("the peer: %w", err)
	}
	b.add("raise.cycle-of-peer", took/peerTook, "times", 0.25, "%.1f s beside %.1f s %.1f of a Debian image with the same servers, made with mkosi", took, peerTook, peerAll)
	return nil
}

func (b *bench) cycle(ctx context.Context) (float64, error) {
	n, err := b.lab.StartRaised(ctx, "", lab.Spec{UEFI: true})
	if n != nil {
		defer n.Discard()
	}
	if err != nil {
		return 0, err
	}
	if err := n.WaitUp(ctx, 0); err != nil {
		return 0, err
	}
	err = lab.Until(ctx, lab.BootTime, func(ctx context.Context) error {
		for _, seat := range []string{mesh.SeatStore, mesh.SeatBroker} { // the host answers by a real request to each
			if err := n.Client().Call(ctx, seat, mesh.VerbPing, nil, nil); err != nil {
				return err
			}
		}
		return nil
	})
	return time.Since(n.Started).Seconds(), err
}

// bootPeer boots the peer's image until registry and NATS answer.
func (b *bench) bootPeer(ctx context.Context, p *peer, dir string) (float64, error) {
	firmware, err := qemu.FindFirmware("amd64")
	if err != nil {
		return 0, err
	}
	disk := filepath.Join(dir, "peer.img")
	if _, err := os.Stat(disk); err != nil {
		if err := qemu.Copy(ctx, disk, p.image(), 0); err != nil {
			return 0, err
		}
	}
	c := qemu.Config{Name: "peer", Memory: 1024, Firmware: firmware, Disks: []qemu.Disk{{Path: disk, Unsafe: true}},
		NICs: []qemu.NIC{{User: &qemu.User{Restrict: true, Forwards: []qemu.Forward{{Guest: 5000}, {Guest: 4222}}}}}}
	return b.bootOther(ctx, c, func(ctx context.Context, vm *qemu.VM) error {
		registry, err := vm.Port(ctx, 5000)
		if err != nil {
			return err
		}
		nats, err := vm.Port(ctx, 4222)
		if err != nil {
			return err
		}
		return lab.Until(ctx, lab.BootTime, func(ctx context.Context) error {
			return errors.Join(registryAnswers(ctx, registry), natsAnswers(ctx, nats))
		})
	})
}

func registryAnswers(ctx context.Context, port int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/v2/", port), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, resp.Body)
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the peer's registry answers %s", resp.Status)
	}
	return nil
}

// natsAnswers reads the INFO line with which a NATS server greets.
func natsAnswers(ctx context.Context, port int) error {
	conn, err := (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(2 * time.Second))
	b := make([]byte, 4)
	if _, err := io.ReadFull(conn, b); err != nil {
		return fmt.Errorf("the peer's NATS server: %w", err)
	}
	if string(b) != "INFO" {
		return fmt.Errorf("the peer's NATS server greets with %q", b)
	}
	return nil
}

// measureMemory looks for the smallest memory in which a raise succeeds.
func (b *bench) measureMemory(ctx context.Context) error {
	const limit = 384
	smallest := 0
	for _, mib := range []int{limit, 320, 256, 224, 192} {
		if err := b.raiseIn(ctx, mib); err != nil {
			b.say("a raise in %d MB: %v", mib, err)
			break
		}
		smallest = mib
	}
	for mib := limit + 64; smallest == 0 && mib <= 1024; mib += 64 {
		if err := b.raiseIn(ctx, mib); err == nil {
			smallest = mib
		} else if ctx.Err() != nil {
			return err
		}
	}
	if smallest == 0 {
		return errors.New("no raise succeeded in up to 1024 MB of memory")
	}
	b.add("raise.memory", float64(smallest), "MB", limit, "smallest of 192, 224, 256, 320, 384, then steps of 64, in which a raise succeeds")
	return nil
}

func (b *bench) raiseIn(ctx context.Context, mib int) error {
	n, err := b.lab.Boot(ctx, lab.Spec{Memory: mib})
	if n != nil {
		defer n.Discard()
	}
	if err != nil {
		return err
	}
	if _, err := n.Raise(ctx, hostapi.RaiseRequest{}, nil); err != nil {
		return err
	}
	return n.Client().Call(ctx, mesh.SeatController, verbs.Status, nil, nil)
}
