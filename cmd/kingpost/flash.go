package main

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kingpost/installer/diskwrite"
	"kingpost/installer/flash"
	"kingpost/installer/imagesource"
	"kingpost/internal/atomicfile"
	"kingpost/internal/blockdev"
	"kingpost/internal/mesh/tlsid"
)

// flashFlags are the flags of `kingpost flash`.
type flashFlags struct {
	yes       bool
	serial    string
	digest    string
	config    string
	claim     bool
	claimFile string
	receipt   string
	sign      string
	dryRun    bool
}

func newFlashCommand() *cobra.Command {
	var f flashFlags
	cmd := &cobra.Command{
		Use:   "flash IMAGE TARGET",
		Short: "Put an image onto a disk, read it back, and give the disk its own identity",
		Long: `Put an image onto TARGET, a whole disk or a file. IMAGE is a raw disk image, one compressed with zstd, an ISO, the
folder of a build, a disk, or an http or https URL of one of these.

Before anything is written you see what TARGET is and what is on it, and type its serial number; --yes with
--expect-serial says the same beforehand. A disk that is mounted, used as swap, held by LVM, MD or anything else,
read-only, too small, or that this system runs from, is refused (exit code 3).

Until all of the image is written and read back from the medium, TARGET has no partition table and cannot be booted.
Ctrl-C leaves it so; the same command starts anew.`,
		Example: `  kingpost flash out/node /dev/sdb --config node.yaml --claim
  kingpost flash disk.img.zst /dev/disk/by-id/usb-Kingston_1234 --yes --expect-serial 1234
  kingpost flash https://example.com/node/disk.img.zst /dev/sdb --digest sha256:9f86d081...`,
		Args: cobra.ExactArgs(2),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return completeDisks(), cobra.ShellCompDirectiveDefault
			}
			return nil, cobra.ShellCompDirectiveDefault
		},
	}
	fl := cmd.Flags()
	fl.BoolVar(&f.yes, "yes", false, "do not ask; for a disk it needs --expect-serial")
	fl.StringVar(&f.serial, "expect-serial", "", `the serial number or WWN that TARGET must have, "`+flash.NoSerial+`" for one without`)
	fl.StringVar(&f.digest, "digest", "", "the `sha256:HEX` that the image (not compressed) must have (default: what release.json beside it says)")
	fl.StringVar(&f.config, "config", "", "node.yaml `FILE` to put on the ESP")
	fl.BoolVar(&f.claim, "claim", false, "put your claim key into node.yaml; it is made where there is none yet")
	fl.StringVar(&f.claimFile, "claim-file", "", "the claim key for --claim (default: claim.key in the configuration folder)")
	fl.StringVar(&f.receipt, "receipt", "", "`FILE` for the receipt (default: in receipts/ of the configuration folder)")
	fl.StringVar(&f.sign, "sign", "", "private key `FILE` (as `kingpost claim new --file` makes) to sign the receipt with, into FILE.sig")
	fl.BoolVar(&f.dryRun, "dry-run", false, "say what would be done, and write nothing")
	_ = cmd.MarkFlagFilename("config")
	out := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := (&flashing{cmd: cmd, flags: f, image: args[0], target: args[1]}).run(cmd.Context(), *out)
		var refused *flash.RefusedError
		if errors.As(err, &refused) {
			return refusedError("flash: %w; nothing was written", err)
		}
		return err
	}
	return cmd
}

// flashing is one run of the command.
type flashing struct {
	cmd           *cobra.Command
	flags         flashFlags
	image, target string

	config []byte // node.yaml, nil for none
	claim  string // fingerprint of the claim key in it
	// newClaim is a claim key that is stored once it is sure that something will be written.
	newClaim  ed25519.PrivateKey
	signer    ed25519.PrivateKey
	survey    *flash.Survey
	peeked    *flash.Image
	source    diskwrite.Source
	opened    *imagesource.Image
	digest    string
	vouchedBy string
}

