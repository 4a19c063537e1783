package mesh

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// What the host or a process's root owns is covered by nothing that is mounted: no volume, no file, no secret.
func TestMountPaths(t *testing.T) {
	const process, container = `"type":"process","bundle":"b"`, `"type":"container","name":"b"`
	for path, refused := range map[string]string{ // the kinds that refuse it
		"/": "PC", "/etc/passwd": "PC", "/etc/group": "PC", "/etc/shadow": "PC", "/etc/hosts": "PC", "/etc/resolv.conf": "PC", "/etc": "PC",
		"/proc": "PC", "/proc/1": "PC", "/sys/fs": "PC", "/dev/shm": "PC", "/run": "PC", "/run/kingpost/host": "PC", "/boot": "PC",
		"/var": "PC", "/var/lib": "PC", "/var/lib/kingpost": "PC", "/var/lib/kingpost/x": "PC",
		"/usr": "P", "/usr/bin/env": "P", "/bin": "P", "/lib64/x": "P", "/app": "P", "/etc/ssl/certs": "P", "/etc/nsswitch.conf": "P",
		"/etc/web.yaml": "", "/etc/passwd2": "", "/etc/nats/server.conf": "", "/var/lib/web": "", "/run/web": "", "/srv": "", "/tmp/x": "",
	} {
		for letter, form := range map[string]string{"P": process, "C": container} {
			for list, text := range map[string]string{
				"volumes": `[{"id":"v","type":"volume"},{"id":"a",%s,"volumes":[{"volume":"v","path":%q}]}]`,
				"files":   `[{"id":"v","type":"file"},{"id":"a",%s,"files":[{"file":"v","path":%q}]}]`,
				"secrets": `[{"id":"v","type":"file"},{"id":"a",%s,"secrets":[{"secret":"v","path":%q}]}]`,
			} {
				t.Run(letter+" "+list+" "+path, func(t *testing.T) {
					_, err := DecodeManifest(strings.NewReader(`{"module":"m","resources":` + fmt.Sprintf(text, form, path) + `}`))
					if !strings.Contains(refused, letter) {
						if err != nil {
							t.Fatal(err)
						}
						return
					}
					for _, want := range []string{"resources[1]." + list + "[0].path: ", fmt.Sprintf("%q", path), "give m/a another path"} {
						if err == nil || !strings.Contains(err.Error(), want) {
							t.Fatalf("got %v, want %s", err, want)
						}
					}
				})
			}
		}
	}
}

func TestAccountNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"web": true, "a": true, "web-2": true, "rooted": true, "x0": true,
		"root": false, "toor": false, "nobody": false, "nogroup": false, "root ": false, " root": false, "Root": false, "root\n": false,
		"0": false, "00": false, "0x0": false, "0b0": false, "0o0": false, "1000": false, "1e3": false, "-1": false, "+0": false,
		"65534": false, "4294967296": false, "root:x": false, "a:b": false, "a/b": false, "a.b": false, "a,b": false, "rооt": false,
	} {
		t.Run(name, func(t *testing.T) {
			err := checkAccount(name)
			if (err == nil) != ok {
				t.Errorf("%q: %v", name, err)
			}
			for _, kind := range []string{`"type":"process","bundle":"b"`, `"type":"container","name":"b"`, `"type":"volume"`} {
				_, err := DecodeManifest(strings.NewReader(fmt.Sprintf(`{"module":"m","resources":[{"id":"a",%s,"account":%s}]}`, kind, asJSON(t, name))))
				if (err == nil) != ok {
					t.Errorf("%q of %s: %v", name, kind, err)
				}
			}
		})
	}
}

func asJSON(t *testing.T, s string) string {
	t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
