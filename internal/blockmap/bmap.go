package blockmap

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrForeign is returned by Parse for a bmap file of another program: it is right, but says nothing that could be
// compared piece by piece.
var ErrForeign = errors.New("the block map was not made by Kingpost")

// MaxText bounds a map's text, in bytes.
const MaxText = 64 << 20

// checksumField is filled with zeros while the file is hashed (bmap-tools, BmapCreate.py).
const checksumField = "<BmapFileChecksum> %s </BmapFileChecksum>"

// Encode is the map as a bmap 2.0 file.
func (m *Map) Encode() []byte {
	var b bytes.Buffer
	none := strings.Repeat("0", 2*sha256.Size)
	fmt.Fprintf(&b, "<?xml version=\"1.0\" ?>\n<bmap version=\"2.0\">\n")
	fmt.Fprintf(&b, "  <ImageSize> %d </ImageSize>\n  <BlockSize> %d </BlockSize>\n", m.Size, Unit)
	mapped := int64(0)
	for _, r := range m.Runs {
		mapped += (r.Len + Unit - 1) / Unit
	}
	fmt.Fprintf(&b, "  <BlocksCount> %d </BlocksCount>\n  <MappedBlocksCount> %d </MappedBlocksCount>\n", (m.Size+Unit-1)/Unit, mapped)
	fmt.Fprintf(&b, "  <ChecksumType> sha256 </ChecksumType>\n  "+checksumField+"\n  <BlockMap>\n", none)
	for _, r := range m.Runs {
		first, last := r.Off/Unit, (r.Off+r.Len-1)/Unit
		if first == last {
			fmt.Fprintf(&b, "    <Range chksum=\"%x\"> %d </Range>\n", r.Sum, first)
		} else {
			fmt.Fprintf(&b, "    <Range chksum=\"%x\"> %d-%d </Range>\n", r.Sum, first, last)
		}
	}
	fmt.Fprintf(&b, "  </BlockMap>\n</bmap>\n")
	sum := sha256.Sum256(b.Bytes())
	return bytes.Replace(b.Bytes(), fmt.Appendf(nil, checksumField, none), fmt.Appendf(nil, checksumField, hex.EncodeToString(sum[:])), 1)
}

// file is the part of a bmap file that is read.
type file struct {
	Version  string `xml:"version,attr"`
	Size     string `xml:"ImageSize"`
	Unit     string `xml:"BlockSize"`
	Checksum string `xml:"ChecksumType"`
	Sum      string `xml:"BmapFileChecksum"`
	Ranges   []struct {
		Sum  string `xml:"chksum,attr"`
		Text string `xml:",chardata"`
	} `xml:"BlockMap>Range"`
}

// Parse reads a bmap file and checks its own checksum. One of another program is ErrForeign.
func Parse(b []byte) (*Map, error) {
	m, err := parse(b)
	if err != nil {
		return nil, fmt.Errorf("read block map: %w", err)
	}
	return m, nil
}

func parse(b []byte) (*Map, error) {
	if len(b) > MaxText {
		return nil, fmt.Errorf("it has %d bytes, at most %d are read", len(b), MaxText)
	}
	var f file
	if err := xml.Unmarshal(b, &f); err != nil {
		return nil, err
	}
	size, err1 := strconv.ParseInt(strings.TrimSpace(f.Size), 10, 64)
	unit, err2 := strconv.ParseInt(strings.TrimSpace(f.Unit), 10, 64)
	sum := strings.TrimSpace(f.Sum)
	switch {
	case err1 != nil || size < 0 || size > 1<<60:
		return nil, fmt.Errorf("the image size is %q", f.Size)
	case !strings.HasPrefix(f.Version, "2.") || err2 != nil || unit != Unit || strings.TrimSpace(f.Checksum) != "sha256":
		return nil, fmt.Errorf("version %q, blocks of %q bytes and checksums of type %q: %w", f.Version, f.Unit, f.Checksum, ErrForeign)
	case len(sum) != 2*sha256.Size || bytes.Count(b, []byte(sum)) != 1:
		return nil, errors.New("it has no checksum of itself")
	}
	got := sha256.Sum256(bytes.Replace(b, []byte(sum), []byte(strings.Repeat("0", len(sum))), 1))
	if hex.EncodeToString(got[:]) != sum {
		return nil, fmt.Errorf("it is damaged: its checksum is %x, it says %s", got, sum)
	}
	m := &Map{Size: size}
	end := int64(0)
	for _, r := range f.Ranges {
		run, err := parseRange(r.Text, r.Sum, size)
		if err != nil {
			return nil, err
		}
		if run.Off < end {
			return nil, fmt.Errorf("its ranges are not in order at byte %d", run.Off)
		}
		if run.Off/Piece != (run.Off+run.Len-1)/Piece {
			return nil, fmt.Errorf("a range of %d bytes at %d: %w", run.Len, run.Off, ErrForeign)
		}
		end = run.Off + run.Len
		m.Runs = append(m.Runs, run)
	}
	return m, nil
}

func parseRange(text, sum string, size int64) (Run, error) {
	from, to, two := strings.Cut(strings.TrimSpace(text), "-")
	if !two {
		to = from
	}
	first, err1 := strconv.ParseUint(from, 10, 48)
	last, err2 := strconv.ParseUint(to, 10, 48)
	raw, err3 := hex.DecodeString(sum)
	if err := errors.Join(err1, err2, err3); err != nil || last < first || len(raw) != sha256.Size || int64(last)*Unit >= size {
		return Run{}, fmt.Errorf("the range %.40q with the checksum %.80q cannot be", text, sum)
	}
	r := Run{Off: int64(first) * Unit, Sum: [sha256.Size]byte(raw)}
	r.Len = min(int64(last+1)*Unit, size) - r.Off
	return r, nil
}
