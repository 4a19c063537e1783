package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kingpost/installer/flash"
	"kingpost/installer/install"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/tlsid"
	"kingpost/internal/release"
)

// installOptions are the flags of `kingpost install`.
type installOptions struct {
	raiseOptions // how the node is known
	disk         string
	wipe, yes    bool
	dryRun       bool
	then         string
}

func newInstallCommand() *cobra.Command {
	var o installOptions
	cmd := &cobra.Command{
		Use:   "install ADDRESS",
		Short: "Have a node that runs from a stick install itself onto a disk of its machine",
		Long: `Has the node at ADDRESS, which runs from a stick, write itself onto another disk of its machine, and shows
how that goes: first the plan, every disk and why it is taken or not, then a question, then the writing. It happens on the
node and goes on after Ctrl-C; the same command follows it again.

Which disk is said by the section install of the node's node.yaml, or by --disk, with one or more of serial, wwn, path,
size, model, bus and rotational, separated by semicolons; every one must match, and two disks that do are a refusal. The
data partition of an earlier installation is kept unless --wipe is given.

The node is known by the fingerprint of its key, as in "kingpost raise". Exits with 3 when no disk is taken, when the
answer is no, and when the node refuses. Nothing was written then.`,
		Example: `  kingpost install 192.168.1.20 --key SHA256:47DEQpj8HBSa... --dry-run
  kingpost install 192.168.1.20 --disk serial=S3Z1NB0K
  kingpost install 192.168.1.20 --disk "bus=nvme; size=>= 400GB" --wipe --yes`,
		Args: cobra.ExactArgs(1),
	}
	f := cmd.Flags()
	f.StringVar(&o.disk, "disk", "", "which disk, as serial=S3Z1NB0K; only for the only one there is")
	f.BoolVar(&o.wipe, "wipe", false, "give up the data partition of an earlier installation")
	f.StringVar(&o.then, "then", "", "what the node does when it is installed: reboot, poweroff or wait (default: as node.yaml says, else reboot)")
	f.BoolVar(&o.yes, "yes", false, "do not ask")
	f.BoolVar(&o.dryRun, "dry-run", false, "show the plan, and change nothing")
	f.StringVar(&o.key, "key", "", "the fingerprint of the node's key, SHA256:...")
	f.StringVar(&o.claim, "claim", "", "the claim key (default: claim.key in the configuration folder)")
	f.BoolVar(&o.trust, "trust-first", false, "believe whatever key the node shows now, instead of --key")
	f.DurationVar(&o.timeout, "connect-timeout", 2*time.Minute, "how long to wait for the node to answer at first")
	out := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return runInstall(cmd, args[0], o, *out) }
	return cmd
}

// installing is one run of the command.
type installing struct {
	raising
	opt      installOptions
	out      outputFlag
	progress *flashProgress
}

func runInstall(cmd *cobra.Command, target string, o installOptions, out outputFlag) error {
	if o.key != "" && !tlsid.IsFingerprint(o.key) {
		return usageError("--key %q is no fingerprint: it is SHA256: and 43 characters, as the node's console shows it in the line `node NAME key SHA256:...`", o.key)
	}
	switch o.then {
	case "", mesh.ThenReboot, mesh.ThenPowerOff, mesh.ThenWait:
	default:
		return usageError("--then %q is none of reboot, poweroff and wait", o.then)
	}
	selector, err := parseSelector(o.disk)
	if err != nil {
		return usageError("--disk: %v", err)
	}
	addr, err := address(target)
	if err != nil {
		return err
	}
	c, err := openConfig()
	if err != nil {
		return err
	}
	claim, err := c.claimKey(o.claim)
	if err != nil {
		return err
	}
	i := &installing{raising: raising{cmd: cmd, cfg: c, opt: o.raiseOptions, addr: addr, claim: claim, progress: newProgress(cmd.ErrOrStderr())},
		opt: o, out: out, progress: newFlashProgress(cmd.ErrOrStderr())}
	defer i.raising.progress.close()
	if err := i.meet(cmd.Context()); err != nil {
		return err
	}
	defer i.client.Close()
	i.raising.progress.close()
	return i.run(cmd.Context(), selector)
}

// parseSelector reads "serial=S3Z1NB0K; bus=nvme", or "only"; nil for "".
func parseSelector(s string) (*mesh.DiskSelector, error) {
	if s == "" {
		return nil, nil
	}
	d := &mesh.DiskSelector{}
	for _, part := range strings.Split(s, ";") {
		key, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		value = strings.TrimSpace(value)
		fields := map[string]*string{"serial": &d.Serial, "wwn": &d.WWN, "path": &d.Path, "size": &d.Size, "model": &d.Model, "bus": &d.Bus}
		switch f := fields[key]; {
		case key == "only" && !ok:
			d.Only = true
		case key == "rotational" && ok:
			b, err := strconv.ParseBool(value)
			if err != nil {
				return nil, fmt.Errorf("rotational is true or false, not %.40q", value)
			}
			d.Rotational = &b
		case f == nil || !ok || value == "":
			return nil, fmt.Errorf("%.60q is no KEY=VALUE with one of serial, wwn, path, size, model, bus and rotational, and is not only", part)
		case *f != "":
			return nil, fmt.Errorf("%s is given twice", key)
		default:
			*f = value
		}
	}
	return d, release.CheckInstall(&mesh.InstallConfig{Disk: *d})
}