func (f *flashing) note(format string, args ...any) {
	fmt.Fprintf(f.cmd.ErrOrStderr(), "kingpost flash: "+format+"\n", args...)
}

func (f *flashing) run(ctx context.Context, out outputFlag) error {
	if err := f.prepare(ctx); err != nil {
		return err
	}
	img, err := imagesource.Open(ctx, f.image, imagesource.Options{Warn: f.note})
	if err != nil {
		return err
	}
	defer img.Close()
	f.opened = img
	if f.peeked, f.source, err = flash.Peek(ctx, img.Source, img.Size); err != nil {
		return err
	}
	if f.survey, err = flash.Look(blockdev.System(), f.target); err != nil {
		return err
	}
	if err := f.refuse(); err != nil {
		return err
	}
	if f.flags.dryRun {
		return f.printPlan(out)
	}
	if err := f.confirm(ctx); err != nil {
		return err
	}
	if err := f.storeClaim(); err != nil {
		return err
	}
	started := time.Now()
	res, err := f.write(ctx)
	if err != nil {
		return f.explain(err)
	}
	return f.finish(res, started, out)
}

// prepare checks everything that needs neither image nor target.
func (f *flashing) prepare(ctx context.Context) error {
	if f.flags.digest != "" {
		hex, ok := strings.CutPrefix(strings.ToLower(f.flags.digest), "sha256:")
		if !ok || len(hex) != 2*sha256.Size || strings.Trim(hex, "0123456789abcdef") != "" {
			return usageError("--digest %q is not sha256: and %d hex digits", f.flags.digest, 2*sha256.Size)
		}
		f.digest, f.vouchedBy = hex, "--digest"
	}
	if f.flags.claimFile != "" && !f.flags.claim {
		return usageError("--claim-file needs --claim")
	}
	if f.flags.sign != "" {
		key, err := config{}.claimKey(f.flags.sign)
		if err != nil {
			return fmt.Errorf("--sign: %w", err)
		}
		f.signer = key
	}
	if err := f.nodeConfig(); err != nil {
		return err
	}
	return ctx.Err()
}

// refuse says whatever speaks against writing, before anybody is asked anything.
func (f *flashing) refuse() error {
	s := f.survey
	if err := s.Refuse(); err != nil {
		return err
	}
	if err := f.notItself(); err != nil {
		return err
	}
	size, sector := s.Size, s.SectorSize
	if !s.Device {
		size, sector = max(size, f.peeked.Size), 512
	}
	if err := flash.Fits(f.peeked, size, sector, f.config != nil); err != nil {
		return err
	}
	if f.flags.serial != "" && s.Device {
		return s.Expect(f.flags.serial)
	}
	return nil
}

// notItself refuses to write an image over itself.
func (f *flashing) notItself() error {
	image, err := os.Stat(f.opened.Name)
	if err != nil {
		return nil // a URL
	}
	path, err := filepath.EvalSymlinks(f.opened.Name)
	if err != nil {
		return err
	}
	target, err := os.Stat(f.survey.Path)
	if err == nil && os.SameFile(image, target) {
		return &flash.RefusedError{Reason: fmt.Sprintf("%s is the image itself", f.survey.Path)}
	}
	for _, p := range f.survey.Partitions {
		if f.survey.Device && filepath.Base(path) == p.Name && image.Mode()&os.ModeDevice != 0 {
			return &flash.RefusedError{Reason: fmt.Sprintf("the image lies on %s", f.survey.Path)}
		}
	}
	return nil
}

