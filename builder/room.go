package builder

import (
	"fmt"
	"strings"

	"kingpost/internal/fat32"
	"kingpost/internal/release"
)

// Room says how full a place is that a release has on a disk of its recipe.
type Room struct {
	Place string `json:"place"` // "slot" or "esp"
	Size  int64  `json:"size"`  // bytes
	Used  int64  `json:"used"`  // bytes
	// More is how many releases of this size fit beside it.
	More int64 `json:"more"`
}

// Percent is how full it is, rounded up.
func (r Room) Percent() int64 { return (r.Used*100 + r.Size - 1) / r.Size }

// slotRoom refuses a root that does not fit a slot.
func slotRoom(r *Recipe, size int64) (Room, error) {
	if size > int64(r.Slots.Root) {
		return Room{}, fmt.Errorf("the root image needs %s, a slot has %s: raise slots.root, or take modules, firmware or seed entries out of the recipe",
			mib(size), r.Slots.Root)
	}
	// The other slot is there for one more, whatever this one leaves free.
	return Room{Place: "slot", Size: int64(r.Slots.Root), Used: size, More: 1}, nil
}

// espRoom refuses an ESP on which the release, or beside it the next one, does not fit: then no node could be upgraded.
func espRoom(r *Recipe, b *bootFiles, files []fat32.File) (Room, error) {
	const raise = "raise slots.esp, or take modules out of debian.initrd"
	u, err := fat32.Room(int64(r.Slots.ESP), 512, files)
	if err != nil {
		return Room{}, fmt.Errorf("%s: %w; %s", release.PartESP, err, raise)
	}
	next := (int64(len(b.uki))+u.Cluster-1)/u.Cluster*u.Cluster + 2*u.Cluster // its UKI, its entry, and a folder that grows
	if need := u.Used + next; need > u.Size {
		return Room{}, fmt.Errorf("%s: the release needs %s, and the next one beside it %s; there is room for %s of the %s of slots.esp: %s",
			release.PartESP, mib(u.Used), mib(next), mib(u.Size), r.Slots.ESP, raise)
	}
	return Room{Place: "esp", Size: u.Size, Used: u.Used, More: (u.Size - u.Used) / next}, nil
}

// fill works out how full the places of the recipe's disk are.
func (b *Built) fill() error {
	slot, err := slotRoom(b.recipe, b.root.Size)
	if err != nil {
		return err
	}
	files, err := b.espFiles()
	if err != nil {
		return err
	}
	esp, err := espRoom(b.recipe, b.boot, files)
	if err != nil {
		return err
	}
	b.room = []Room{slot, esp}
	return nil
}

// forecast says it in a few words.
func forecast(rooms []Room) string {
	var words []string
	for _, r := range rooms {
		words = append(words, fmt.Sprintf("%s %d%% full", r.Place, r.Percent()))
		if r.Place == "esp" {
			words[len(words)-1] += fmt.Sprintf(", room for %d more", r.More)
		}
	}
	return strings.Join(words, ", ")
}
