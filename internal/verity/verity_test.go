package verity

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var testSalt = bytes.Repeat([]byte{0x5a, 1}, 16)

// image makes a file with blocks of data and a tree.
func image(t testing.TB, blocks int, salt []byte) (*os.File, Info) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "root.img"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	b := make([]byte, BlockSize)
	for i := range blocks {
		copy(b, fmt.Sprintf("block %d", i))
		if _, err := f.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	info, err := Append(context.Background(), f, int64(blocks)*BlockSize, Params{Salt: salt, UUID: [16]byte{1, 2, 3}})
	if err != nil {
		t.Fatal(err)
	}
	if st, _ := f.Stat(); st.Size() != info.Size {
		t.Fatalf("size is said to be %d, the file has %d bytes", info.Size, st.Size())
	}
	return f, info
}

// blockCounts are around every border: one block, one hash block, one chunk, two and three levels.
var blockCounts = []int{1, 2, 127, 128, 129, 255, 256, 257, 511, 16384, 16385, 20000}

func TestTreeIsVeritysetups(t *testing.T) {
	if _, err := exec.LookPath("veritysetup"); err != nil {
		t.Fatal("veritysetup is not installed; make test installs its package, cryptsetup-bin")
	}
	for _, blocks := range blockCounts {
		for name, salt := range map[string][]byte{"salt": testSalt, "nosalt": nil} {
			if salt == nil && blocks != 129 {
				continue
			}
			t.Run(fmt.Sprintf("%d.%s", blocks, name), func(t *testing.T) {
				f, info := image(t, blocks, salt)
				ours, err := os.ReadFile(f.Name())
				if err != nil {
					t.Fatal(err)
				}
				ref := filepath.Join(t.TempDir(), "ref.img")
				if err := os.WriteFile(ref, ours[:info.HashOffset], 0o600); err != nil {
					t.Fatal(err)
				}
				s := hex.EncodeToString(salt)
				if s == "" {
					s = "-"
				}
				args := []string{"--hash-offset", fmt.Sprint(info.HashOffset), "--data-blocks", fmt.Sprint(blocks)}
				out, err := exec.Command("veritysetup", append([]string{"format", ref, ref, "--salt", s,
					"--uuid", "01020300-0000-0000-0000-000000000000"}, args...)...).CombinedOutput()
				if err != nil {
					t.Fatalf("veritysetup format: %v\n%s", err, out)
				}
				theirs, err := os.ReadFile(ref)
				if err != nil {
					t.Fatal(err)
				}
				// veritysetup leaves the rest of the superblock's block out when nothing follows it.
				theirs = append(theirs, make([]byte, max(0, len(ours)-len(theirs)))...)
				if !bytes.Equal(ours, theirs) {
					t.Error("the image is not what veritysetup writes")
				}
				root := hex.EncodeToString(info.RootHash[:])
				if !strings.Contains(string(out), root) {
					t.Errorf("the root hash is %s, veritysetup says:\n%s", root, out)
				}
				if out, err := exec.Command("veritysetup", "verify", f.Name(), f.Name(), root,
					"--hash-offset", fmt.Sprint(info.HashOffset)).CombinedOutput(); err != nil {
					t.Errorf("veritysetup verify: %v\n%s", err, out)
				}
			})
		}
	}
}

func TestVerifyAllAccepts(t *testing.T) {
	for _, blocks := range blockCounts {
		t.Run(fmt.Sprint(blocks), func(t *testing.T) {
			f, info := image(t, blocks, testSalt)
			var last, total int64
			err := VerifyAll(context.Background(), f, info.RootHash[:], info.HashOffset, func(d, n int64) { last, total = d, n })
			if err != nil {
				t.Error(err)
			}
			if blocks > 1 && last+BlockSize != total {
				t.Errorf("progress ends at %d of %d; the topmost block alone is read before", last, total)
			}
			sb, err := ReadSuperblock(f, info.HashOffset)
			if err != nil || sb.DataBlocks != int64(blocks) || !bytes.Equal(sb.Salt, testSalt) || sb.UUID != [16]byte{1, 2, 3} {
				t.Errorf("superblock is %+v, %v", sb, err)
			}
		})
	}
}

