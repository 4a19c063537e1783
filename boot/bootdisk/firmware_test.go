package bootdisk

import (
	"testing"
	"testing/fstest"

	"kingpost/internal/gpt"
)

// loadOption is an entry as firmware makes them: attributes of the variable, then EFI_LOAD_OPTION.
func loadOption(g gpt.GUID, sigType byte) []byte {
	hd := append([]byte{4, 1, 42, 0, 1, 0, 0, 0}, make([]byte, 16)...)
	hd = append(append(hd, g[:]...), 2, sigType)
	path := append([]byte{2, 1, 12, 0, 0xd0, 0x41, 3, 0x0a, 0, 0, 0, 0}, hd...) // ACPI(PNP0A03) before it
	path = append(path, 0x7f, 0xff, 4, 0)
	b := []byte{7, 0, 0, 0, 1, 0, 0, 0, byte(len(path)), 0, 'k', 0, 0, 0}
	return append(append(b, path...), "optional data"...)
}

func TestFirmwareEntries(t *testing.T) {
	mine := gpt.MustGUID("6a4f9a3e-1d2c-4b5a-8e7f-001122334455")
	const v = "-" + globalVendor
	for name, tt := range map[string]struct {
		vars fstest.MapFS
		want string
	}{
		"none":               {fstest.MapFS{}, ""},
		"by its GUID":        {fstest.MapFS{"Boot0001" + v: {Data: loadOption(gpt.GUID{9}, 2)}, "Boot000A" + v: {Data: loadOption(mine, 2)}}, "Boot000A"},
		"MBR signature":      {fstest.MapFS{"Boot0001" + v: {Data: loadOption(mine, 1)}}, ""},
		"another variable":   {fstest.MapFS{"BootOrder" + v: {Data: loadOption(mine, 2)}, "BootNext" + v: {Data: loadOption(mine, 2)}}, ""},
		"of another vendor":  {fstest.MapFS{"Boot0001-" + loaderVendor: {Data: loadOption(mine, 2)}}, ""},
		"cut short":          {fstest.MapFS{"Boot0001" + v: {Data: loadOption(mine, 2)[:40]}}, ""},
		"nothing in it":      {fstest.MapFS{"Boot0001" + v: {}}, ""},
		"broken, then right": {fstest.MapFS{"Boot0001" + v: {Data: []byte{1, 2, 3, 4, 5}}, "Boot0002" + v: {Data: loadOption(mine, 2)}}, "Boot0002"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := FirmwareEntries(tt.vars)[mine]; got != tt.want {
				t.Errorf("got %q", got)
			}
		})
	}
}

func FuzzLoadOption(f *testing.F) {
	f.Add(loadOption(gpt.GUID{1}, 2)[4:])
	f.Fuzz(func(t *testing.T, b []byte) {
		guids, err := loadOptionPartitions(b)
		if err == nil && len(guids) > len(b)/42 {
			t.Errorf("%d partitions in %d bytes", len(guids), len(b))
		}
	})
}
