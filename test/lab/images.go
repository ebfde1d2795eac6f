package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/disk"
	"github.com/stayput-dev/stayput/test/lab/osbuild"
	"github.com/stayput-dev/stayput/test/lab/tools"
)

const (
	// Repository is where the lab's OS images are in its registry.
	Repository = "os/node"

	keyBytes = 8
)

// Image is one version of the lab's OS, packed as a Stayput image in an OCI layout folder.
type Image struct {
	// Variant is what it is.
	Variant osbuild.Variant
	// Layout is the folder, Tag the image's tag in it.
	Layout, Tag string
}

// BuildImage builds a version of the lab's OS and packs it, or finds it in the cache. It needs root.
func (l *Lab) BuildImage(ctx context.Context, variant osbuild.Variant) (Image, error) {
	for _, set := range []tools.Set{tools.Kubernetes(), tools.Containerd()} {
		if _, err := tools.Ensure(ctx, l.root, set, l.report); err != nil {
			return Image{}, err
		}
	}

	cache, err := tools.CacheDir()
	if err != nil {
		return Image{}, err
	}

	inputs := osbuild.DefaultInputs(cache)
	inputs.Log = func(line string) { l.report("%s", line) }

	built, err := osbuild.Build(ctx, inputs, variant)
	if err != nil {
		return Image{}, fmt.Errorf("building OS %s: %w", variant, err)
	}

	return l.pack(ctx, cache, built)
}

// pack makes the OCI layout folder of what was built, unless the cache has it.
func (l *Lab) pack(ctx context.Context, cache string, built osbuild.Image) (Image, error) {
	key, err := packKey(ctx, built)
	if err != nil {
		return Image{}, err
	}

	image := Image{
		Variant: built.Variant, Tag: built.Variant.Version, Layout: filepath.Join(cache, "oci-"+built.Variant.String()+"-"+key),
	}
	if dirExists(image.Layout) {
		return image, tools.MarkUsed(image.Layout)
	}

	work, err := os.MkdirTemp(cache, ".oci-")
	if err != nil {
		return Image{}, fmt.Errorf("making a folder for the image: %w", err)
	}
	defer os.RemoveAll(work)

	files := map[osimage.Role]string{}
	for _, role := range []osimage.Role{
		osimage.RoleUSR, osimage.RoleUSRVerity, osimage.RoleUKI, osimage.RoleLoader, osimage.RoleState,
	} {
		files[role] = built.Path(string(role))
	}

	inputs, err := osimage.FileInputs(files)
	if err != nil {
		return Image{}, fmt.Errorf("packing OS %s: %w", built.Variant, err)
	}

	_, err = osimage.Build(ctx, work, osimage.BuildSpec{
		Name: osbuild.ImageID, Version: built.Variant.Version, Architecture: "amd64", RootHash: built.RootHash, Inputs: inputs,
	})
	if err != nil {
		return Image{}, fmt.Errorf("packing OS %s: %w", built.Variant, err)
	}

	if err := os.Rename(work, image.Layout); err != nil && !dirExists(image.Layout) { // or another was faster
		return Image{}, fmt.Errorf("keeping OS %s: %w", built.Variant, err)
	}

	return image, nil
}

// packKey is a short name for what was built and for how it is packed. The parts are immutable files of content-keyed
// folders, so that name, size and time of each stand for its bytes.
func packKey(ctx context.Context, built osbuild.Image) (string, error) {
	packer, err := packerDigest(ctx)
	if err != nil {
		return "", err
	}

	digest := sha256.New()
	fmt.Fprintln(digest, packer)

	for _, part := range []string{"usr", "usr-verity", "uki", "loader", "state"} {
		info, err := os.Stat(built.Path(part))
		if err != nil {
			return "", fmt.Errorf("looking at what was built: %w", err)
		}

		fmt.Fprintf(digest, "%s %d %d\n", built.Path(part), info.Size(), info.ModTime().UnixNano())
	}

	return hex.EncodeToString(digest.Sum(nil)[:keyBytes]), nil
}

// packerDigest stands for the code that packs: it is the digest of a small image, so that it is another one as soon as
// layers, indexes, config or manifest are made in another way.
func packerDigest(ctx context.Context) (digest string, err error) {
	dir, err := os.MkdirTemp("", "stayput-pack-")
	if err != nil {
		return "", fmt.Errorf("making a folder for a trial image: %w", err)
	}

	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	inputs := map[osimage.Role]osimage.Input{}

	for _, role := range []osimage.Role{osimage.RoleUSR, osimage.RoleUSRVerity, osimage.RoleUKI} {
		data := pattern(string(role))
		inputs[role] = osimage.Input{
			Name: string(role), Size: int64(len(data)),
			Open: func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil },
		}
	}

	image, err := osimage.Build(ctx, dir, osimage.BuildSpec{
		Name: "trial", Version: "1", Architecture: "amd64", RootHash: hex.EncodeToString(make([]byte, sha256.Size)),
		Inputs: inputs,
	})
	if err != nil {
		return "", fmt.Errorf("packing a trial image: %w", err)
	}

	return image.Digest(), nil
}

// pattern is some hundred KiB that are compressible in part.
func pattern(seed string) []byte {
	var data []byte

	for count := range 1 << 12 {
		sum := sha256.Sum256(fmt.Append(nil, seed, count))
		data = append(append(data, sum[:]...), seed...)
	}

	return data
}

// MakeDisk makes the disk of a newly provisioned machine from an image and returns its path. Disks are kept in the
// cache beside their image.
func (l *Lab) MakeDisk(ctx context.Context, image Image) (string, error) {
	path := image.Layout + ".disk"
	if _, err := os.Stat(path); err == nil {
		return path, tools.MarkUsed(path)
	}

	source, err := osimage.OpenLayout(ctx, image.Layout, image.Tag)
	if err != nil {
		return "", fmt.Errorf("opening OS %s: %w", image.Variant, err)
	}

	// Create replaces the file as a whole, so the disk is there in full or not at all.
	if _, err := disk.Create(ctx, source, path, disk.Options{}); err != nil {
		return "", fmt.Errorf("making a disk from OS %s: %w", image.Variant, err)
	}

	return path, nil
}

// PushImage pushes an image to the lab's registry, with its variant as tag, and returns its references: by tag and by
// digest.
func (l *Lab) PushImage(ctx context.Context, image Image) (string, osimage.Copied, error) {
	docker, err := l.Registry.DockerConfig()
	if err != nil {
		return "", osimage.Copied{}, err
	}

	pusher, err := osimage.NewClient(
		osimage.WithDockerConfigJSON(docker), osimage.WithCAFile(l.Registry.CAFile()))
	if err != nil {
		return "", osimage.Copied{}, fmt.Errorf("making a registry client: %w", err)
	}

	tag := l.Registry.Address() + "/" + Repository + ":" + image.Variant.String()

	resolved, err := pusher.Push(ctx, image.Layout, image.Tag, tag, nil)
	if err != nil {
		return "", osimage.Copied{}, errors.Join(fmt.Errorf("pushing OS %s: %w", image.Variant, err), ctx.Err())
	}

	return tag, resolved, nil
}
