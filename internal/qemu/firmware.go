package qemu

import (
	"fmt"
	"os"
	"runtime"
	"strings"
)

// Firmware is UEFI firmware: code, and the template of its variables, of which every machine gets a copy.
type Firmware struct {
	Code, Vars string
	// SMM is set for firmware that keeps its variables in system management mode, as Secure Boot needs.
	SMM bool
}

// firmwares lists where Debian's packages ovmf and qemu-efi-aarch64 put UEFI firmware, the best first.
var firmwares = map[string][]Firmware{
	"amd64": {
		{Code: "/usr/share/OVMF/OVMF_CODE_4M.fd", Vars: "/usr/share/OVMF/OVMF_VARS_4M.fd"},
		{Code: "/usr/share/OVMF/OVMF_CODE.fd", Vars: "/usr/share/OVMF/OVMF_VARS.fd"},
	},
	"arm64": {{Code: "/usr/share/AAVMF/AAVMF_CODE.fd", Vars: "/usr/share/AAVMF/AAVMF_VARS.fd"}},
}

var firmwarePackages = map[string]string{"amd64": "ovmf", "arm64": "qemu-efi-aarch64"}

// FindFirmware finds UEFI firmware for arch on this machine.
func FindFirmware(arch string) (*Firmware, error) {
	var tried []string
	for _, f := range firmwares[arch] {
		if exists(f.Code) && exists(f.Vars) {
			return &f, nil
		}
		tried = append(tried, f.Code)
	}
	if tried == nil {
		return nil, fmt.Errorf("no UEFI firmware is known for the architecture %q; amd64 and arm64 are", arch)
	}
	return nil, fmt.Errorf("no UEFI firmware for %s (looked for %s); install the Debian package %s", arch, strings.Join(tried, ", "), firmwarePackages[arch])
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func hostArch() string { return runtime.GOARCH }