func flip(t *testing.T, f *os.File, at int64) func() {
	t.Helper()
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	put := func(v byte) {
		if _, err := f.WriteAt([]byte{v}, at); err != nil {
			t.Fatal(err)
		}
	}
	put(b[0] ^ 0x10)
	return func() { put(b[0]) }
}

func TestVerifyAllFindsEveryFlippedByte(t *testing.T) {
	const blocks = 150
	f, info := image(t, blocks, testSalt)
	for at := int64(0); at < info.Size; at += 2039 {
		// What follows the salt in the superblock's block is hashed by nobody and used by nobody.
		if at >= info.HashOffset+sbAtSalt+int64(len(testSalt)) && at < info.HashOffset+BlockSize {
			continue
		}
		undo := flip(t, f, at)
		err := VerifyAll(context.Background(), f, info.RootHash[:], info.HashOffset, nil)
		undo()
		if err == nil {
			t.Fatalf("a flipped bit at byte %d is not noticed", at)
		}
		if at < info.HashOffset {
			var c *CorruptError
			if !errors.As(err, &c) || c.Level != -1 || c.Block != at/BlockSize {
				t.Fatalf("a flipped bit at byte %d (block %d) gives %v", at, at/BlockSize, err)
			}
		}
	}
}

func TestVerifyAllNamesTheFirstOfMany(t *testing.T) {
	f, info := image(t, 20000, testSalt)
	for _, b := range []int64{19999, 7000, 6000, 12000} {
		flip(t, f, b*BlockSize+5)
	}
	for range 5 {
		var c *CorruptError
		err := VerifyAll(context.Background(), f, info.RootHash[:], info.HashOffset, nil)
		if !errors.As(err, &c) || c.Block != 6000 {
			t.Fatalf("error is %v", err)
		}
	}
}

func TestVerifyAllRefuses(t *testing.T) {
	f, info := image(t, 20000, testSalt)
	other := append([]byte(nil), info.RootHash[:]...)
	other[31]++
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	for name, c := range map[string]struct {
		ctx    context.Context
		root   []byte
		offset int64
		want   error
	}{
		"another root hash": {context.Background(), other, info.HashOffset, ErrRootHash},
		"short root hash":   {context.Background(), other[:31], info.HashOffset, nil},
		"offset elsewhere":  {context.Background(), info.RootHash[:], info.HashOffset - BlockSize, nil},
		"crooked offset":    {context.Background(), info.RootHash[:], info.HashOffset + 1, nil},
		"offset behind end": {context.Background(), info.RootHash[:], 1 << 40, nil},
		"cancelled":         {cancelled, info.RootHash[:], info.HashOffset, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			err := VerifyAll(c.ctx, f, c.root, c.offset, nil)
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("error is %v", err)
			}
		})
	}
	t.Run("truncated", func(t *testing.T) {
		short := bytes.NewReader(make([]byte, 0))
		if VerifyAll(context.Background(), short, info.RootHash[:], info.HashOffset, nil) == nil {
			t.Error("accepted")
		}
	})
}

func TestDMTable(t *testing.T) {
	sb := &Superblock{DataBlocks: 100, Salt: []byte{0xab}}
	got := DMTable("/dev/vda2", sb, []byte{1, 2}, 100*BlockSize, true)
	want := Target{800, "verity", "1 /dev/vda2 /dev/vda2 4096 4096 100 101 sha256 0102 ab 1 panic_on_corruption"}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func FuzzSuperblock(f *testing.F) {
	f.Add((&Superblock{DataBlocks: 7, Salt: testSalt}).marshal())
	f.Fuzz(func(t *testing.T, b []byte) {
		sb, err := ReadSuperblock(bytes.NewReader(b), 0)
		if err == nil && (sb.DataBlocks <= 0 || len(sb.Salt) > MaxSalt) {
			t.Errorf("accepted %+v", sb)
		}
	})
}

func BenchmarkVerifyAll(b *testing.B) {
	const blocks = 64 << 20 / BlockSize
	f, info := image(b, blocks, testSalt)
	b.SetBytes(info.Size)
	b.ReportAllocs()
	for b.Loop() {
		if err := VerifyAll(context.Background(), f, info.RootHash[:], info.HashOffset, nil); err != nil {
			b.Fatal(err)
		}
	}
}
