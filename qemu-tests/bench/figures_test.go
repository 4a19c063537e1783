package main

import "testing"

func TestFigure(t *testing.T) {
	for _, test := range []struct {
		f    figure
		want string
	}{
		{figure{name: "builder.rebuild", value: 4.456, unit: "s", limit: 5}, "figure builder.rebuild 4.46 s limit 5 ok"},
		{figure{name: "builder.differing-files", value: 0, unit: "files", limit: 0}, "figure builder.differing-files 0 files limit 0 ok"},
		{figure{name: "raise.cycle-of-peer", value: 0.31, unit: "times", limit: 0.25}, "figure raise.cycle-of-peer 0.31 times limit 0.25 short"},
	} {
		if got := test.f.String(); got != test.want {
			t.Errorf("%q, wanted %q", got, test.want)
		}
	}
}

func TestNumberNeverHidesAShortfall(t *testing.T) {
	// 1.604 is printed as 1.60, and must still be short of 1.6.
	f := figure{name: "a.b", value: 1.604, unit: "times", limit: 1.6}
	if got := f.String(); got != "figure a.b 1.60 times limit 1.60 short" {
		t.Errorf("%q", got)
	}
}
