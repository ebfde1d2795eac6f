package gardenlinux

import (
	"regexp"
	"slices"
	"strings"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/uki"
)

// cname is a canonical name taken apart. Garden Linux has used the word for strings with more and less in them (its ADR
// 0035), all of which are read:
//
//	<features>                                  since ADR 0035
//	<features>-<architecture>                   a flavour
//	<features>-<version>
//	<features>-<architecture>-<version>         GARDENLINUX_CNAME before ADR 0035
//	<features>-<architecture>-<version>-<commit> names of files, and annotations in registries
//
// "-local" stands for the commit of a build from a working tree that was changed.
type cname struct {
	// flavour is the features as they are written, and features are sorted: two names with the same ones name the same system.
	flavour                       string
	features                      []string
	architecture, version, commit string
}

var (
	featuresPattern = regexp.MustCompile(`^[a-z0-9]+(?:[-_][a-z0-9]+)*$`)
	commitPattern   = regexp.MustCompile(`^(?:[0-9a-f]{6,40}|local)$`)
)

// maxCname bounds what is taken for a name; real ones have less than 150 characters.
const maxCname = 512

// maxFlavour is what a variant can have.
const maxFlavour = 256

// parseCname takes a name apart. The version, when it is known otherwise, tells where features end if no architecture
// does; a name with another version is refused.
func parseCname(text, version string) (*cname, bool) {
	if len(text) > maxCname {
		return nil, false
	}

	result := &cname{}

	parts := strings.Split(text, "-")
	end := slices.IndexFunc(parts, func(part string) bool { return slices.Contains(osimage.Architectures(), part) })

	if end > 0 {
		result.architecture = parts[end]
		result.version = strings.Join(parts[end+1:], "-")
		text = strings.Join(parts[:end], "-")
	} else if at := strings.Index(text, "-"+version); version != "" && at > 0 {
		text, result.version = text[:at], text[at+1:]
	}

	if !result.splitCommit(version) || !featuresPattern.MatchString(text) {
		return nil, false
	}

	result.flavour = text

	// Flags, which begin with '_', are joined to what stands before them without a '-' (ADR 0035).
	result.features = strings.Split(strings.ReplaceAll(text, "_", "-_"), "-")
	slices.Sort(result.features)
	result.features = slices.Compact(result.features)

	return result, true
}

// splitCommit takes the commit off the version, and tells whether the version may be the known one.
func (c *cname) splitCommit(version string) bool {
	if version == "" || c.version == "" || c.version == version {
		return true
	}

	rest, found := strings.CutPrefix(c.version, version+"-")
	if !found || !commitPattern.MatchString(rest) {
		return false
	}

	c.version, c.commit = version, rest

	return true
}

// same tells whether both name the same features: all of them, not one list that begins like the other.
func (c *cname) same(other *cname) bool { return slices.Equal(c.features, other.features) }

// Variant is what osimage.Config has as the variant of a system with that os-release. Garden Linux's is the flavour, by the
// features alone: its VARIANT_ID was missing at first, then had the architecture behind it, and has not any more (ADR 0035),
// and so did GARDENLINUX_CNAME. Of others it is the VARIANT_ID.
func Variant(release map[string]string) string {
	if release["ID"] != distribution {
		return uki.Variant(release)
	}

	return flavourOf(uki.Version(release), release[keyCname], release["VARIANT_ID"])
}

// flavourOf is that of the first name that is one.
func flavourOf(version string, names ...string) string {
	for _, text := range names {
		if name, ok := parseCname(text, version); ok && len(name.flavour) <= maxFlavour {
			return name.flavour
		}
	}

	return ""
}
