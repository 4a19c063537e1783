package flash

import (
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"time"

	"kingpost/internal/release"
)

// Receipt is what a flash leaves as a proof: what was put where, that it was read back, and when.
type Receipt struct {
	Kind    string         `json:"kind"` // ReceiptKind
	Image   ReceiptImage   `json:"image"`
	Target  ReceiptTarget  `json:"target"`
	Disk    *ReceiptDisk   `json:"disk,omitempty"`
	Written ReceiptWritten `json:"written"`
	// ReadBack is the SHA-256 of the block map of what was read back from the medium: the same as of the image, whose
	// map anybody can make.
	ReadBack   string    `json:"readBack"`
	NodeConfig string    `json:"nodeConfig,omitempty"` // SHA-256 of the node.yaml that was put in
	Claim      string    `json:"claim,omitempty"`      // fingerprint of the claim key in it
	Started    time.Time `json:"started"`
	Finished   time.Time `json:"finished"`
	Program    string    `json:"program"` // kingpost's version
}

// ReceiptKind tells a receipt from other JSON.
const ReceiptKind = "flash-receipt"

// ReceiptImage is the image.
type ReceiptImage struct {
	Name     string   `json:"name"`
	Kind     Kind     `json:"kind"`
	Size     int64    `json:"size"`             // bytes
	Digest   string   `json:"digest,omitempty"` // "sha256:HEX" of its bytes
	Map      string   `json:"map"`              // "sha256:HEX" of its block map
	Verified Verified `json:"verified"`
	By       string   `json:"verifiedBy,omitempty"` // what vouched for it
}

// ReceiptTarget is the target.
type ReceiptTarget struct {
	Path       string `json:"path"`
	Device     bool   `json:"device"`
	Model      string `json:"model,omitempty"`
	Serial     string `json:"serial,omitempty"`
	WWN        string `json:"wwn,omitempty"`
	Size       int64  `json:"size"` // bytes
	SectorSize int    `json:"sectorSize"`
}

// ReceiptDisk is the disk as it is known from now on.
type ReceiptDisk struct {
	GUID string `json:"guid"`
	ESP  string `json:"esp"`
	Data string `json:"data"`
}

// ReceiptWritten counts.
type ReceiptWritten struct {
	Mapped    int64 `json:"mapped"` // bytes of the image that are not zero
	Written   int64 `json:"written"`
	Converted bool  `json:"converted,omitempty"` // the ESP was made anew for other sectors
}

// NewReceipt fills in what a result says; the caller adds names, times and the target.
func NewReceipt(r *Result) Receipt {
	m := "sha256:" + r.Map.Digest()
	out := Receipt{Kind: ReceiptKind, ReadBack: m, Image: ReceiptImage{Kind: r.Image.Kind, Size: r.Image.Size, Map: m, Verified: r.Verified},
		Written: ReceiptWritten{Mapped: r.Map.Mapped(), Written: r.Written, Converted: r.Converted}}
	if r.Digest != "" {
		out.Image.Digest = "sha256:" + r.Digest
	}
	if r.Table != nil {
		out.Disk = &ReceiptDisk{GUID: r.Table.DiskGUID.String()}
		for _, p := range r.Table.Partitions {
			switch p.Name {
			case release.PartESP:
				out.Disk.ESP = p.GUID.String()
			case release.PartData:
				out.Disk.Data = p.GUID.String()
			}
		}
	}
	return out
}

// Encode is the receipt as a file, and where key is not nil its Ed25519 signature over exactly these bytes:
//
//	openssl pkeyutl -verify -rawin -pubin -inkey KEY.pub -in RECEIPT -sigfile RECEIPT.sig
func (r Receipt) Encode(key ed25519.PrivateKey) (text, signature []byte, err error) {
	text, err = json.MarshalIndent(r, "", "  ")
	if err != nil {
		return nil, nil, fmt.Errorf("write the receipt: %w", err)
	}
	text = append(text, '\n')
	if key != nil {
		signature = ed25519.Sign(key, text)
	}
	return text, signature, nil
}
