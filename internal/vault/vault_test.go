package vault

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"pgregory.net/rapid"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/verbs"
)

func openTest(t testing.TB, dir string) *Vault {
	t.Helper()
	v, err := Open(dir, func() time.Time { return time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC) })
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func who(role mesh.Role, name string) mesh.Identity {
	return mesh.Identity{Mesh: "home", Role: role, Name: name}
}

// grep lists the files below dir that contain text.
func grep(t testing.TB, dir, text string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(p)
		for _, form := range []string{text, base64.StdEncoding.EncodeToString([]byte(text))} {
			if bytes.Contains(data, []byte(form)) {
				found = append(found, p)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

const topSecret = "the-value-that-nobody-may-see"

func TestSecrets(t *testing.T) {
	dir := t.TempDir()
	v := openTest(t, dir)
	for i := range 3 * keepVersions {
		res, err := v.Put("web/password", []byte(fmt.Sprint(topSecret, i)))
		if err != nil || res.Version != uint64(i+1) {
			t.Fatalf("%+v, %v", res, err)
		}
	}
	v = openTest(t, dir)
	value, n, err := v.Get("web/password", 0)
	if err != nil || n != 3*keepVersions || string(value) != fmt.Sprint(topSecret, n-1) {
		t.Fatalf("%d, %v", n, err)
	}
	if value, _, err := v.Get("web/password", n-2); err != nil || string(value) != fmt.Sprint(topSecret, n-3) {
		t.Fatal(err)
	}
	for name, want := range map[string]uint64{"web/password": 1, "web/other": 0} {
		var ce *mesh.CallError
		if _, _, err := v.Get(name, want); !errors.As(err, &ce) || ce.Code != mesh.CodeNotFound {
			t.Errorf("%s version %d: %v", name, want, err)
		}
	}
	if files := grep(t, dir, topSecret); files != nil {
		t.Fatalf("the value lies open in %v", files)
	}
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if fi, ierr := d.Info(); err == nil && ierr == nil && !d.IsDir() && fi.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", p, fi.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestDamage(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, dir string){
		"exchanged": func(t *testing.T, dir string) { // one secret's file under another one's name
			data, err := os.ReadFile(filepath.Join(dir, "secrets/web/other.json"))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "secrets/web/password.json"), data, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		"flipped": func(t *testing.T, dir string) {
			p := filepath.Join(dir, "secrets/web/password.json")
			var r secretRecord
			data, err := os.ReadFile(p)
			if err == nil {
				err = json.Unmarshal(data, &r)
			}
			if err != nil {
				t.Fatal(err)
			}
			r.Versions[0].Sealed[20] ^= 1
			if data, err = json.Marshal(r); err == nil {
				err = os.WriteFile(p, data, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		"cut": func(t *testing.T, dir string) {
			if err := os.Truncate(filepath.Join(dir, "secrets/web/password.json"), 20); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			v := openTest(t, dir)
			for _, n := range []string{"web/password", "web/other"} {
				if _, err := v.Put(n, []byte(topSecret+n)); err != nil {
					t.Fatal(err)
				}
			}
			damage(t, dir)
			value, _, err := v.Get("web/password", 0)
			if err == nil || strings.Contains(err.Error(), topSecret) {
				t.Fatalf("%q, %v", value, err)
			}
		})
	}
	dir := t.TempDir()
	if _, err := openTest(t, dir).Put("web/password", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, keyFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, time.Now); err == nil || !strings.Contains(err.Error(), "restore the file") {
		t.Fatalf("a vault whose key is lost makes another: %v", err)
	}
}

func TestSign(t *testing.T) {
	dir := t.TempDir()
	message := []byte("release 7")
	first, err := openTest(t, dir).Sign("web/release", message)
	if err != nil {
		t.Fatal(err)
	}
	second, err := openTest(t, dir).Sign("web/release", message)
	if err != nil || second.Public != first.Public {
		t.Fatalf("after a restart another key signs: %v", err)
	}
	der, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(first.Public, "ed25519:"))
	if err != nil {
		t.Fatal(err)
	}
	pub, err := x509.ParsePKIXPublicKey(der)
	if err != nil || !ed25519.Verify(pub.(ed25519.PublicKey), message, second.Signature) {
		t.Fatalf("the signature does not verify: %v", err)
	}
	if other, err := openTest(t, dir).Sign("web/other", message); err != nil || other.Public == first.Public {
		t.Fatalf("two names have one key: %v", err)
	}
}

// TestWhoMay asks every verb by everybody, and reads the log for values.
func TestWhoMay(t *testing.T) {
	var logged bytes.Buffer
	log := logrus.New()
	log.SetOutput(&logged)
	log.SetLevel(logrus.DebugLevel)
	dir := t.TempDir()
	v := openTest(t, dir)
	srv := v.Server("home", log)
	for _, n := range []string{"web/password", "host/mesh-ca"} {
		if _, err := v.Put(n, []byte(topSecret)); err != nil {
			t.Fatal(err)
		}
	}
	op := who(mesh.RoleOperator, "ann")
	web := who(mesh.RoleComponent, "web")
	tests := []struct {
		caller       mesh.Identity
		verb, params string
		code         string
	}{
		{op, "get", `{"name":"web/password"}`, ""},
		{op, "get", `{"name":"host/mesh-ca"}`, mesh.CodeDenied},
		{op, "put", `{"name":"host/mesh-ca","value":"x"}`, mesh.CodeDenied},
		{op, "sign", `{"name":"host/mesh-ca","message":"aGVsbG8="}`, mesh.CodeDenied},
		{web, "get", `{"name":"web/password"}`, ""},
		{web, "put", `{"name":"web/new","value":"` + topSecret + `"}`, ""},
		{web, "sign", `{"name":"web/key","message":"aGVsbG8="}`, ""},
		{web, "get", `{"name":"webb/password"}`, mesh.CodeDenied},
		{web, "get", `{"name":"host/mesh-ca"}`, mesh.CodeDenied},
		{web, "put", `{"name":"mail/password","value":"` + topSecret + `"}`, mesh.CodeDenied},
		{web, "sign", `{"name":"mail/key","message":"aGVsbG8="}`, mesh.CodeDenied},
		{who(mesh.RoleComponent, "we"), "get", `{"name":"web/password"}`, mesh.CodeDenied},
		{who(mesh.RoleComponent, "host"), "get", `{"name":"host/mesh-ca"}`, ""},
		{who(mesh.RoleComponent, "host"), "get", `{"name":"web/password"}`, mesh.CodeDenied},
		{who(mesh.RoleViewer, "vic"), "get", `{"name":"web/password"}`, mesh.CodeDenied},
		{who(mesh.RoleViewer, "vic"), "list", `{}`, mesh.CodeDenied},
		{who(mesh.RoleNode, "beta"), "get", `{"name":"host/mesh-ca"}`, mesh.CodeDenied},
		{op, "get", `{"name":"../key"}`, mesh.CodeBadParams},
		{op, "get", `{"name":"web/../../key"}`, mesh.CodeBadParams},
		{op, "get", `{"name":"web"}`, mesh.CodeBadParams},
		{op, "put", `{"name":"web/x"}`, mesh.CodeBadParams},
		{op, "put", `{"name":"web/x","value":"` + topSecret + `","bytes":"aGVsbG8="}`, mesh.CodeBadParams},
		{op, "put", `{"name":"web/x","value":"` + strings.Repeat("x", maxValue+1) + `"}`, mesh.CodeBadParams},
		{op, "put", `{"name":"web/x","value":["` + topSecret + `"]}`, mesh.CodeBadParams},
		{op, "put", `{"name":"web/x","bytes":"` + topSecret + `!"}`, mesh.CodeBadParams},
		{op, "sign", `{"name":"web/x"}`, mesh.CodeBadParams},
	}
	for _, tt := range tests {
		resp := srv.Call(t.Context(), tt.caller, tt.verb, mesh.CallRequest{Params: json.RawMessage(tt.params)})
		code := ""
		if resp.Error != nil {
			code = resp.Error.Code
			if strings.Contains(resp.Error.Message, topSecret) {
				t.Errorf("%s %.80s: the message carries the value", tt.verb, tt.params)
			}
		}
		if code != tt.code {
			t.Errorf("%s: %s %.80s: %q, want %q", tt.caller, tt.verb, tt.params, code, tt.code)
		}
	}
	if strings.Contains(logged.String(), topSecret) {
		t.Error("the log carries the value")
	}
	var res verbs.SecretsResult
	resp := srv.Call(t.Context(), web, "list", mesh.CallRequest{})
	if err := json.Unmarshal(resp.Result, &res); err != nil || len(res.Secrets) != 2 || len(res.Keys) != 1 || strings.Contains(string(resp.Result), topSecret) {
		t.Errorf("web lists %s, %v", resp.Result, err)
	}
}

func TestProbesChangeNothing(t *testing.T) {
	dir := t.TempDir()
	srv := openTest(t, dir).Server("home", nil)
	before, err := filepath.Glob(dir + "/*/*")
	if err != nil {
		t.Fatal(err)
	}
	for verb, params := range map[string]string{"put": `{"name":"a/b","value":"c"}`, "sign": `{"name":"a/b","message":"aGVsbG8="}`} {
		if resp := srv.Call(t.Context(), who(mesh.RoleOperator, "ann"), verb, mesh.CallRequest{Probe: true, Params: json.RawMessage(params)}); resp.Error != nil {
			t.Error(resp.Error)
		}
	}
	after, err := filepath.Glob(dir + "/*/*")
	if err != nil || len(after) != len(before) {
		t.Fatalf("probes made %v, %v", after, err)
	}
}

// TestBinaryValues takes any bytes through put and get.
func TestBinaryValues(t *testing.T) {
	srv := openTest(t, t.TempDir()).Server("home", nil)
	op := who(mesh.RoleOperator, "ann")
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.SliceOfN(rapid.Byte(), 1, 100).Draw(t, "value")
		params, err := json.Marshal(verbs.PutParams{Name: "a/b", Bytes: value})
		if err != nil {
			t.Fatal(err)
		}
		if resp := srv.Call(t.Context(), op, "put", mesh.CallRequest{Params: params}); resp.Error != nil {
			t.Fatal(resp.Error)
		}
		resp := srv.Call(t.Context(), op, "get", mesh.CallRequest{Params: json.RawMessage(`{"name":"a/b"}`)})
		var res verbs.GetResult
		if resp.Error != nil || json.Unmarshal(resp.Result, &res) != nil {
			t.Fatal(resp.Error)
		}
		if got := append([]byte(res.Value), res.Bytes...); !bytes.Equal(got, value) {
			t.Fatalf("%q became %q", value, got)
		}
	})
}
