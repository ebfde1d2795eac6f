package gardenlinux

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/uki"
)

// Media types of layers and names of annotations (gardenlinux/python-gardenlinux-lib, constants.py and oci/).
const (
	mediaTypeUKI     = "application/io.gardenlinux.uki"
	mediaTypeEFI     = "application/io.gardenlinux.efi"
	mediaTypeRelease = "application/io.gardenlinux.release"

	annotationCname        = "cname"
	annotationArchitecture = "architecture"
	annotationVersion      = "version"
)

// maxListed bounds how many flavours an error names.
const maxListed = 40

// OCI reads Garden Linux's artifacts in a registry: an index of all flavours of a version, whose manifests have the files
// of a build as layers. It is an osimage.Foreign.
//
// Garden Linux signs the manifests, not the index, so that nothing in the index is believed that the manifest does not
// say, too.
type OCI struct {
	// Cname chooses the flavour in an index by its features, such as "baremetal-gardener_prod_usi". Architecture and version
	// may follow and must fit. "" refuses an index: name the flavour's own tag, VERSION-CNAME-ARCHITECTURE, or its digest.
	Cname string
}

var _ osimage.Foreign = OCI{}

// Open finds an image in a registry: "repository:version" with a cname, or the reference of a flavour's own manifest.
func Open(ctx context.Context, reference, cname string, options ...osimage.Option) (*osimage.Image, error) {
	client, err := osimage.NewClient(append(options, osimage.WithForeign(OCI{Cname: cname}))...)
	if err != nil {
		return nil, err
	}

	return client.Image(ctx, reference)
}

// Choose finds the entry of the flavour: its features are all those of the cname and no others.
func (o OCI) Choose(subject string, index *v1.IndexManifest, architecture string) (v1.Descriptor, bool, error) {
	var (
		found   []v1.Descriptor
		flavour = map[string]bool{}
		ours    bool
	)

	for _, entry := range index.Manifests {
		text, ok := entry.Annotations[annotationCname]
		if !ok {
			continue // an ordinary container image, beside them
		}

		ours = true

		if architectureOf(entry) != architecture {
			continue
		}

		flavour[text] = true

		if o.is(text, architecture, versionOf(entry)) {
			found = append(found, entry)
		}
	}

	refuse := func(detail, fix string) (v1.Descriptor, bool, error) {
		return v1.Descriptor{}, true, &osimage.Error{Kind: osimage.ErrNotFound, Subject: subject, Detail: detail, Fix: fix}
	}

	switch {
	case !ours:
		return v1.Descriptor{}, false, nil
	case len(found) == 1:
		return found[0], true, nil
	case len(found) > 1:
		return refuse(fmt.Sprintf("the index has %d entries for %s on %s", len(found), o.Cname, architecture), "name one of them by its digest")
	case len(flavour) == 0:
		return refuse("the index has no flavour for "+architecture, "choose another architecture or version")
	case o.Cname == "":
		return refuse("it is an index of Garden Linux flavours, and none was chosen; it has "+list(flavour),
			"choose one that is updated in place, with _usi in its name, by --cname, or name its own tag: VERSION-CNAME-ARCHITECTURE")
	default:
		return refuse(fmt.Sprintf("no flavour has exactly the features of %q; it has %s", o.Cname, list(flavour)),
			"choose one that is updated in place, with _usi in its name")
	}
}

// is tells whether a name is that of the wanted flavour.
func (o OCI) is(text, architecture, version string) bool {
	wanted, wantedOK := parseCname(o.Cname, version)
	got, gotOK := parseCname(text, version)

	return wantedOK && gotOK && wanted.same(got) && fits(wanted, architecture) && fits(got, architecture)
}

func fits(name *cname, architecture string) bool {
	return name.architecture == "" || name.architecture == architecture
}

