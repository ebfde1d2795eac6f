package gardenlinux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/source"
	"github.com/stayput-dev/stayput/osimage/source/packed"
	"github.com/stayput-dev/stayput/osimage/uki"
)

const (
	// maxUKI is what a file on a FAT can have.
	maxUKI = 1<<32 - 1
	// maxRelease bounds an os-release file; real ones have 2 KiB.
	maxRelease = 64 << 10
	// distribution is the ID in Garden Linux's os-release.
	distribution = "gardenlinux"

	fixRelease = "give the files of one build"
)

// Keys of Garden Linux's os-release.
const (
	keyCname    = "GARDENLINUX_CNAME"
	keyFeatures = "GARDENLINUX_FEATURES"
	keyVersion  = "GARDENLINUX_VERSION"
	keyCommit   = "GARDENLINUX_COMMIT_ID"
)

// Options change how a release's file is read.
type Options struct {
	// Release is the release's os-release file. "" takes the one beside the UKI, NAME.release for NAME.uki, if there is one.
	Release string
	// TempDir is the folder for what a compressed file unpacks to, and Progress tells of that.
	TempDir  string
	Progress func(done, total int64)
}

// Read reads the UKI of a release. Name and version are what systemd-boot reads from it; the release file, when there is
// one, must say the same. The caller releases the parts.
func Read(ctx context.Context, path string, options Options) (parts *source.Parts, err error) {
	file, err := packed.Open(ctx, path, packed.Options{TempDir: options.TempDir, Limit: maxUKI, Progress: options.Progress})
	if err != nil {
		return nil, err
	}

	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close())
		}
	}()

	image, err := readUKI(file)
	if err != nil {
		return nil, err
	}

	release, from, err := readRelease(path, options.Release)
	if err != nil {
		return nil, err
	}

	for _, key := range []string{"ID", "IMAGE_ID", "IMAGE_VERSION", keyCname, keyVersion} {
		if got := release[key]; release != nil && got != image.OSRelease[key] {
			return nil, &osimage.Error{
				Kind: osimage.ErrInvalid, Subject: from,
				Detail: fmt.Sprintf("its %s is %q, that of %s is %q", key, got, path, image.OSRelease[key]), Fix: fixRelease,
			}
		}
	}

	return &source.Parts{
		Name: image.SortKey(), Version: image.Version(), Variant: Variant(image.OSRelease),
		Architecture: image.Architecture, Scheme: osimage.SchemeUKI,
		Inputs: map[osimage.Role]osimage.Input{osimage.RoleUKI: file.Input(path, 0, file.Size)},
		Notes:  notes(image), Close: file.Close,
	}, nil
}

// readUKI refuses what no machine could start by itself.
func readUKI(file *packed.File) (uki.Image, error) {
	image, err := uki.Read(file)

	refuse := func(kind error, detail, fix string) (uki.Image, error) {
		return uki.Image{}, &osimage.Error{Kind: kind, Subject: file.Name, Detail: detail, Fix: fix}
	}

	const fix = "give the .uki or .efi file of a release"

	switch {
	case err != nil:
		return refuse(osimage.ErrInvalid, err.Error(), fix)
	case file.Size < image.Size:
		return refuse(osimage.ErrTruncated, fmt.Sprintf("it has %d bytes, its headers tell of %d", file.Size, image.Size),
			"download it again and compare its checksum")
	case file.Size > maxUKI:
		return refuse(osimage.ErrTooLarge, fmt.Sprintf("it has %d bytes, a file on the ESP has at most %d", file.Size, int64(maxUKI)), fix)
	case !image.HasKernel:
		return refuse(osimage.ErrInvalid, "it has no .linux section, so it is no kernel image", fix)
	case image.Architecture == "":
		return refuse(osimage.ErrInvalid, "it is made for a machine that is neither amd64 nor arm64", fix)
	case image.RootHash() != "":
		return refuse(osimage.ErrInvalid,
			"its command line names a file system with the root hash "+image.RootHash()+", so it is not the whole operating system",
			"give the disk image that it is on, or use `stayput image build` with all of its files")
	case image.SortKey() == "" || image.Version() == "":
		return refuse(osimage.ErrInvalid, fmt.Sprintf("its .osrel section has the ID %q and the version %q", image.SortKey(), image.Version()),
			"build it with an os-release that has ID and IMAGE_VERSION: by them the boot loader sorts")
	default:
		return image, nil
	}
}

// readRelease reads the release file, nil when none is named and none is beside the UKI.
func readRelease(path, release string) (values map[string]string, from string, err error) {
	named := release != ""
	if !named {
		release = strings.TrimSuffix(path, filepath.Ext(path)) + ".release"
	}

	file, err := os.Open(release)
	if !named && errors.Is(err, fs.ErrNotExist) {
		return nil, "", nil
	}

	if err != nil {
		return nil, "", fmt.Errorf("reading the release file: %w", err)
	}

	defer func() { err = errors.Join(err, file.Close()) }()

	text, err := io.ReadAll(io.LimitReader(file, maxRelease))
	if err != nil {
		return nil, "", fmt.Errorf("reading the release file: %w", err)
	}

	return uki.ParseOSRelease(string(text)), release, nil
}

// notes tell what the config has no field for.
func notes(image uki.Image) []string {
	var result []string

	if id := image.OSRelease["ID"]; id != distribution {
		result = append(result, fmt.Sprintf("this is %q, not Garden Linux: it is taken for a system that is whole in its UKI", id))
	}

	for _, note := range [][2]string{
		{"flavour", image.OSRelease[keyCname]},
		{"commit", image.OSRelease[keyCommit]},
		{"features", image.OSRelease[keyFeatures]},
		{"kernel", image.KernelRelease},
	} {
		if note[1] != "" {
			result = append(result, note[0]+" "+note[1])
		}
	}

	if !image.Signed {
		result = append(result, "it is not signed for Secure Boot")
	}

	return result
}
