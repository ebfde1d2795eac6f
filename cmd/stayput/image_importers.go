package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rsa"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/discoverable"
	"github.com/stayput-dev/stayput/osimage/flatcar"
	"github.com/stayput-dev/stayput/osimage/gardenlinux"
	"github.com/stayput-dev/stayput/osimage/source"
	"github.com/stayput-dev/stayput/osimage/source/filesystem"
	"github.com/stayput-dev/stayput/osimage/source/packed"
	"github.com/stayput-dev/stayput/osimage/source/rawdisk"
	"github.com/stayput-dev/stayput/osimage/trust"
	"github.com/stayput-dev/stayput/osimage/uki"
)

// The values of --from.
const (
	fromFlatcarDisk   = "flatcar-disk"
	fromFlatcarUpdate = "flatcar-update"
	fromGardenLinux   = "gardenlinux"
	fromDisk          = "disk"
)

// typeFlatcarUSR is the type of Flatcar's /usr partitions (flatcar/scripts, disk_layout.json).
const typeFlatcarUSR = "5dfbf5f4-2848-4bac-aa5e-0d9a20b745a6"

// facts are what a file's beginning tells.
type facts struct {
	head []byte
	// disk is its partition table, nil when it has none, and diskErr says why.
	disk    *rawdisk.Disk
	diskErr error
}

func look(path string) (*facts, error) {
	head, _, err := packed.Head(path, rawdisk.TableSize)
	if err != nil {
		return nil, err
	}

	found := &facts{head: head}
	found.disk, found.diskErr = rawdisk.Read(bytes.NewReader(head), rawdisk.Unknown, path)

	return found, nil
}

// hint is what to do with a file that is of no kind.
func (f *facts) hint() string {
	switch _, _, err := filesystem.Identify(bytes.NewReader(f.head)); {
	case bytes.HasPrefix(f.head, []byte("QFI\xfb")):
		return "make it raw with `qemu-img convert -O raw`"
	case bytes.HasPrefix(f.head, []byte("KDMV")), bytes.HasPrefix(f.head, []byte("conectix")), bytes.HasPrefix(f.head, []byte("vhdxfile")):
		return "give the raw disk of the release, or make one with `qemu-img convert -O raw`"
	case err == nil:
		return "it is a bare file system: use --from flatcar-update with --kernel for Flatcar's, " +
			"else `stayput image build` with its hash tree and UKI"
	default:
		return "give one of the files that `stayput image import --help` lists, or say with --from what it is"
	}
}

// start shows the first bytes in an error.
func (f *facts) start() string { return fmt.Sprintf("it begins with %q", f.head[:min(len(f.head), 4)]) }

// importer reads one kind of source.
type importer struct {
	name string
	// flags are those that only some importers have a use for.
	flags []string
	// misfit tells why a file is not of the kind, "" when it is.
	misfit func(facts *facts) string
	read   func(ctx context.Context, given *importFlags, path string, progress func(done, total int64)) (*source.Parts, error)
}

func importers() []importer {
	return []importer{
		{
			name: fromFlatcarUpdate, flags: []string{"kernel", "verify-key", "name", "version"},
			misfit: func(f *facts) string {
				if bytes.HasPrefix(f.head, []byte("CrAU")) {
					return ""
				}

				return f.start() + `, want "CrAU"`
			},
			read: readFlatcar,
		},
		{
			name: fromFlatcarDisk, flags: []string{"name", "version"},
			misfit: func(f *facts) string {
				if f.disk == nil {
					return "it has no partition table"
				}

				for _, partition := range f.disk.Partitions {
					if partition.Type == typeFlatcarUSR {
						return ""
					}
				}

				return "it has no partition of the type " + typeFlatcarUSR
			},
			read: readFlatcar,
		},
		{
			name: fromDisk, flags: []string{"version"},
			misfit: func(f *facts) string {
				switch {
				case f.disk == nil:
					return f.diskErr.Error()
				case !discoverable.Recognises(f.disk):
					return "none of its partitions is a dm-verity hash tree of discoverable partitions; they are " + f.disk.List()
				default:
					return ""
				}
			},
			read: func(ctx context.Context, given *importFlags, path string, progress func(done, total int64)) (*source.Parts, error) {
				return discoverable.Read(ctx, path, discoverable.Options{
					Version: given.version, Architecture: given.architecture, TempDir: given.tempDir, Progress: progress,
				})
			},
		},
		{
			name: fromGardenLinux, flags: []string{"release"},
			misfit: func(f *facts) string {
				if bytes.HasPrefix(f.head, []byte("MZ")) {
					return ""
				}

				return f.start() + `, want "MZ", as a UKI does`
			},
			read: func(ctx context.Context, given *importFlags, path string, progress func(done, total int64)) (*source.Parts, error) {
				return gardenlinux.Read(ctx, path, gardenlinux.Options{Release: given.release, TempDir: given.tempDir, Progress: progress})
			},
		},
	}
}

