package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"kingpost/installer/flash"
	"kingpost/internal/blockdev"
	"kingpost/internal/mesh"
	"kingpost/internal/release"
)

// printSurvey shows a target and what is on it.
func printSurvey(w io.Writer, s *flash.Survey) error {
	if !s.Device {
		fmt.Fprintf(w, "%s: a file of %s\n", s.Path, size(s.Size))
	} else {
		fmt.Fprintf(w, "%s\n  model   %s\n  size    %s (%d bytes), sectors of %d\n  serial  %s\n  bus     %s\n", s.Path, or(s.Model, "not known"), size(s.Size), s.Size, s.SectorSize,
			serialText(s), or(s.Bus, "not known"))
	}
	fmt.Fprintf(w, "  on it   %s\n", signatureText(s.Contents.Signatures, len(s.Contents.Partitions)))
	t := newTable("NUMBER", "NAME", "SIZE", "HOLDS")
	for _, p := range s.Contents.Partitions {
		t.add(fmt.Sprint(p.Number), p.Name, size(p.Size), signatureText(p.Signatures, 0))
	}
	if len(t.rows) == 0 {
		return nil
	}
	return t.write(w)
}

func signatureText(sigs []blockdev.Signature, partitions int) string {
	var parts []string
	for _, s := range sigs {
		if text := s.String(); len(parts) == 0 || parts[len(parts)-1] != text {
			parts = append(parts, text)
		}
	}
	if partitions > 0 {
		parts = append(parts, fmt.Sprintf("%d partitions", partitions))
	}
	if len(parts) == 0 {
		return "nothing that is known"
	}
	return strings.Join(parts, ", ")
}

// flashPlan is what --dry-run says.
type flashPlan struct {
	Image      string        `json:"image"`
	Kind       flash.Kind    `json:"kind"`
	ImageSize  int64         `json:"imageSize"` // bytes
	VerifiedBy string        `json:"verifiedBy,omitempty"`
	Target     *flash.Survey `json:"target"`
	Steps      []string      `json:"steps"`
}

func (f *flashing) printPlan(out outputFlag) error {
	s, img := f.survey, f.peeked
	p := flashPlan{Image: f.image, Kind: img.Kind, ImageSize: img.Size, VerifiedBy: or(f.vouchedBy, f.opened.Vouched.By), Target: s}
	step := func(format string, args ...any) { p.Steps = append(p.Steps, fmt.Sprintf(format, args...)) }
	if s.Device || s.Size > 0 {
		step("clear the first MiB and the last 4 MiB of %s", s.Path)
	}
	step("write %s of image without its first MiB, with zeros where it has zeros, and read all of it back", size(img.Size))
	if img.Kind == flash.KindDisk {
		if s.Device && s.SectorSize != img.Table.SectorSize {
			step("make the ESP and the partition table anew for sectors of %d bytes (the image is for %d)", s.SectorSize, img.Table.SectorSize)
		}
		step("give disk and partitions GUIDs of their own")
		if f.config != nil {
			step("write node.yaml onto the ESP")
		}
		step("check by the boot's own rules what it starts, every block of the root")
		step("write the partition table for %s, the backup at the end first", size(max(s.Size, img.Size)))
	} else {
		step("write the first MiB")
	}
	return out.print(f.cmd.OutOrStdout(), p, func(w io.Writer) error {
		fmt.Fprintf(w, "image %s: %s of %s, %s\n\n", p.Image, p.Kind, size(p.ImageSize), map[bool]string{true: "vouched for by " + p.VerifiedBy, false: "nothing vouches for it"}[p.VerifiedBy != ""])
		if err := printSurvey(w, s); err != nil {
			return err
		}
		fmt.Fprintf(w, "\nwould\n")
		for _, s := range p.Steps {
			fmt.Fprintf(w, "  %s\n", s)
		}
		return nil
	})
}

