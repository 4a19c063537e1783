package mesh

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

const goodResources = `[
 {"id":"state","type":"volume"},
 {"id":"config","type":"file","content":"x","mode":"0600"},
 {"id":"server","type":"process","bundle":"demo","seats":["demo"],"health":{"seat":true},
  "volumes":[{"volume":"state","path":"/var/lib/demo"}],"files":[{"file":"config","path":"/etc/demo.conf"}],
  "env":{"A":"b"},"capabilities":["CAP_NET_BIND_SERVICE"],"limits":{"memory":67108864,"cpu":0.5,"pids":64}},
 {"id":"extra","type":"container","name":"extra","after":["server","other/thing"],"ports":[{"host":80,"container":8080}],
  "policy":"once","stop":{"signal":"SIGINT","grace":"3s"}}
]`

func TestManifestValidate(t *testing.T) {
	long := strings.Repeat("x", 64)
	for name, c := range map[string]struct{ resources, want string }{
		"good":                 {goodResources, ""},
		"unknown type":         {`[{"id":"a","type":"daemon"}]`, `resources[0].type: "daemon" is unknown`},
		"no type":              {`[{"id":"a"}]`, `resources[0].type: is missing`},
		"unknown field":        {`[{"id":"a","type":"volume","colour":"red"}]`, `resources[0]: unknown field "colour"`},
		"duplicate id":         {`[{"id":"a","type":"volume"},{"id":"a","type":"file"}]`, `resources[1].id: "a" is taken by resources[0]`},
		"bad id":               {`[{"id":"../a","type":"volume"}]`, `resources[0].id`},
		"long id":              {`[{"id":"` + long + `","type":"volume"}]`, `64 characters`},
		"dotdot":               {`[{"id":"v","type":"volume"},{"id":"a","type":"process","bundle":"b","volumes":[{"volume":"v","path":"/x/../etc"}]}]`, `resources[1].volumes[0].path: "/x/../etc" has a ".."`},
		"dotdot command":       {`[{"id":"a","type":"process","bundle":"b","command":"../../bin/sh"}]`, `resources[0].command`},
		"absolute command":     {`[{"id":"a","type":"process","bundle":"b","command":"/bin/sh"}]`, `resources[0].command`},
		"relative path":        {`[{"id":"v","type":"volume"},{"id":"a","type":"process","bundle":"b","volumes":[{"volume":"v","path":"x"}]}]`, `no clean absolute path`},
		"over the host":        {`[{"id":"v","type":"volume"},{"id":"a","type":"container","name":"b","volumes":[{"volume":"v","path":"/run/kingpost/seat"}]}]`, `/run/kingpost, which belongs to the host`},
		"over run":             {`[{"id":"v","type":"volume"},{"id":"a","type":"container","name":"b","volumes":[{"volume":"v","path":"/run"}]}]`, `belongs to the host`},
		"over proc":            {`[{"id":"v","type":"volume"},{"id":"a","type":"container","name":"b","volumes":[{"volume":"v","path":"/proc/sys"}]}]`, `/proc, which belongs to the host`},
		"over usr in process":  {`[{"id":"v","type":"volume"},{"id":"a","type":"process","bundle":"b","volumes":[{"volume":"v","path":"/usr"}]}]`, `belongs to the host`},
		"same path":            {`[{"id":"v","type":"volume"},{"id":"a","type":"process","bundle":"b","volumes":[{"volume":"v","path":"/x"},{"volume":"v","path":"/x"}]}]`, `is taken by resources[1].volumes[0]`},
		"no such volume":       {`[{"id":"a","type":"process","bundle":"b","volumes":[{"volume":"v","path":"/x"}]}]`, `there is no volume "v" in module "m"`},
		"file is no volume":    {`[{"id":"v","type":"file"},{"id":"a","type":"process","bundle":"b","volumes":[{"volume":"v","path":"/x"}]}]`, `"v" is a file, not a volume`},
		"root account":         {`[{"id":"a","type":"process","bundle":"b","account":"root"}]`, `resources[0].account: "root" is refused`},
		"uid 0":                {`[{"id":"a","type":"process","bundle":"b","account":"0"}]`, `resources[0].account: "0" is refused; an account is named`},
		"numbered account":     {`[{"id":"a","type":"process","bundle":"b","account":"1000"}]`, `an account is named`},
		"secret path":          {`[{"id":"a","type":"process","bundle":"b","secrets":[{"secret":"s","path":"/run/kingpost/x"}]}]`, `resources[0].secrets[0].path: "/run/kingpost/x" would cover`},
		"secret name":          {`[{"id":"a","type":"process","bundle":"b","secrets":[{"secret":"other/s","path":"/s"}]}]`, `resources[0].secrets[0].secret: `},
		"secret nowhere":       {`[{"id":"a","type":"volume","secrets":[{"secret":"s","path":"/s"}]}]`, `resources[0].secrets: a volume does not have it`},
		"read-only process":    {`[{"id":"a","type":"process","bundle":"b","readOnlyRoot":true}]`, `resources[0].readOnlyRoot: a process does not have it`},
		"capability":           {`[{"id":"a","type":"process","bundle":"b","capabilities":["NET_ADMIN"]}]`, `resources[0].capabilities[0]: "NET_ADMIN" is no capability`},
		"bundle and image":     {`[{"id":"a","type":"process","bundle":"b","image":"c"}]`, `resources[0].image: a process does not have it`},
		"image and bundle":     {`[{"id":"a","type":"container","name":"b","bundle":"c"}]`, `resources[0].bundle: a container does not have it`},
		"no bundle":            {`[{"id":"a","type":"process"}]`, `resources[0].bundle: is missing`},
		"no image":             {`[{"id":"a","type":"container"}]`, `resources[0].name: is missing`},
		"digest":               {`[{"id":"a","type":"process","bundle":"b","digest":"sha256:00"}]`, `resources[0].digest: a manifest carries names only`},
		"source":               {`[{"id":"a","type":"process","bundle":"b","source":"seed"}]`, `resources[0].source`},
		"cycle":                {`[{"id":"a","type":"process","bundle":"b","after":["b"]},{"id":"b","type":"process","bundle":"b","after":["c"]},{"id":"c","type":"process","bundle":"b","after":["m/a"]}]`, `a cycle`},
		"after itself":         {`[{"id":"a","type":"process","bundle":"b","after":["a"]}]`, `a cycle`},
		"after nothing":        {`[{"id":"a","type":"process","bundle":"b","after":["z"]}]`, `resources[0].after[0]: there is no resource "z"`},
		"two holders":          {`[{"id":"a","type":"process","bundle":"b","seats":["s"]},{"id":"b","type":"container","name":"b","seats":["s"]}]`, `resources[1].seats[0]: the seat "s" is held by m/a`},
		"private process":      {`[{"id":"a","type":"process","bundle":"b","network":"private"}]`, `resources[0].network`},
		"port":                 {`[{"id":"a","type":"container","name":"b","ports":[{"host":0,"container":70000}]}]`, `resources[0].ports[0].host: 0 is no port`},
		"same port":            {`[{"id":"a","type":"container","name":"b","ports":[{"host":80,"container":1}]},{"id":"b","type":"container","name":"b","ports":[{"host":80,"container":2}]}]`, `port 80/tcp is published by m/a`},
		"own epoch":            {`[{"id":"a","type":"process","bundle":"b","env":{"KINGPOST_EPOCH":"9"}}]`, `resources[0].env.KINGPOST_EPOCH`},
		"two checks":           {`[{"id":"a","type":"process","bundle":"b","health":{"tcp":"x:1","http":"http://x/"}}]`, `exactly one of`},
		"seat without":         {`[{"id":"a","type":"process","bundle":"b","health":{"seat":true}}]`, `resources[0].health.seat`},
		"unix health":          {`[{"id":"a","type":"process","bundle":"b","health":{"http":"unix:/a/../b:/x"}}]`, `resources[0].health.http`},
		"policy":               {`[{"id":"a","type":"process","bundle":"b","policy":"sometimes"}]`, `resources[0].policy`},
		"signal":               {`[{"id":"a","type":"process","bundle":"b","stop":{"signal":"TERM"}}]`, `resources[0].stop.signal`},
		"grace":                {`[{"id":"a","type":"process","bundle":"b","stop":{"grace":"1h"}}]`, `resources[0].stop.grace`},
		"negative duration":    {`[{"id":"a","type":"process","bundle":"b","stop":{"grace":"-1s"}}]`, `negative`},
		"setuid mode":          {`[{"id":"a","type":"file","mode":"4755"}]`, `resources[0].mode`},
		"memory":               {`[{"id":"a","type":"process","bundle":"b","limits":{"memory":-1}}]`, `resources[0].limits.memory`},
		"volume with command":  {`[{"id":"a","type":"volume","command":"x"}]`, `resources[0].command: a volume does not have it`},
		"duplicate key":        {`[{"id":"a","id":"b","type":"volume"}]`, `resources[0].id: the key stands twice`},
		"name with a NUL":      {`[{"id":"a\u0000","type":"volume"}]`, `resources[0].id`},
		"empty resources okay": {`[]`, ``},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := DecodeManifest(strings.NewReader(`{"module":"m","resources":` + c.resources + `}`))
			switch {
			case c.want == "" && err != nil:
				t.Fatal(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Fatalf("got %v, want %q", err, c.want)
			}
		})
	}
	t.Run("10 MB", func(t *testing.T) {
		_, err := DecodeManifest(strings.NewReader(`{"module":"m","description":"` + strings.Repeat("x", 10<<20) + `"}`))
		if err == nil || !strings.Contains(err.Error(), "too large") {
			t.Fatal(err)
		}
	})
	t.Run("trailing", func(t *testing.T) {
		if _, err := DecodeManifest(strings.NewReader(`{"module":"m","resources":[]}]`)); err == nil {
			t.Fatal("accepted")
		}
	})
}