// confirm has a person say that the target is the right one.
func (f *flashing) confirm(ctx context.Context) error {
	s := f.survey
	switch {
	case !s.Device && (!s.Exists || s.Size == 0):
		return nil // nothing is lost
	case f.flags.yes && (!s.Device || f.flags.serial != ""):
		return nil
	case f.flags.yes:
		return usageError("--yes needs --expect-serial for a disk, or the wrong one is wiped when disks change places; %s has %s", s.Path, serialText(s))
	}
	in := f.cmd.InOrStdin()
	w := f.cmd.ErrOrStderr()
	if err := printSurvey(w, s); err != nil {
		return err
	}
	if !isTerminal(in) {
		return &flash.RefusedError{Reason: fmt.Sprintf("nobody can be asked, as this is no terminal; say it beforehand by --yes%s", map[bool]string{true: " --expect-serial " + or(s.Serial, flash.NoSerial)}[s.Device])}
	}
	fmt.Fprintf(w, "\nAll of it will be lost. Type %s to go on: ", s.Word())
	answer := make(chan string, 1)
	// Reading a terminal cannot be interrupted; the reader ends with the program.
	go func() {
		line, _ := bufio.NewReader(in).ReadString('\n')
		answer <- strings.TrimSpace(line)
	}()
	select {
	case a := <-answer:
		if a != s.Word() {
			return &flash.RefusedError{Reason: fmt.Sprintf("%q is not %q", a, s.Word())}
		}
		return nil
	case <-ctx.Done():
		fmt.Fprintln(w)
		return &flash.RefusedError{Reason: "interrupted"}
	}
}

// write opens the target and flashes.
func (f *flashing) write(ctx context.Context) (*flash.Result, error) {
	t, err := f.openTarget()
	if err != nil {
		return nil, err
	}
	defer t.Close()
	in := flash.Input{Source: f.source, Size: f.opened.Size, Reader: f.opened.Reader, Map: f.opened.Vouched.Map, Digest: f.digest,
		Target: t, Config: f.config, Random: rand.Reader, Time: time.Now()}
	if in.Digest == "" && in.Map == nil && f.opened.Vouched.Digest != "" {
		in.Digest, f.vouchedBy = f.opened.Vouched.Digest, f.opened.Vouched.By
	} else if in.Map != nil && f.vouchedBy == "" {
		f.vouchedBy = f.opened.Vouched.By
	}
	if in.Digest == "" && in.Map == nil {
		f.note("warning: nothing vouches for this image: give --digest, or keep release.json beside it")
	}
	p := newFlashProgress(f.cmd.ErrOrStderr())
	in.Progress = p.show
	res, err := flash.Run(ctx, in)
	p.close()
	if err != nil {
		return nil, err
	}
	if d, ok := t.(*blockdev.Target); ok {
		if err := d.Reread(); err != nil {
			f.note("warning: %v; unplug it and plug it in again before you use it here", err)
		}
	}
	return res, nil
}

type closingTarget interface {
	diskwrite.Target
	io.Closer
}

