package dps

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/stayput-dev/stayput/agent/boot"
	"github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
)

// bootSlack is what has to stay free on the boot partition beside the new UKI: room for directories, the loader's random
// seed, and for firmware that dislikes a full FAT. In bytes.
const bootSlack = 1 << 20

// Check tells whether the image can be staged here. It changes nothing.
func (s *Scheme) Check(ctx context.Context, image osimage.Config) error {
	return s.withView(ctx, "checking the image", func(v *view) error { return s.check(ctx, v, image) })
}

// withView looks, does something, and closes the view.
func (s *Scheme) withView(ctx context.Context, doing string, do func(*view) error) error {
	v, err := s.look(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}

	if err := errors.Join(do(&v), v.files.Close()); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}

	return nil
}

func (s *Scheme) check(ctx context.Context, v *view, image osimage.Config) error {
	return firstRefusal(
		func() error { return s.checkImage(v, image) },
		func() error { return checkSlots(v) },
		func() error { return checkVersion(v, image) },
		func() error { return checkOrder(v, image) },
		func() error { return checkSizes(v, image) },
		func() error { return checkStaged(ctx, v) },
		func() error { return checkBootSpace(v, image) },
	)
}

func firstRefusal(checks ...func() error) error {
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}

	return nil
}

func (s *Scheme) checkImage(v *view, image osimage.Config) error {
	if err := image.Validate(); err != nil {
		return slots.Refuse(v1alpha1.ReasonImageInvalid, "%v", err)
	}

	if image.Architecture != s.architecture {
		return slots.Refuse(v1alpha1.ReasonWrongArchitecture, "image %s is made for %s and this machine is %s; use an image "+
			"that is built for it", image.Label(), image.Architecture, s.architecture)
	}

	if image.Scheme != osimage.SchemeDPS {
		return slots.Refuse(v1alpha1.ReasonSchemeUnsupported, "image %s is made for slots of the scheme %s and this machine's are %s; "+
			"use an image of the same scheme", image.Label(), image.Scheme, osimage.SchemeDPS)
	}

	if data, _ := image.Data(); data.Role != v.place.Role {
		return slots.Refuse(v1alpha1.ReasonSchemeUnsupported, "image %s has a %s file system and this machine runs from a %s "+
			"slot; use an image of the same layout", image.Label(), data.Role, v.place.Role)
	}

	return nil
}

// checkSlots guards the running and the known-good slot: the spare slot may be written only while the running one is
// committed.
func checkSlots(v *view) error {
	running, spare := v.state.Running, v.state.Spare

	switch {
	case running.Boot == slots.Good:
		return nil
	case running.Boot == slots.NoEntry:
		return slots.Refuse(v1alpha1.ReasonBootEntryConflict, "no entry in %s of the boot partition starts running slot %s, so "+
			"nothing could fall back to it; put its unified kernel image there", linuxDir, running.Name)
	case spare.Boot == slots.Good:
		return slots.Refuse(v1alpha1.ReasonNoSpareSlot, "slot %s is the only committed one and the running slot %s is not "+
			"(%s): writing it would leave nothing to fall back to; wait until the boot is committed, or boot slot %s",
			spare.Name, running.Name, running.Entry, spare.Name)
	default:
		return slots.Refuse(v1alpha1.ReasonNoSpareSlot, "neither slot is committed (running slot %s: %s); commit the running "+
			"one with `systemd-bless-boot good`, or repair the machine", running.Name, running.Entry)
	}
}

func checkVersion(v *view, image osimage.Config) error {
	running := v.state.Running

	if image.RootHash == v.runningHash() {
		return slots.Refuse(v1alpha1.ReasonVersionNotNewer, "the image has the root hash %s of running slot %s: two slots "+
			"cannot hold the same file system", image.RootHash, running.Name)
	}

	if slots.CompareVersions(image.Version, running.Version) <= 0 {
		return slots.Refuse(v1alpha1.ReasonVersionNotNewer, "version %s is not newer than the running %s: the boot loader "+
			"starts the newest version, so it would never boot; give it a higher version", image.Version, running.Version)
	}

	if image.MinSourceVersion != "" && slots.CompareVersions(running.Version, image.MinSourceVersion) < 0 {
		return slots.Refuse(v1alpha1.ReasonSourceTooOld, "version %s can be reached from %s or later and this machine runs %s; "+
			"update to %s first", image.Version, image.MinSourceVersion, running.Version, image.MinSourceVersion)
	}

	return nil
}

