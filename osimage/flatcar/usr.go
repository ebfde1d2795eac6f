package flatcar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/source"
	"github.com/stayput-dev/stayput/osimage/source/filesystem"
	"github.com/stayput-dev/stayput/osimage/verity"
)

// hashOffset is where the hash tree begins when the file system cannot be asked: Flatcar's initrd asks e2size, which
// knows ext2 to ext4 only, and takes this for btrfs (10verity-generator of flatcar/bootengine). It is 260094 blocks.
const hashOffset = 1065345024

// osRelease is where the file is inside of /usr.
const osRelease = "/lib/os-release"

// maxOSRelease bounds an os-release file; real ones have 1 KiB.
const maxOSRelease = 64 << 10

// usr is the payload of a slot.
type usr struct {
	name string
	size int64
	// reader gives a reader of its own to each that asks: one that jumps must not disturb one that streams.
	reader func() io.ReaderAt
}

// assemble checks that kernel and /usr belong together and finds out what they are.
func assemble(ctx context.Context, data usr, boot kernel, options Options) (*source.Parts, error) {
	parts := &source.Parts{Architecture: boot.architecture, Scheme: osimage.SchemeGPTPrio, RootHash: boot.rootHash}

	if err := checkTree(ctx, data, boot, options.Full, parts); err != nil {
		return nil, err
	}

	if err := identify(data, options, parts); err != nil {
		return nil, err
	}

	return parts, nil
}

// checkTree compares the hash tree with the kernel's root hash, and when asked for it the data with the tree.
func checkTree(ctx context.Context, data usr, boot kernel, full bool, parts *source.Parts) error {
	tree, at, err := findTree(data)
	if err != nil {
		return err
	}

	switch end := at + tree.Size(); {
	case tree.DataSize() > at:
		return refuse(data.name, fmt.Sprintf("the hash tree at offset %d covers %d bytes", at, tree.DataSize()), redownload)
	case end > data.size:
		return &osimage.Error{
			Kind: osimage.ErrTruncated, Subject: data.name,
			Detail: fmt.Sprintf("the hash tree ends at %d, /usr at %d", end, data.size), Fix: redownload,
		}
	}

	if err := tree.CheckRoot(boot.rootHash); err != nil {
		return &osimage.Error{
			Kind: osimage.ErrInvalid, Subject: data.name, Detail: "/usr and kernel do not belong together",
			Fix: "give both from the same release", Err: err,
		}
	}

	if !full {
		return nil
	}

	if err := verity.Check(ctx, io.NewSectionReader(data.reader(), 0, data.size), data.reader(), at, boot.rootHash); err != nil {
		if errors.Is(err, verity.ErrMismatch) {
			return &osimage.Error{Kind: osimage.ErrWrongDigest, Subject: data.name, Fix: redownload, Err: err}
		}

		return fmt.Errorf("checking all of %s: %w", data.name, err)
	}

	parts.Notes = append(parts.Notes, "all of /usr was compared with its hash tree")

	return nil
}

// findTree looks for the tree behind the file system, as the initrd does.
func findTree(data usr) (*verity.Tree, int64, error) {
	reader := data.reader()

	places := []int64{hashOffset}

	switch _, size, err := filesystem.Identify(reader); {
	case unreadable(err):
		return nil, 0, err
	case err == nil && size != hashOffset:
		places = []int64{size, hashOffset}
	}

	var problems []error

	for _, at := range places {
		if at+blockSize > data.size {
			continue
		}

		tree, err := verity.Open(reader, at)
		if err == nil {
			return tree, at, nil
		}

		problems = append(problems, err)
	}

	if len(problems) == 0 {
		return nil, 0, &osimage.Error{
			Kind: osimage.ErrTruncated, Subject: data.name, Fix: redownload,
			Detail: fmt.Sprintf("the hash tree of /usr begins at %d, /usr ends at %d", places[0], data.size),
		}
	}

	return nil, 0, &osimage.Error{
		Kind: osimage.ErrInvalid, Subject: data.name, Detail: "/usr has no hash tree", Fix: redownload, Err: errors.Join(problems...),
	}
}

// identify finds name and version, in the os-release file unless they are given.
func identify(data usr, options Options, parts *source.Parts) error {
	parts.Name, parts.Version = options.Name, options.Version

	content, err := filesystem.ReadFile(data.reader(), osRelease, maxOSRelease)
	if unreadable(err) {
		return err
	}

	if err != nil {
		if options.Version == "" {
			return &osimage.Error{
				Kind: osimage.ErrInvalid, Subject: data.name, Detail: "its version cannot be read from " + osRelease + " in /usr",
				Fix: "give it with --version, as in the release's version.txt", Err: err,
			}
		}

		if parts.Name == "" {
			parts.Name = "flatcar"
		}

		parts.Notes = append(parts.Notes, "the version is the one given: os-release cannot be read: "+err.Error())

		return nil
	}

	release := parseOSRelease(content)

	if board, ok := release["FLATCAR_BOARD"]; ok && board != parts.Architecture+"-usr" {
		return refuse(data.name, fmt.Sprintf("/usr is for %s, the kernel for %s", board, parts.Architecture), "give both from the same release")
	}

	if parts.Name == "" {
		parts.Name = release["ID"]
	}

	if parts.Name == "" {
		parts.Name = "flatcar"
	}

	if parts.Version == "" {
		parts.Version = release["VERSION_ID"]
	}

	if parts.Version == "" {
		return refuse(data.name, osRelease+" in /usr has no VERSION_ID", "give it with --version")
	}

	noteVersion(release, parts)

	return nil
}

// unreadable tells a broken artifact from a file system that is only not understood.
func unreadable(err error) bool {
	_, broken := errors.AsType[*osimage.Error](err)

	return broken
}

// noteVersion tells when the version is not the whole truth.
func noteVersion(release map[string]string, parts *source.Parts) {
	if id := release["VERSION_ID"]; id != "" && id != parts.Version {
		parts.Notes = append(parts.Notes, "the version is the one given, os-release says "+id)
	}

	if build := release["VERSION"]; strings.Contains(build, "+") {
		parts.Notes = append(parts.Notes, fmt.Sprintf("this is the build %q: give each build its own --version", build))
	}
}

// parseOSRelease reads the assignments of an os-release file (os-release(5)). What it does not understand it leaves out.
func parseOSRelease(content []byte) map[string]string {
	values := map[string]string{}

	for line := range strings.Lines(string(content)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}

		if len(value) >= 2 && (value[0] == '"' || value[0] == '\'') && value[len(value)-1] == value[0] {
			value = value[1 : len(value)-1]
		}

		values[name] = value
	}

	return values
}