// openTarget opens the target for itself alone and makes sure that it is still the one that was looked at.
func (f *flashing) openTarget() (closingTarget, error) {
	if !f.survey.Device {
		t, err := blockdev.OpenFile(f.survey.Path, f.peeked.Size)
		return busy(t, err)
	}
	t, err := busy(blockdev.Open(f.survey.Path))
	if err != nil {
		return nil, err
	}
	again, err := flash.Look(blockdev.System(), f.target)
	if err == nil && (!f.survey.Same(again) || t.Size() != again.Size) {
		err = &flash.RefusedError{Reason: fmt.Sprintf("%s is another disk now than a moment ago", f.target)}
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// busy makes a refusal of what the kernel does not give to one alone.
func busy[T closingTarget](t T, err error) (closingTarget, error) {
	if errors.Is(err, blockdev.ErrBusy) {
		return nil, &flash.RefusedError{Reason: err.Error()}
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}

// explain says of an error in which state it leaves the target.
func (f *flashing) explain(err error) error {
	var incomplete *flash.IncompleteError
	if !errors.As(err, &incomplete) {
		return err
	}
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("flash: interrupted in the phase %q, %d of %d MiB: %s cannot be booted as it is; run the same command again", incomplete.Phase, incomplete.Done>>20, incomplete.Total>>20, f.survey.Path)
	}
	return fmt.Errorf("flash: %w\n%s cannot be booted as it is; mend the cause and run the same command again", err, f.survey.Path)
}

// finish writes the receipt and says what was done.
func (f *flashing) finish(res *flash.Result, started time.Time, out outputFlag) error {
	r := flash.NewReceipt(res)
	r.Image.Name, r.Image.By = f.image, f.vouchedBy
	if res.Verified == flash.VerifiedNot {
		r.Image.By = ""
	}
	s := f.survey
	r.Target = flash.ReceiptTarget{Path: s.Path, Device: s.Device, Model: s.Model, Serial: s.Serial, WWN: s.WWN, Size: s.Size, SectorSize: max(s.SectorSize, 512)}
	if !s.Device {
		r.Target.Size = max(s.Size, res.Image.Size)
	}
	r.Started, r.Finished, r.Program = started.UTC().Truncate(time.Second), time.Now().UTC().Truncate(time.Second), version
	if f.config != nil {
		r.NodeConfig, r.Claim = fmt.Sprintf("%x", sha256.Sum256(f.config)), f.claim
	}
	text, signature, err := r.Encode(f.signer)
	if err != nil {
		return err
	}
	name, err := f.writeReceipt(text, signature, started)
	if err != nil {
		return fmt.Errorf("flash: the target is whole, but the receipt could not be kept: %w", err)
	}
	return out.print(f.cmd.OutOrStdout(), r, func(w io.Writer) error { return printReceipt(w, r, time.Since(started), name) })
}

func (f *flashing) writeReceipt(text, signature []byte, at time.Time) (string, error) {
	name := f.flags.receipt
	if name == "" {
		c, err := openConfig()
		if err != nil {
			return "", err
		}
		name = c.path("receipts", at.UTC().Format("20060102T150405Z")+"-"+safeName(f.survey.Word())+".json")
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			return "", err
		}
	}
	if signature != nil {
		if err := atomicfile.Write(name+".sig", signature, 0o644); err != nil {
			return "", err
		}
	}
	return name, atomicfile.Write(name, text, 0o644)
}

func safeName(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r) {
			return r
		}
		return '_'
	}, s)
}

func completeDisks() []string {
	disks, err := blockdev.System().Disks()
	if err != nil {
		return nil
	}
	var out []string
	for _, d := range disks {
		out = append(out, fmt.Sprintf("%s\t%s %s", d.Path, size(d.Size), d.Model))
	}
	return out
}

// nodeConfig puts node.yaml together and checks it.
func (f *flashing) nodeConfig() error {
	if f.flags.config != "" {
		b, err := readSmall(f.flags.config)
		if err != nil {
			return fmt.Errorf("--config: %w", err)
		}
		f.config = b
	}
	if !f.flags.claim {
		return checkConfig(f.config)
	}
	c, err := openConfig()
	if err != nil {
		return err
	}
	key, err := c.claimKey(f.flags.claimFile)
	if errors.Is(err, os.ErrNotExist) {
		if _, key, err = ed25519.GenerateKey(rand.Reader); err == nil {
			f.newClaim = key
		}
	}
	if err != nil {
		return err
	}
	pub := key.Public().(ed25519.PublicKey)
	f.claim = tlsid.Fingerprint(pub)
	if f.config, err = withClaim(f.config, tlsid.FormatPublicKey(pub)); err != nil {
		return err
	}
	return checkConfig(f.config)
}

// storeClaim keeps a claim key that was made, before a disk that only it can claim exists.
func (f *flashing) storeClaim() error {
	if f.newClaim == nil {
		return nil
	}
	c, err := openConfig()
	if err != nil {
		return err
	}
	if err := storeClaimKey(c, f.flags.claimFile, f.newClaim); err != nil {
		return err
	}
	f.note("made a claim key and kept it in %s: only its holder can raise or join this node", c.claimFile(f.flags.claimFile))
	return nil
}

// serialText says which serial number a disk has.
func serialText(s *flash.Survey) string {
	if s.Serial == "" {
		return "none (" + flash.NoSerial + ")"
	}
	return s.Serial
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