// Config describes the UKI among a manifest's layers. Name and version are what the os-release file says, which is a layer
// of its own and the same as in the UKI; a node refuses a UKI that says something else.
func (o OCI) Config(
	_ context.Context, subject string, manifest *v1.Manifest, read func(layer v1.Descriptor) ([]byte, error),
) (osimage.Config, bool, error) {
	text, ok := manifest.Annotations[annotationCname]
	if !ok {
		return osimage.Config{}, false, nil
	}

	architecture, version := manifest.Annotations[annotationArchitecture], manifest.Annotations[annotationVersion]

	refuse := func(detail, fix string) (osimage.Config, bool, error) {
		return osimage.Config{}, true, &osimage.Error{Kind: osimage.ErrNotAnImage, Subject: subject, Detail: detail, Fix: fix}
	}

	// The index chose it, and nobody signs the index.
	if o.Cname != "" && !o.is(text, architecture, version) {
		return refuse(fmt.Sprintf("the manifest is of the flavour %q, version %q, for %q; want %s", text, version, architecture, o.Cname),
			"do not use this registry: its index names another image than it says")
	}

	if !slices.Contains(osimage.Architectures(), architecture) {
		return refuse(fmt.Sprintf("it is made for %q", architecture), "use one for "+strings.Join(osimage.Architectures(), " or "))
	}

	layer, err := systemLayer(subject, manifest)
	if err != nil {
		return osimage.Config{}, true, err
	}

	release, err := releaseOf(manifest, read)
	if err != nil {
		return osimage.Config{}, true, err
	}

	for _, pair := range [][2]string{{"IMAGE_VERSION", version}, {keyVersion, version}} {
		if got := release[pair[0]]; got != "" && pair[1] != "" && got != pair[1] {
			return refuse(fmt.Sprintf("its release file has %s %q, its manifest %q", pair[0], got, pair[1]), "use another version")
		}
	}

	if got := release[keyCname]; got != "" && !(OCI{Cname: got}).is(text, architecture, version) {
		return refuse(fmt.Sprintf("its release file is of the flavour %q, its manifest of %q", got, text), "use another version")
	}

	return osimage.Config{
		Name: cmp.Or(uki.SortKey(release), distribution), Version: cmp.Or(uki.Version(release), version),
		Variant: cmp.Or(Variant(release), flavourOf(version, text)), Architecture: architecture, Scheme: osimage.SchemeUKI,
		Contents: []osimage.Content{{
			Role: osimage.RoleUKI, Digest: layer.Digest.String(), Size: layer.Size, RawDigest: layer.Digest.String(), RawSize: layer.Size,
		}},
	}, true, nil
}

// systemLayer is the layer with the UKI.
func systemLayer(subject string, manifest *v1.Manifest) (v1.Descriptor, error) {
	for _, mediaType := range []string{mediaTypeUKI, mediaTypeEFI} {
		var found []v1.Descriptor

		for _, layer := range manifest.Layers {
			if string(layer.MediaType) == mediaType {
				found = append(found, layer)
			}
		}

		switch {
		case len(found) == 1:
			return found[0], nil
		case len(found) > 1:
			return v1.Descriptor{}, &osimage.Error{
				Kind: osimage.ErrNotAnImage, Subject: subject, Detail: fmt.Sprintf("it has %d layers of the type %s, want one", len(found), mediaType),
				Fix: "use another version",
			}
		}
	}

	return v1.Descriptor{}, &osimage.Error{
		Kind: osimage.ErrNotAnImage, Subject: subject,
		Detail: fmt.Sprintf("the flavour %q has no layer with a UKI (%s), so it cannot be updated in place",
			manifest.Annotations[annotationCname], mediaTypeUKI),
		Fix: "use a flavour with _usi in its name",
	}
}

// releaseOf is the release's os-release file, nil when it is not among the layers.
func releaseOf(manifest *v1.Manifest, read func(layer v1.Descriptor) ([]byte, error)) (map[string]string, error) {
	for _, layer := range manifest.Layers {
		if string(layer.MediaType) != mediaTypeRelease {
			continue
		}

		text, err := read(layer)
		if err != nil {
			return nil, err
		}

		return uki.ParseOSRelease(string(text[:min(len(text), maxRelease)])), nil
	}

	return nil, nil //nolint:nilnil // Old releases have none, and the annotations say what is needed.
}

func architectureOf(entry v1.Descriptor) string {
	if entry.Platform != nil && entry.Platform.Architecture != "" {
		return entry.Platform.Architecture
	}

	return entry.Annotations[annotationArchitecture]
}

func versionOf(entry v1.Descriptor) string {
	if entry.Platform != nil {
		return entry.Platform.OSVersion
	}

	return ""
}

// list names flavours, those that are updated in place first.
func list(flavours map[string]bool) string {
	names := slices.SortedFunc(maps.Keys(flavours), func(a, b string) int {
		return cmp.Or(-compareBool(strings.Contains(a, "_usi"), strings.Contains(b, "_usi")), strings.Compare(a, b))
	})

	more := ""
	if len(names) > maxListed {
		more = fmt.Sprintf(" and %d others", len(names)-maxListed)
		names = names[:maxListed]
	}

	for index, name := range names {
		names[index] = fmt.Sprintf("%.*q", maxCname, name)
	}

	return strings.Join(names, ", ") + more
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	default:
		return -1
	}
}
