package flash

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"kingpost/installer/diskwrite"
	"kingpost/installer/flash/madeup"
	"kingpost/internal/blockmap"
	"kingpost/internal/faultdisk"
	"kingpost/internal/mesh/tlsid"
)

var testTime = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

// madeUp is a made-up image.
type madeUp struct {
	disk *faultdisk.Disk
	root string // its root hash, hex
}

func makeImage(t testing.TB, version string, espSize int64) *madeUp {
	t.Helper()
	i, err := madeup.Make(version, espSize)
	if err != nil {
		t.Fatal(err)
	}
	return &madeUp{i.Disk, i.Root}
}

const smallESP = 40 << 20

// pieces gives an image piece by piece, as a source without holes does.
type pieces struct {
	r    io.ReaderAt
	size int64
	at   int64
	fail func(at int64) error
}

func (p *pieces) Next(_ context.Context, buf []byte) (diskwrite.Block, error) {
	if p.fail != nil {
		if err := p.fail(p.at); err != nil {
			return diskwrite.Block{}, err
		}
	}
	n := min(int64(len(buf)), p.size-p.at)
	if n <= 0 {
		return diskwrite.Block{}, io.EOF
	}
	if k, err := p.r.ReadAt(buf[:n], p.at); int64(k) < n {
		return diskwrite.Block{}, err
	}
	b := diskwrite.Block{Off: p.at, Data: buf[:n]}
	if blockmap.IsZero(b.Data) {
		b = diskwrite.Block{Off: p.at, Zeros: n}
	}
	p.at += n
	return b, nil
}

func (m *madeUp) source() *pieces { return &pieces{r: m.disk, size: m.disk.Size()} }

// input is a flash of m to d, the same each time.
func (m *madeUp) input(t testing.TB, d diskwrite.Target) Input {
	t.Helper()
	want, err := blockmap.Make(context.Background(), m.disk, m.disk.Size())
	if err != nil {
		t.Fatal(err)
	}
	return Input{Source: m.source(), Size: m.disk.Size(), Map: want, Target: d, Random: rand.NewChaCha8([32]byte{1}), Time: testTime, Workers: 1,
		Config: []byte("hostname: alpha\n")}
}

// dirty is a disk full of other bytes, with the size of m's and more.
func (m *madeUp) dirty(t testing.TB, more int64, sectorSize int) *faultdisk.Disk {
	t.Helper()
	d := faultdisk.New(m.disk.Size()+more, sectorSize)
	b := bytes.Repeat([]byte("old!"), 1<<18)
	for off := int64(0); off < d.Size(); off += int64(len(b)) {
		if _, err := d.WriteAt(b[:min(int64(len(b)), d.Size()-off)], off); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func (m *madeUp) mapDigest(t testing.TB) string {
	t.Helper()
	want, err := blockmap.Make(context.Background(), m.disk, m.disk.Size())
	if err != nil {
		t.Fatal(err)
	}
	return want.Digest()
}

func parseKey(t testing.TB, pem []byte) ed25519.PrivateKey {
	t.Helper()
	key, err := tlsid.ParsePrivateKey(pem)
	if err != nil {
		t.Fatal(err)
	}
	return key
}