func printReceipt(w io.Writer, r flash.Receipt, took time.Duration, name string) error {
	verified := "nothing vouched for the image: compare its digest " + r.Image.Digest
	if r.Image.By != "" {
		verified = "as " + r.Image.By + " says"
	}
	fmt.Fprintf(w, "%s: written and read back in %.1f s\n  image    %s, %s\n  mapped   %s of %s\n", r.Target.Path, took.Seconds(), r.Image.Name, verified, size(r.Written.Mapped), size(r.Image.Size))
	if r.Disk != nil {
		fmt.Fprintf(w, "  disk     %s\n", r.Disk.GUID)
	}
	if r.Claim != "" {
		fmt.Fprintf(w, "  claim    %s\n", r.Claim)
	}
	_, err := fmt.Fprintf(w, "  receipt  %s\n", name)
	return err
}

// checkConfig says whether node.yaml is right; nil is.
func checkConfig(b []byte) error {
	if b == nil {
		return nil
	}
	if _, err := release.ParseNodeConfig(b); err != nil {
		return usageError("--config: %v", err)
	}
	return nil
}

// withClaim adds a claim to a node.yaml, whose own text stays as it is.
func withClaim(config []byte, claim string) ([]byte, error) {
	var c mesh.NodeConfig
	if config != nil {
		var err error
		if c, err = release.ParseNodeConfig(config); err != nil {
			return nil, usageError("--config: %v", err)
		}
	}
	switch {
	case c.Claim == claim:
		return config, nil
	case c.Claim != "":
		return nil, usageError("--config has the claim of another key, %s; leave --claim away, or take it out of the file", c.Claim)
	}
	text := string(config)
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return []byte(text + "claim: " + claim + "\n"), nil
}

// flashProgress shows a bar on a terminal, and a line every so often off one, with rate and time left.
type flashProgress struct {
	w     io.Writer
	term  bool
	mu    sync.Mutex
	phase string
	start time.Time
	said  time.Time
	mpb   *mpb.Progress
	bar   *mpb.Bar
}

func newFlashProgress(w io.Writer) *flashProgress {
	return &flashProgress{w: w, term: isTerminal(w)}
}

func (p *flashProgress) show(now flash.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Phase != p.phase {
		p.end()
		p.phase, p.start, p.said = now.Phase, time.Now(), time.Now()
		if p.term {
			p.mpb = mpb.New(mpb.WithOutput(p.w), mpb.WithWidth(60))
			p.bar = p.mpb.AddBar(now.Total, mpb.PrependDecorators(decor.Name(fmt.Sprintf("%-10s", now.Phase)), decor.CountersKibiByte("% .0f / % .0f")),
				mpb.AppendDecorators(decor.Any(func(s decor.Statistics) string { return " " + rate(s.Current, s.Total, time.Since(p.start)) })))
		}
	}
	switch {
	case p.term:
		p.bar.SetCurrent(now.Done)
	case now.Done == now.Total:
		fmt.Fprintf(p.w, "%s: %s in %.1f s\n", now.Phase, size(now.Done), time.Since(p.start).Seconds())
	case time.Since(p.said) >= flashEvery:
		p.said = time.Now()
		fmt.Fprintf(p.w, "%s: %s of %s, %s\n", now.Phase, size(now.Done), size(now.Total), rate(now.Done, now.Total, time.Since(p.start)))
	}
}

// flashEvery is how often a line says how far it is, off a terminal.
const flashEvery = 5 * time.Second

// rate is "12.3 MiB/s, 1m20s left".
func rate(done, total int64, took time.Duration) string {
	if done == 0 || took <= 0 {
		return ""
	}
	per := float64(done) / took.Seconds()
	left := time.Duration(float64(total-done) / per * float64(time.Second)).Round(time.Second)
	return fmt.Sprintf("%s/s, %v left", size(int64(per)), left)
}

func (p *flashProgress) end() {
	if p.bar == nil {
		return
	}
	if !p.bar.Completed() {
		p.bar.Abort(false)
	}
	p.mpb.Wait()
	p.bar = nil
}

func (p *flashProgress) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end()
}