// The module host declares the host itself, in one form and no other.
func TestHostModule(t *testing.T) {
	const good = `{"id":"server","type":"process","bundle":"mesh-host"}`
	for name, c := range map[string]struct {
		resources string
		ok        bool
	}{
		"good":          {`[` + good + `]`, true},
		"nothing":       {`[]`, false},
		"two":           {`[` + good + `,{"id":"data","type":"volume"}]`, false},
		"other id":      {`[{"id":"host","type":"process","bundle":"mesh-host"}]`, false},
		"other bundle":  {`[{"id":"server","type":"process","bundle":"web"}]`, false},
		"container":     {`[{"id":"server","type":"container","name":"mesh-host"}]`, false},
		"arguments":     {`[{"id":"server","type":"process","bundle":"mesh-host","args":["--verbose"]}]`, false},
		"a seat":        {`[{"id":"server","type":"process","bundle":"mesh-host","seats":["vault"]}]`, false},
		"an identity":   {`[{"id":"server","type":"process","bundle":"mesh-host","identity":true}]`, false},
		"environment":   {`[{"id":"server","type":"process","bundle":"mesh-host","env":{"A":"b"}}]`, false},
		"a file module": {`[{"id":"server","type":"file","content":"x"}]`, false},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := DecodeManifest(strings.NewReader(`{"module":"host","resources":` + c.resources + `}`)); (err == nil) != c.ok {
				t.Errorf("as a manifest: %v", err)
			}
			digest := `"digest":"sha256:` + strings.Repeat("0a", 32) + `",`
			text := strings.ReplaceAll(c.resources, `{"id"`, `{"module":"host",`+digest+`"id"`)
			d, err := DecodeDeclaration(strings.NewReader(declarationText(text)))
			if want := c.ok || name == "nothing"; (err == nil) != want {
				t.Errorf("declared: %v", err)
			}
			if c.ok && d.Host() == nil {
				t.Error("the declared host is not found")
			}
		})
	}
}

