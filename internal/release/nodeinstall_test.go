package release

import (
	"math"
	"testing"
)

func TestParseDiskSize(t *testing.T) {
	const most = math.MaxInt64
	for in, want := range map[string]DiskSize{
		"500GB":             {475e9, 525e9},
		"1.5 TB":            {1425e9, 1575e9},
		">= 400GB, < 1TB":   {400e9, 1e12 - 1},
		"> 1GiB":            {1<<30 + 1, most},
		"<=64 MiB":          {0, 64 << 20},
		">1MB,>2MB , <=3MB": {2e6 + 1, 3e6},
	} {
		if got, err := ParseDiskSize(in); err != nil || got != want {
			t.Errorf("%q: %+v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "500", "GB", "large", "1KB", "=1GB", "=>1GB", "-1GB", "1e3GB", "0x1GB", "NaNGB", "infGB", "99999999TiB", "> 2GB, < 1GB", "1GB,", "0GB", "1 GBGB"} {
		if got, err := ParseDiskSize(in); err == nil {
			t.Errorf("%q is taken for %+v", in, got)
		}
	}
}

func FuzzParseDiskSize(f *testing.F) {
	f.Add(">= 400GB, < 1TB")
	f.Add("500GB")
	f.Fuzz(func(t *testing.T, s string) {
		if d, err := ParseDiskSize(s); err == nil && (d.Min < 0 || d.Min > d.Max) {
			t.Errorf("%q: %+v", s, d)
		}
	})
}
