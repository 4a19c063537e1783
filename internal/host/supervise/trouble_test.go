package supervise

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kingpost/internal/mesh"
)

// State files of every age and condition: what is older is read, what is damaged or from the future is set aside, kept,
// and does not keep the host from coming up.
func TestStateOfAnyFormat(t *testing.T) {
	for name, tt := range map[string]struct {
		text  string
		aside string // the suffix under which it is kept; "" for one that is read
		epoch uint64
	}{
		"before there was a number": {`{"epoch":7,"units":{"m/a":{"held":true}}}`, "", 7},
		"of today":                  {`{"format":1,"epoch":7,"units":{"m/a":{"held":true}}}`, "", 7},
		"with what is unknown":      {`{"format":1,"epoch":7,"future":[1],"units":{"m/a":{"held":true,"more":1}}}`, "", 7},
		"newer":                     {`{"format":2,"epoch":7,"units":{"m/a":{"held":true}}}`, ".format-2", 7},
		"newer, of another shape":   {`{"format":99,"epoch":{"term":7},"units":[1,2]}`, ".format-99", 0},
		"cut":                       {`{"format":1,"epoch":7,"uni`, ".bad", 0},
		"empty":                     {``, ".bad", 0},
		"zeros":                     {"\x00\x00\x00\x00", ".bad", 0},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state.json")
			if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			f, warning, err := openState(path)
			if err != nil {
				t.Fatal(err)
			}
			if f.epoch() != tt.epoch {
				t.Errorf("the epoch is %d, want %d", f.epoch(), tt.epoch)
			}
			if (warning != "") != (tt.aside != "") || f.get("m/a").Held != (tt.aside == "") {
				t.Errorf("it says %q, and holds %v", warning, f.get("m/a").Held)
			}
			if tt.aside != "" {
				if b, err := os.ReadFile(path + tt.aside); err != nil || string(b) != tt.text {
					t.Errorf("kept is %q, %v", b, err)
				}
			}
			if err := f.update(func(d *diskState) { d.Epoch++ }); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestEpochIsFoundElsewhere(t *testing.T) {
	f, _, err := openState(filepath.Join(t.TempDir(), "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	f.atLeast(5)
	f.atLeast(3)
	if e, err := f.nextEpoch(); e != 6 || err != nil {
		t.Errorf("the next epoch is %d, %v", e, err)
	}
}

// A lost accounts file is made anew from who owns what, and no number is given out twice.
func TestAccountsAreMadeAnew(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("gives files to other accounts, which root alone may")
	}
	for name, text := range map[string]string{"cut": `{"next": 20`, "empty": "", "newer": `{"format":9,"uids":{"web":20000}}`} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path, volumes := filepath.Join(dir, "accounts.json"), filepath.Join(dir, "volumes")
			for v, uid := range map[string]int{"web/data": 20003, "web/more": 20003, "db/data": 20001, "two/a": 20005, "two/b": 20006, "odd/x": 0} {
				if err := os.MkdirAll(filepath.Join(volumes, v), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.Lchown(filepath.Join(volumes, v), uid, uid); err != nil {
					t.Fatal(err)
				}
			}
			left := filepath.Join(volumes, "web/data/left")
			if err := os.WriteFile(left, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Lchown(left, 20044, 20044); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			sp := &spec{Declared: mesh.Declared{Module: "cache", Resource: mesh.Resource{ID: "server"}}}
			a, warning, err := openAccounts(path, volumes, []*runRecord{{Spec: sp, UID: 20007}})
			if err != nil || !strings.Contains(warning, "made anew") {
				t.Fatalf("%q, %v", warning, err)
			}
			for key, want := range map[string]int{"web": 20003, "db": 20001, "cache": 20007, "two": 20045, "fresh": 20046} {
				if uid, err := a.uid(key); uid != want || err != nil {
					if key == "two" || key == "fresh" { // in either order
						if uid == 20045 || uid == 20046 {
							continue
						}
					}
					t.Errorf("the account %s has %d, want %d: %v", key, uid, want, err)
				}
			}
			if b, err := os.ReadFile(path + ".bad"); err != nil || string(b) != text {
				t.Errorf("kept is %q, %v", b, err)
			}
			again, warning, err := openAccounts(path, volumes, nil)
			if err != nil || warning != "" || fmt.Sprint(again.UIDs) != fmt.Sprint(a.UIDs) {
				t.Errorf("read again: %v, %q, %v", again.UIDs, warning, err)
			}
		})
	}
}