// checkOrder refuses an image whose boot entry would not come first.
func checkOrder(v *view, image osimage.Config) error {
	if v.outrank != "" {
		return slots.Refuse(v1alpha1.ReasonBootEntryConflict, "%s", v.outrank)
	}

	// Its tries do not matter for its place: against an entry of the same version it is refused.
	ours := entry{
		name: entryName(image, 1), sortKey: image.Name, version: image.Version,
	}

	for _, other := range v.entries {
		if v.ofSpare(other, image) || other.bad() {
			continue
		}

		if compareEntries(ours, other) < 0 && !other.name.Same(ours.name) {
			continue
		}

		if other.sortKey == ours.sortKey {
			return slots.Refuse(v1alpha1.ReasonVersionNotNewer, "boot entry %s has version %s, so %s would not be booted; remove "+
				"the entry if nothing needs it, or give the image a higher version", other.path, other.version, image.Version)
		}

		return slots.Refuse(v1alpha1.ReasonBootEntryConflict, "boot entry %s with sort key %q comes before %s with sort key %q, "+
			"so the new version would not be booted; remove it, or give the image the same IMAGE_ID",
			other.path, other.sortKey, ours.name, ours.sortKey)
	}

	return nil
}

// ofSpare tells whether an entry is one that staging takes away: it starts the spare slot, or it has the image's name
// with or without a counter (systemd issue 33504) and does not start the running slot.
func (v *view) ofSpare(e entry, image osimage.Config) bool {
	if e.rootHash != "" && e.rootHash == v.runningHash() {
		return false
	}

	spare := hashOf(v.layout.spare.data.GUID, v.layout.spare.verity.GUID)

	return e.rootHash == spare || e.rootHash == image.RootHash || e.name.Same(entryName(image, 0))
}

func checkSizes(v *view, image osimage.Config) error {
	data, _ := image.Data()
	verity, _ := image.Verity()

	for _, part := range []struct {
		content osimage.Content
		index   int
		size    uint64
	}{
		{data, v.layout.spare.data.Index, v.layout.spare.data.Size},
		{verity, v.layout.spare.verity.Index, v.layout.spare.verity.Size},
	} {
		if uint64(part.content.RawSize) > part.size { //nolint:gosec // checked to be above 0
			return slots.Refuse(v1alpha1.ReasonImageTooLarge, "content %s has %d bytes and partition %d of %s has room for %d; "+
				"build a smaller image, or provision the machine with larger slots",
				part.content.Role, part.content.RawSize, part.index, v.place.Disk, part.size)
		}
	}

	return nil
}

// checkBootSpace counts what staging frees before it writes: the spare slot's own entries and an earlier staged UKI.
func checkBootSpace(v *view, image osimage.Config) error {
	free, err := v.files.Free()
	if err != nil {
		return fmt.Errorf("measuring the boot partition: %w", err)
	}

	files, err := v.files.List(linuxDir)
	if err != nil {
		return fmt.Errorf("measuring the boot partition: %w", err)
	}

	removable := v.removable(image)

	for _, file := range files {
		if slices.ContainsFunc(removable, func(name string) bool { return strings.EqualFold(name, linuxDir+"/"+file.Name) }) {
			free += file.Size
		}
	}

	uki, _ := image.Content(osimage.RoleUKI)
	if uki.RawSize+bootSlack > free {
		return slots.Refuse(v1alpha1.ReasonBootPartitionFull, "the boot partition has %d bytes for the new UKI, which needs %d "+
			"and %d to spare; remove files that no entry needs, or provision the machine with a larger ESP",
			free, uki.RawSize, bootSlack)
	}

	return nil
}

// removable are the files that staging takes away, in this order: a staged UKI may share its clusters with an entry
// whose rename was cut off, so what is listed goes first.
func (v *view) removable(image osimage.Config) []string {
	var files []string

	for _, e := range v.entries {
		if v.ofSpare(e, image) && strings.HasPrefix(e.path, linuxDir) {
			files = append(files, e.path)
		}
	}

	for _, name := range v.unusable {
		if boot.ParseEntryName(name).Same(entryName(image, 0)) {
			files = append(files, linuxDir+"/"+name)
		}
	}

	return append(files, stagedUKI)
}

// checkStaged refuses to take a staged UKI away that is the running entry under a second name, which is what a rename
// that was cut off may leave: both names have the same clusters, and they would be freed.
func checkStaged(ctx context.Context, v *view) error {
	running := path.Join(linuxDir, v.state.Running.Entry)

	size, err := fileSize(v.files, stagedUKI)
	if err != nil || size == 0 {
		return err
	}

	staged, err := fileDigest(ctx, v.files, stagedUKI, size)
	if err != nil {
		return err
	}

	own, err := fileDigest(ctx, v.files, running, size)
	if err != nil {
		return err
	}

	if own == staged {
		return slots.Refuse(v1alpha1.ReasonBootEntryConflict, "%s on the boot partition is the running entry %s under a second "+
			"name, left by a power cut; unmount the boot partition and run `fsck.fat -a` on it", stagedUKI, running)
	}

	return nil
}

// entryName is the name of the image's boot entry on trial.
func entryName(image osimage.Config, tries int) boot.EntryName {
	return boot.EntryName{ID: image.Label(), Ext: ".efi", Counted: true, Left: tries}
}
