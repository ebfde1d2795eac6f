package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	media "github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/stayput-dev/stayput/osimage"
)

const (
	// diskTypeAnnotation of an entry of the index is how Ironic finds disks (its documentation, "Use of an OCI Container
	// Registry"); the values are those of Format. It skips entries without, such as those with our images.
	diskTypeAnnotation = "disktype"
	// sectorSizeAnnotation is for people.
	sectorSizeAnnotation = "dev.stayput.disk.sector-size"
	// indexPart is the part of the progress after the images.
	indexPart = "index and disks"
)

// Publication is what is put under one tag.
type Publication struct {
	// Images are one for each architecture, all of one name and version.
	Images []*osimage.Image
	// Disks are files with disks, raw or QCOW2, each of one of the images; at most one of each format for an image.
	Disks []string
	// Progress, when set, is called with the bytes of the layers, which are counted for each part: an image, by its label
	// and architecture, and then the rest. The total may grow, and a part of which nothing is missing may be left out. It
	// is called from several goroutines.
	Progress func(part string, done, total int64)
}

// of is the progress of one part.
func (p Publication) of(part string) func(done, total int64) {
	if p.Progress == nil {
		return nil
	}

	return func(done, total int64) { p.Progress(part, done, total) }
}

// Entry is an entry of the index.
type Entry struct {
	Architecture string `json:"architecture"`
	// Format is that of a disk, "" for an image.
	Format Format `json:"format,omitempty"`
	// SectorSize is a disk's, in bytes.
	SectorSize int64 `json:"sectorSize,omitempty"`
	// Digest is that of the manifest, "sha256:…".
	Digest string `json:"digest"`
	// Size is the number of bytes of its layers.
	Size int64 `json:"size"`
}

// Published is what a tag names afterwards.
type Published struct {
	// Reference names exactly this index: "repository@sha256:…".
	Reference string `json:"reference"`
	// Replaced is the digest that the tag named before, "" when it was not there or named the same.
	Replaced string  `json:"replaced,omitempty"`
	Entries  []Entry `json:"entries"`
}

// entry is an Entry before it is sent.
type entry struct {
	image    v1.Image
	platform osimage.Config
	artifact string
	disk     *diskFile
}

// Publish puts an OCI index under "registry/repository:tag": the images that machines update to, and beside each the
// disks that machines are provisioned from, as Ironic's oci:// reads them. The images keep their signatures; the index has
// none of its own. It may be called again: the same images and disks give the same index, and what the registry has is not
// sent again.
//
// It refuses a disk that holds none of the images: a machine would be provisioned with something else than the tag says.
func Publish(
	ctx context.Context, client *osimage.Client, what Publication, reference string,
) (published Published, err error) {
	images, err := sortImages(what.Images)
	if err != nil {
		return Published{}, err
	}

	disks, err := openDisks(ctx, what.Disks, images)

	defer func() {
		for _, disk := range disks {
			err = errors.Join(err, disk.file.Close())
		}
	}()

	if err != nil {
		return Published{}, err
	}

	entries, err := prepare(ctx, images, disks)
	if err != nil {
		return Published{}, err
	}

	index := mutate.IndexMediaType(empty.Index, media.OCIImageIndex)
	for _, entry := range entries {
		index = mutate.AppendManifests(index, entry.addendum())
	}

	for _, image := range images {
		part := image.Config().Label() + " " + image.Config().Architecture
		if err := client.CopyBeside(ctx, image, reference, what.of(part)); err != nil {
			return Published{}, fmt.Errorf("publishing %s: %w", part, err)
		}
	}

	published.Reference, published.Replaced, err = client.PushIndex(ctx, reference, index, what.of(indexPart))
	if err != nil {
		return Published{}, err
	}

	for _, entry := range entries {
		described, err := entry.describe()
		if err != nil {
			return Published{}, err
		}

		published.Entries = append(published.Entries, described)
	}

	return published, nil
}

// sortImages refuses images that do not belong under one tag.
func sortImages(images []*osimage.Image) ([]*osimage.Image, error) {
	if len(images) == 0 {
		return nil, invalid("the index", "there is no image for it", "name at least one image")
	}

	images = slices.SortedFunc(slices.Values(images), func(a, b *osimage.Image) int {
		return cmp.Compare(a.Config().Architecture, b.Config().Architecture)
	})

	for index, image := range images[1:] {
		before, config := images[index].Config(), image.Config()

		switch {
		case before.Label() != config.Label():
			return nil, invalid(image.Reference(), fmt.Sprintf("it is %s, and another image is %s", config.Label(), before.Label()),
				"publish each version under a tag of its own")
		case before.Architecture == config.Architecture:
			return nil, invalid(image.Reference(), "another image is for "+config.Architecture+", too",
				"name one image for each architecture")
		}
	}

	return images, nil
}

