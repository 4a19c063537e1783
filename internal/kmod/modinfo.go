package kmod

import (
	"bufio"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// MaxModule bounds a decompressed module, in bytes; the largest in Debian has about 20 MB with its debug
// symbols stripped.
const MaxModule = 256 << 20

// maxModinfo bounds the .modinfo section, in bytes.
const maxModinfo = 4 << 20

// Modinfo is what a module's .modinfo section says.
type Modinfo struct {
	Name    string // empty in modules of kernels before 4.13
	Depends []string
	Aliases []string
	// Pre and Post are soft dependencies: loaded before and after, where they exist.
	Pre, Post []string
	Firmware  []string
	VerMagic  string
}

// Open opens a module of fsys, decompressed by the ending of its name. What it gives is at most MaxModule bytes, more is
// an error.
func Open(fsys fs.FS, file string) (io.ReadCloser, error) {
	f, err := fsys.Open(file)
	if err != nil {
		return nil, fmt.Errorf("open kernel module: %w", err)
	}
	var r io.Reader = f
	closers := []func() error{f.Close}
	switch {
	case strings.HasSuffix(file, ".xz"):
		r, err = xz.NewReader(bufio.NewReaderSize(f, 64<<10))
	case strings.HasSuffix(file, ".zst"):
		var z *zstd.Decoder
		z, err = zstd.NewReader(f, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(MaxModule))
		if err == nil {
			r = z
			closers = append(closers, func() error { z.Close(); return nil })
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("decompress kernel module %s: %w", file, err)
	}
	return &moduleReader{file: file, r: r, left: MaxModule, closers: closers}, nil
}

type moduleReader struct {
	file    string
	r       io.Reader
	left    int64
	closers []func() error
}

func (m *moduleReader) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	if m.left -= int64(n); m.left < 0 {
		return 0, fmt.Errorf("kernel module %s has more than %d bytes", m.file, MaxModule)
	}
	if err != nil && err != io.EOF {
		err = fmt.Errorf("decompress kernel module %s: %w", m.file, err)
	}
	return n, err
}

func (m *moduleReader) Close() error {
	var errs []error
	for _, c := range slices.Backward(m.closers) {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

// ReadModinfo reads the .modinfo section of an uncompressed module.
func ReadModinfo(r io.Reader) (Modinfo, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return Modinfo{}, err
	}
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return Modinfo{}, fmt.Errorf("it is no kernel module: %w", err)
	}
	s := f.Section(".modinfo")
	if s == nil {
		return Modinfo{}, fmt.Errorf("it is no kernel module: it has no .modinfo section")
	}
	if s.Size > maxModinfo || s.Type == elf.SHT_NOBITS {
		return Modinfo{}, fmt.Errorf("its .modinfo section of %d bytes is not credible", s.Size)
	}
	b, err := s.Data()
	if err != nil {
		return Modinfo{}, fmt.Errorf("read .modinfo: %w", err)
	}
	return parseModinfo(b), nil
}

// parseModinfo reads "key=value" strings that are separated by zero bytes.
func parseModinfo(b []byte) Modinfo {
	var m Modinfo
	for _, line := range strings.Split(string(b), "\x00") {
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			continue
		}
		switch key {
		case "name":
			m.Name = value
		case "depends":
			for _, d := range strings.Split(value, ",") {
				if d != "" {
					m.Depends = append(m.Depends, d)
				}
			}
		case "alias":
			m.Aliases = append(m.Aliases, value)
		case "softdep":
			m.addSoftdep(value)
		case "firmware":
			m.Firmware = append(m.Firmware, value)
		case "vermagic":
			m.VerMagic = value
		}
	}
	return m
}

// addSoftdep reads "pre: a b post: c".
func (m *Modinfo) addSoftdep(s string) {
	var to *[]string
	for _, w := range strings.Fields(s) {
		switch {
		case w == "pre:":
			to = &m.Pre
		case w == "post:":
			to = &m.Post
		case to != nil:
			*to = append(*to, w)
		}
	}
}