// request is what the node is asked for. Without --disk its own node.yaml says which disk, and what the flags say counts beside it.
func (i *installing) request(selector *mesh.DiskSelector, own *mesh.InstallConfig) (hostapi.InstallRequest, error) {
	cfg := mesh.InstallConfig{Then: i.opt.then, Wipe: i.opt.wipe}
	switch {
	case selector != nil:
		cfg.Disk = *selector
	case own != nil:
		cfg = *own
		cfg.Wipe = cfg.Wipe || i.opt.wipe
		if i.opt.then != "" {
			cfg.Then = i.opt.then
		}
	default:
		return hostapi.InstallRequest{}, usageError("--disk is missing: node.yaml of %s does not say which disk; --dry-run --disk only shows which there are", i.node.Name)
	}
	return hostapi.InstallRequest{Install: &cfg}, nil
}

func (i *installing) run(ctx context.Context, selector *mesh.DiskSelector) error {
	now, err := i.client.Install(ctx)
	if err != nil {
		return i.refusal(err)
	}
	if now.State == hostapi.InstallRunning && !i.opt.dryRun {
		i.note("the installation onto %s is under way", now.Target)
		return i.follow(ctx)
	}
	disks, err := i.client.Disks(ctx)
	if err != nil {
		return i.refusal(err)
	}
	req, err := i.request(selector, disks.Install)
	if err != nil {
		return err
	}
	req.DryRun = true
	st, err := i.client.StartInstall(ctx, req)
	if err != nil {
		return i.refusal(err)
	}
	if i.opt.dryRun {
		if err := i.out.print(i.cmd.OutOrStdout(), st, func(w io.Writer) error { return install.Text(w, st.Plan) }); err != nil {
			return err
		}
	} else if err := install.Text(i.cmd.ErrOrStderr(), st.Plan); err != nil {
		return err
	}
	switch {
	case st.State == hostapi.InstallRefused:
		return refusedError("install: %s\nNothing was written", st.Reason)
	case i.opt.dryRun:
		return nil
	}
	if err := i.confirm(st); err != nil {
		return err
	}
	req.DryRun, req.Target = false, st.Target
	if st, err = i.client.StartInstall(ctx, req); err != nil {
		return i.refusal(err)
	}
	if st.State == hostapi.InstallRefused {
		return refusedError("install: %s\nNothing was written", st.Reason)
	}
	return i.follow(ctx)
}

func (i *installing) note(format string, args ...any) {
	fmt.Fprintln(i.cmd.ErrOrStderr(), printable(fmt.Sprintf(format, args...)))
}

// confirm asks, on a terminal; else --yes must have answered.
func (i *installing) confirm(st *hostapi.InstallStatus) error {
	if i.opt.yes {
		return nil
	}
	in := i.cmd.InOrStdin()
	if !isTerminal(in) {
		return refusedError("install: there is no terminal to ask on; answer by --yes. Nothing was written")
	}
	kept := "everything on it is lost"
	for _, p := range st.Plan.Partitions {
		if p.Kept {
			kept = "its data partition is kept, the rest is lost"
		}
	}
	fmt.Fprintf(i.cmd.ErrOrStderr(), "Install onto %s? (%s) [yes/no] ", st.Target, kept)
	answer, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && err != io.EOF {
		return fmt.Errorf("read the answer: %w", err)
	}
	if strings.TrimSpace(answer) != "yes" {
		return refusedError("install: the answer was not \"yes\"; nothing was written")
	}
	return nil
}

// refusal gives the node's refusals their exit code.
func (i *installing) refusal(err error) error {
	var e *hostapi.Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return refusedError("the node does not let this key install it: %w\nNothing was changed. The claim in its node.yaml says whose node it is; --claim names the file of that key here", err)
	case http.StatusConflict:
		return &exitError{exitRefused, err}
	}
	return err
}

// follow shows the installation until it is over, through cuts of the network.
func (i *installing) follow(ctx context.Context) error {
	defer i.progress.close()
	var st hostapi.InstallStatus
	lost := 0
	for {
		err := i.client.FollowInstall(ctx, func(s hostapi.InstallStatus) error {
			st, lost = s, 0
			if s.State == hostapi.InstallRunning && s.Total > 0 {
				i.progress.show(flash.Progress{Phase: s.Phase, Done: s.Done, Total: s.Total})
			}
			return nil
		})
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("stopped watching; the installation goes on on the node, and `kingpost install %s` follows it again", i.addr)
		case err == nil && st.Over():
			return i.ended(ctx, st)
		case err != nil && !unanswered(err):
			return i.refusal(err)
		case lost >= maxLost:
			return fmt.Errorf("the node does not answer any more (%w); when it has restarted from the disk it is another node, whose key its console shows", err)
		}
		lost++
		if !sleep(ctx, time.Second) {
			return ctx.Err()
		}
	}
}

// maxLost is how often a node that does not answer is asked again.
const maxLost = 30

func (i *installing) ended(_ context.Context, st hostapi.InstallStatus) error {
	i.progress.close()
	if st.State != hostapi.InstallDone {
		return fmt.Errorf("the installation is %s: %s", st.State, st.Reason)
	}
	return i.out.print(i.cmd.OutOrStdout(), st, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s is installed and was read back; %s\n%s\nIt comes up as a new node with a new key, which its console shows.\n", st.Target, st.Reason, st.Firmware)
		return err
	})
}
