package mesh

import "reflect"

// hostForm is the one form of the host's own resource in a manifest.
const hostForm = `{"id": "` + HostResource + `", "type": "process", "bundle": "` + HostBundle + `"}`

// validateHost accepts the host's own resource. How it is started, as whom and when again is the launcher's, so a
// manifest that says anything of it would be without effect; and whatever else had the host's name would have its rights.
func (r *Resource) validateHost(p *problems, at string) {
	plain := Resource{ID: HostResource, Type: KindProcess, Bundle: HostBundle, Digest: r.Digest, Source: r.Source}
	if !reflect.DeepEqual(*r, plain) {
		p.add(at, "the module %s declares the host itself and has the form %s with nothing added; choose another name for other modules", HostModule, hostForm)
	}
}

// Host is the declared host, nil when the declaration leaves it to the release.
func (d *Declaration) Host() *Declared {
	for i := range d.Resources {
		if d.Resources[i].Module == HostModule {
			return &d.Resources[i]
		}
	}
	return nil
}