func declarationText(resources string) string {
	return `{"mesh":"home","node":"alpha","epoch":1,"revision":2,"resources":` + resources + `}`
}

func TestDeclarationValidate(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	for name, c := range map[string]struct{ resources, want string }{
		"good":         {`[{"module":"m","id":"a","type":"process","bundle":"b","digest":"` + digest + `","source":"store"}]`, ""},
		"bad digest":   {`[{"module":"m","id":"a","type":"process","bundle":"b","digest":"md5:00"}]`, `resources[0].digest`},
		"upper digest": {`[{"module":"m","id":"a","type":"process","bundle":"b","digest":"` + strings.ToUpper(digest) + `"}]`, `resources[0].digest`},
		"no digest":    {`[{"module":"m","id":"a","type":"container","name":"b"}]`, `resources[0].digest: the digest is missing`},
		"source":       {`[{"module":"m","id":"a","type":"container","name":"b","digest":"` + digest + `","source":"web"}]`, `resources[0].source`},
		"no module":    {`[{"id":"a","type":"volume"}]`, `resources[0].module`},
		"seat twice": {`[{"module":"m","id":"a","type":"container","name":"b","digest":"` + digest + `","seats":["controller"]},
			{"module":"n","id":"a","type":"container","name":"b","digest":"` + digest + `","seats":["controller"]}]`, `held by m/a`},
		"cycle over modules": {`[{"module":"m","id":"a","type":"container","name":"b","digest":"` + digest + `","after":["n/a"]},
			{"module":"n","id":"a","type":"container","name":"b","digest":"` + digest + `","after":["m/a"]}]`, `a cycle`},
		"after what is not here": {`[{"module":"m","id":"a","type":"container","name":"b","digest":"` + digest + `","after":["z/z"]}]`, ``},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := DecodeDeclaration(strings.NewReader(declarationText(c.resources)))
			switch {
			case c.want == "" && err != nil:
				t.Fatal(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Fatalf("got %v, want %q", err, c.want)
			}
		})
	}
}

