package artifact

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

// Architectures are those for which a bundle can be packed, by Go's names.
func Architectures() []string { return []string{"amd64", "arm64"} }

// machines are the ELF machines of Architectures.
func machine(arch string) (elf.Machine, bool) {
	switch arch {
	case "amd64":
		return elf.EM_X86_64, true
	case "arm64":
		return elf.EM_AARCH64, true
	}
	return elf.EM_NONE, false
}

// A program has at most maxProgram bytes; the kernel reads a script's first line to maxHead bytes (BINPRM_BUF_SIZE).
const (
	maxProgram = 1 << 30
	maxHead    = 256
)

// CheckProgram tells whether program, a path in a bundle of files, can be started on arch. The error is of what cannot work:
// it is missing, empty, not executable, cut off, of another architecture or no program at all. The warning is of what works
// only where the node's own root has the interpreter or libraries that the bundle lacks.
func CheckProgram(files []File, program, arch string) (warning string, err error) {
	f, err := lookup(files, program)
	if err != nil {
		return "", err
	}
	switch {
	case f.Size == 0:
		return "", fmt.Errorf("%s is empty", f.Path)
	case f.Size > maxProgram:
		return "", fmt.Errorf("%s has %d bytes, a program has at most %d", f.Path, f.Size, maxProgram)
	case f.Mode&0o111 == 0:
		return "", fmt.Errorf("%s is not executable; chmod +x it", f.Path)
	}
	r, err := f.Open()
	if err != nil {
		return "", err
	}
	defer r.Close()
	// A file is looked at where it lies: only its tables are read. Anything else is small enough to have come in a call.
	at, ok := r.(io.ReaderAt)
	if !ok {
		data, err := io.ReadAll(io.LimitReader(r, f.Size))
		if err != nil {
			return "", fmt.Errorf("read %s: %w", f.Path, err)
		}
		at = bytes.NewReader(data)
	}
	interpreter, dynamic, err := inspectProgram(io.NewSectionReader(at, 0, f.Size), arch)
	if err != nil {
		return "", fmt.Errorf("%s %w", f.Path, err)
	}
	// A process sees its bundle at /app.
	if in, ok := strings.CutPrefix(interpreter, "/app/"); interpreter == "" || ok && has(files, in) {
		return "", nil
	}
	if dynamic {
		return fmt.Sprintf("%s is linked dynamically, and its loader %s is not in the bundle: it starts only where the node's own root has that and the libraries; link it statically", f.Path, interpreter), nil
	}
	return fmt.Sprintf("%s is a script, and its interpreter %s is not in the bundle: it starts only where the node's own root has that", f.Path, interpreter), nil
}

func has(files []File, p string) bool {
	_, err := lookup(files, p)
	return err == nil
}

// lookup finds a regular file by its path, through links.
func lookup(files []File, p string) (*File, error) {
	at := p
	for range 40 { // as many links as Linux follows
		i := slices.IndexFunc(files, func(f File) bool { return f.Path == at })
		if i < 0 {
			if at != p {
				return nil, fmt.Errorf("%s is a link to %s, which is not in the bundle", p, at)
			}
			return nil, fmt.Errorf("%s is not in the bundle", p)
		}
		if files[i].Link == "" {
			return &files[i], nil
		}
		at = path.Join(path.Dir(at), files[i].Link)
	}
	return nil, fmt.Errorf("%s is a link that leads round in a circle", p)
}

// inspectProgram reads the head and, of an ELF, the tables of a program. interpreter is what the kernel starts in its place;
// the error completes "PATH ...".
func inspectProgram(program *io.SectionReader, arch string) (interpreter string, dynamic bool, err error) {
	head := make([]byte, min(program.Size(), maxHead))
	if _, err := program.ReadAt(head, 0); err != nil && err != io.EOF {
		return "", false, fmt.Errorf("cannot be read: %w", err)
	}
	if line, ok := bytes.CutPrefix(head, []byte("#!")); ok {
		line, _, _ = bytes.Cut(line, []byte("\n"))
		words := strings.Fields(string(line))
		if len(words) == 0 || !strings.HasPrefix(words[0], "/") {
			return "", false, errors.New("is a script that names no interpreter by an absolute path in its first line")
		}
		return words[0], false, nil
	}
	if !bytes.HasPrefix(head, []byte(elf.ELFMAG)) {
		return "", false, errors.New("is neither an ELF program nor a script that begins with #!")
	}
	f, err := elf.NewFile(program)
	if err != nil {
		return "", false, fmt.Errorf("is a damaged or truncated ELF program: %w", err)
	}
	defer f.Close()
	want, ok := machine(arch)
	if !ok {
		return "", false, fmt.Errorf("cannot be for %s; the architectures are %s", arch, strings.Join(Architectures(), ", "))
	}
	if f.Machine != want || f.Class != elf.ELFCLASS64 || f.Data != elf.ELFDATA2LSB {
		return "", false, fmt.Errorf("is a program for %s, %s, not for %s (%s)", f.Machine, f.Class, arch, want)
	}
	if f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		return "", false, fmt.Errorf("is an ELF file of type %s and no program", f.Type)
	}
	load := false
	for _, p := range f.Progs {
		if end := p.Off + p.Filesz; end < p.Off || end > uint64(program.Size()) {
			return "", false, fmt.Errorf("is truncated: a segment ends at byte %d, the file at %d", end, program.Size())
		}
		load = load || p.Type == elf.PT_LOAD && p.Filesz > 0
		if p.Type == elf.PT_INTERP && p.Filesz < 4096 {
			b := make([]byte, p.Filesz)
			if _, err := p.ReadAt(b, 0); err != nil {
				return "", false, fmt.Errorf("is a damaged ELF program: %w", err)
			}
			interpreter, dynamic = strings.TrimRight(string(b), "\x00"), true
		}
	}
	if !load {
		return "", false, errors.New("is an ELF file without anything to load")
	}
	return interpreter, dynamic, nil
}
