package pid1

import "testing"

func TestWorkloadMemory(t *testing.T) {
	const mib = 1 << 20
	for _, test := range []struct{ total, kept uint64 }{{16 * mib, 8 * mib}, {256 * mib, 64 * mib}, {1024 * mib, 160 * mib}, {1 << 40, 1024 * mib}} {
		if got := test.total - workloadMemory(test.total); got != test.kept {
			t.Errorf("of %d MiB %d are kept, wanted %d", test.total/mib, got/mib, test.kept/mib)
		}
	}
}