func importerNames() []string {
	all := importers()
	names := make([]string, 0, len(all))

	for _, one := range all {
		names = append(names, one.name)
	}

	return names
}

// choose finds the importer of a file.
func (f *importFlags) choose(path string) (importer, error) {
	facts, err := look(path)
	if err != nil {
		return importer{}, err
	}

	var tried []string

	for _, one := range importers() {
		if f.from == one.name {
			return one, nil
		}

		problem := one.misfit(facts)
		if problem == "" && f.from == "" {
			return one, nil
		}

		tried = append(tried, one.name+": "+problem)
	}

	return importer{}, mistake(path, "it is nothing that can be imported; tried "+strings.Join(tried, "; "), facts.hint())
}

// checkFlags refuses flags that would be ignored.
func (i importer) checkFlags(cmd *cobra.Command) error {
	for flag, why := range map[string]string{
		"kernel": "it belongs to a Flatcar update without a kernel", "release": "it belongs to a Garden Linux UKI",
		"cname":      "it chooses from Garden Linux's index in a registry",
		"verify-key": "the file has no signature inside: compare its checksum, or import a Flatcar update, or Garden Linux from a registry",
	} {
		if cmd.Flags().Changed(flag) && !slices.Contains(i.flags, flag) {
			return mistake("--"+flag, why+", and the source is of the kind "+i.name, "leave it out, or give another source")
		}
	}

	return nil
}

func readFlatcar(ctx context.Context, given *importFlags, path string, progress func(done, total int64)) (*source.Parts, error) {
	options := flatcar.Options{
		Name: given.name, Version: given.version, Kernel: given.kernel, Full: true, TempDir: given.tempDir, Progress: progress,
	}

	for _, file := range given.keys {
		keys, err := readKeys(file)
		if err != nil {
			return nil, err
		}

		options.Keys = append(options.Keys, keys...)
	}

	if given.from == fromFlatcarUpdate {
		return flatcar.ReadPayload(ctx, path, options)
	}

	if given.from == fromFlatcarDisk {
		return flatcar.ReadDisk(ctx, path, options)
	}

	return flatcar.Read(ctx, path, options)
}

func readKeys(file string) ([]*rsa.PublicKey, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading a public key: %w", err)
	}

	return flatcar.ParseKeys(data, file)
}

// fromRegistry makes parts of an image that Garden Linux publishes.
func (f *importFlags) fromRegistry(cmd *cobra.Command, reference string) (*source.Parts, error) {
	if err := (importer{name: fromGardenLinux + " in a registry", flags: []string{"cname", "verify-key"}}).checkFlags(cmd); err != nil {
		return nil, err
	}

	var keys []trust.Key

	for _, file := range f.keys {
		more, err := trust.LoadKeys(file)
		if err != nil {
			return nil, err
		}

		keys = append(keys, more...)
	}

	policy, err := trust.NewPolicy("", keys)
	if err != nil {
		return nil, err
	}

	f.registry.architecture = f.architecture

	client, err := f.registry.client(cmd, osimage.WithTrust(policy))
	if err != nil {
		return nil, err
	}

	image, err := client.Image(cmd.Context(), reference)
	if err != nil {
		return nil, err
	}

	if len(keys) == 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "Note: the signature of %s was not checked: no --verify-key was given\n", image.Reference())
	}

	if err := checkPublished(cmd.Context(), image); err != nil {
		return nil, err
	}

	return gardenlinux.Parts(image)
}

// checkPublished refuses what every node would refuse: a UKI that the boot loader takes for another system than its
// manifest and its release file say.
func checkPublished(ctx context.Context, image *osimage.Image) error {
	config := image.Config()
	if config.Scheme != osimage.SchemeUKI {
		return nil // It is no vendor's artifact, and is refused as that.
	}

	inside, err := uki.Read(newContentAt(ctx, image, osimage.RoleUKI))
	if err != nil {
		return fmt.Errorf("reading the UKI of %s: %w", image.Reference(), err)
	}

	for _, of := range []struct{ what, got, want string }{
		{"name", inside.SortKey(), config.Name},
		{"version", inside.Version(), config.Version},
		{"architecture", inside.Architecture, config.Architecture},
		{"root hash", inside.RootHash(), ""},
		{"variant", cmp.Or(gardenlinux.Variant(inside.OSRelease), config.Variant), config.Variant},
	} {
		if of.got != of.want {
			return mistake(image.Reference(), fmt.Sprintf("the %s in its UKI is %q, want %q, as its manifest says", of.what, of.got, of.want),
				"use another version")
		}
	}

	return nil
}
