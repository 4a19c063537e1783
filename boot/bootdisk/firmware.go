package bootdisk

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"strings"

	"kingpost/internal/gpt"
)

// globalVendor is the vendor GUID of the firmware's own variables (EFI_GLOBAL_VARIABLE, UEFI specification 2.10, 3.3).
const globalVendor = "8be4df61-93ca-11d2-aa0d-00e098032b8c"

// FirmwareEntries returns, by the GUID of a partition, the name of a boot entry of the firmware ("Boot0003") that finds its
// loader by it. Such an entry stops working when the partition gets another GUID. Each variable costs a call of the
// firmware, so they are read once.
func FirmwareEntries(efivars fs.FS) map[gpt.GUID]string {
	out := map[gpt.GUID]string{}
	entries, err := fs.ReadDir(efivars, ".")
	if err != nil {
		return out
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), "-"+globalVendor)
		if !ok || len(name) != 8 || !strings.HasPrefix(name, "Boot") || strings.Trim(name[4:], "0123456789ABCDEF") != "" {
			continue
		}
		b, err := fs.ReadFile(efivars, e.Name())
		if err != nil || len(b) < 4 {
			continue
		}
		guids, err := loadOptionPartitions(b[4:]) // before it, efivarfs has the variable's attributes
		if err != nil {
			continue
		}
		for _, g := range guids {
			out[g] = name
		}
	}
	return out
}

// loadOptionPartitions returns the GUIDs of the GPT partitions in the device paths of an EFI_LOAD_OPTION (UEFI
// specification 2.10, sections 3.1.3 and 10.3).
func loadOptionPartitions(b []byte) ([]gpt.GUID, error) {
	const head = 6 // attributes, length of the paths
	if len(b) < head {
		return nil, fmt.Errorf("a load option of %d bytes", len(b))
	}
	length := int(binary.LittleEndian.Uint16(b[4:]))
	at := head
	for ; ; at += 2 { // the description, UTF-16 that ends in zero
		if at+2 > len(b) {
			return nil, fmt.Errorf("a load option whose description does not end")
		}
		if bytes.Equal(b[at:at+2], []byte{0, 0}) {
			at += 2
			break
		}
	}
	if length > len(b)-at {
		return nil, fmt.Errorf("a load option with %d bytes of paths, of which %d are there", length, len(b)-at)
	}
	var out []gpt.GUID
	for p := b[at : at+length]; len(p) >= 4; {
		n := int(binary.LittleEndian.Uint16(p[2:]))
		if n < 4 || n > len(p) {
			return nil, fmt.Errorf("a device path's node of %d bytes", n)
		}
		const media, hardDrive, byGUID = 4, 1, 2
		if p[0] == media && p[1] == hardDrive && n >= 42 && p[41] == byGUID {
			out = append(out, gpt.GUID(p[24:40]))
		}
		p = p[n:]
	}
	return out, nil
}