// matched is a disk with the image that it holds.
type matched struct {
	file  *diskFile
	image *osimage.Image
}

// openDisks opens the disks, finds the image of each, and puts them in an order that does not depend on the caller's.
// After an error it returns those that are open.
func openDisks(ctx context.Context, files []string, images []*osimage.Image) ([]matched, error) {
	var disks []matched

	for _, path := range files {
		opened, err := openDisk(path)
		if err != nil {
			return disks, err
		}

		disks = append(disks, matched{file: opened})

		image, err := match(ctx, opened, images)
		if err != nil {
			return disks, err
		}

		disks[len(disks)-1].image = image
	}

	slices.SortFunc(disks, func(a, b matched) int {
		return cmp.Or(cmp.Compare(a.image.Config().Architecture, b.image.Config().Architecture),
			cmp.Compare(b.file.format, a.file.format))
	})

	for index := 1; index < len(disks); index++ {
		if err := disks[index-1].compatible(disks[index]); err != nil {
			return disks, err
		}
	}

	return disks, nil
}

// compatible refuses two disks of one architecture between which Ironic would choose without knowing the machine.
func (m matched) compatible(other matched) error {
	switch {
	case m.image != other.image:
		return nil
	case m.file.format == other.file.format:
		return invalid(other.file.Name(), fmt.Sprintf("%s is a %s disk for %s, too", m.file.Name(), m.file.format,
			m.image.Config().Architecture), "publish it under another tag")
	case m.file.table.SectorSize != other.file.table.SectorSize:
		return invalid(other.file.Name(), fmt.Sprintf("it is for sectors of %d bytes, %s for %d", other.file.table.SectorSize,
			m.file.Name(), m.file.table.SectorSize), "publish it under another tag: the tag is all that tells them apart")
	default:
		return nil
	}
}

// match finds the image that a disk holds.
func match(ctx context.Context, disk *diskFile, images []*osimage.Image) (*osimage.Image, error) {
	wanted := make([]string, 0, len(images))

	for _, image := range images {
		config := image.Config()

		switch holds, err := disk.holds(ctx, config); {
		case err != nil:
			return nil, err
		case holds:
			return image, nil
		}

		wanted = append(wanted, fmt.Sprintf("%s for %s, root hash %q", config.Label(), config.Architecture, config.RootHash))
	}

	return nil, invalid(disk.Name(), fmt.Sprintf("it holds none of the images: want %s, it has the partitions %s",
		strings.Join(wanted, " or "), disk.table.List()),
		"make the disk with `stayput image disk` from this image, or give the vendor's disk of this release")
}

// prepare makes the entries: for each architecture the image, then its disks.
func prepare(ctx context.Context, images []*osimage.Image, disks []matched) ([]entry, error) {
	var entries []entry

	for _, image := range images {
		upload, err := image.Upload(ctx)
		if err != nil {
			return nil, fmt.Errorf("preparing %s: %w", image.Reference(), err)
		}

		entries = append(entries, entry{image: upload, platform: image.Config(), artifact: osimage.ArtifactType})

		for _, disk := range disks {
			if disk.image != image {
				continue
			}

			upload, err := newArtifact(ctx, disk.file, image.Config())
			if err != nil {
				return nil, err
			}

			entries = append(entries, entry{image: upload, platform: image.Config(), artifact: ArtifactType, disk: disk.file})
		}
	}

	return entries, nil
}

func (e entry) addendum() mutate.IndexAddendum {
	result := mutate.IndexAddendum{Add: e.image, Descriptor: v1.Descriptor{
		MediaType: media.OCIManifestSchema1, ArtifactType: e.artifact,
		Platform: &v1.Platform{OS: "linux", Architecture: e.platform.Architecture},
	}}

	if e.disk != nil {
		result.Annotations = map[string]string{
			diskTypeAnnotation:   string(e.disk.format),
			sectorSizeAnnotation: strconv.FormatInt(e.disk.table.SectorSize, 10),
		}
	}

	return result
}

func (e entry) describe() (Entry, error) {
	digest, err := e.image.Digest()
	if err != nil {
		return Entry{}, fmt.Errorf("describing the index: %w", err)
	}

	manifest, err := e.image.Manifest()
	if err != nil {
		return Entry{}, fmt.Errorf("describing the index: %w", err)
	}

	result := Entry{Architecture: e.platform.Architecture, Digest: digest.String()}

	for _, layer := range manifest.Layers {
		result.Size += layer.Size
	}

	if e.disk != nil {
		result.Format, result.SectorSize = e.disk.format, e.disk.table.SectorSize
	}

	return result, nil
}

func invalid(subject, detail, fix string) error {
	return &osimage.Error{Kind: osimage.ErrInvalid, Subject: subject, Detail: detail, Fix: fix}
}