func FuzzDecodeManifest(f *testing.F) {
	f.Add([]byte(`{"module":"m","resources":` + goodResources + `}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeManifest(strings.NewReader(string(b)))
		if err != nil {
			return
		}
		out, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DecodeManifest(strings.NewReader(string(out))); err != nil {
			t.Fatalf("accepted, but not what it is written as: %s: %v", out, err)
		}
		for _, r := range m.Resources {
			for _, v := range append(r.Volumes, r.Files...) {
				if strings.Contains(v.Path+"/", "/../") || within(v.Path, PathRun) {
					t.Fatalf("accepted the path %q", v.Path)
				}
			}
			if slices.Contains(SystemAccounts(), r.Account) || r.Account != "" && r.Account[0] <= '9' || strings.Contains(r.Command, "..") && hasDotDot(r.Command) && r.Type == KindProcess {
				t.Fatalf("accepted %+v", r)
			}
		}
	})
}

func FuzzDecodeDeclaration(f *testing.F) {
	f.Add([]byte(declarationText(`[{"module":"m","id":"a","type":"container","name":"b","digest":"sha256:` + strings.Repeat("0a", 32) + `","after":["n/a"]}]`)))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := DecodeDeclaration(strings.NewReader(string(b)))
		if err != nil {
			return
		}
		out, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DecodeDeclaration(strings.NewReader(string(out))); err != nil {
			t.Fatalf("accepted, but not what it is written as: %s: %v", out, err)
		}
	})
}
