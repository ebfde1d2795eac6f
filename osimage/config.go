package osimage

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/stayput-dev/stayput/osimage/chunk"
)

// The slot schemes: how a machine keeps two versions of an image.
const (
	// SchemeDPS is for images with dm-verity partitions found by the Discoverable Partitions Specification, and a UKI.
	SchemeDPS = "dps"
	// SchemeGPTPrio is for Flatcar's: one of two /usr partitions, with the hash tree behind its file system, is chosen by
	// priority and tries in the GPT, and started by a kernel that holds the root hash.
	SchemeGPTPrio = "gptprio"
	// SchemeUKI is for Garden Linux's: the whole OS is one UKI, a file on the ESP.
	SchemeUKI = "uki"
)

const (
	// maxConfigSize bounds what is read of a config blob; real ones have about 2 KiB.
	maxConfigSize = 1 << 20
	// maxLabelLength is the number of UTF-16 units in a GPT partition name (UEFI 2.10, table 5.6).
	maxLabelLength = 36
)

var (
	// The Boot Loader Specification allows A-Z a-z 0-9 + - _ . in entry names; '+' starts the boot counter, and '_'
	// separates name and version in the partition label and the entry, so a version has neither.
	namePattern    = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*$`)
	versionPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.-]*$`)
	// os-release(5), VARIANT_ID. Garden Linux's flavours have less than 150 characters.
	variantPattern  = regexp.MustCompile(`^[a-z0-9._-]{1,256}$`)
	rootHashPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)
	digestPattern   = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// Architectures lists the values of Config.Architecture.
func Architectures() []string {
	return []string{"amd64", "arm64"}
}

// Schemes lists the values of Config.Scheme.
func Schemes() []string {
	return []string{SchemeDPS, SchemeGPTPrio, SchemeUKI}
}

// Roles lists all roles, in the order in which an image has them.
func Roles() []Role {
	return []Role{RoleRoot, RoleRootVerity, RoleUSR, RoleUSRVerity, RoleUKI, RoleKernel, RoleLoader, RoleState}
}

// Label is the label of the partitions that hold the image: name and version.
func (c Config) Label() string {
	return c.Name + "_" + c.Version
}

// Data returns the content with the root or usr file system.
func (c Config) Data() (Content, bool) {
	if content, ok := c.Content(RoleUSR); ok {
		return content, true
	}

	return c.Content(RoleRoot)
}

// Verity returns the content with the hash tree of Data.
func (c Config) Verity() (Content, bool) {
	if content, ok := c.Content(RoleUSRVerity); ok {
		return content, true
	}

	return c.Content(RoleRootVerity)
}

// ParseConfig reads and validates a config blob. Fields it does not know are ignored: a change that an older reader
// must not ignore gets another media type.
func ParseConfig(blob []byte) (Config, error) {
	var config Config

	if err := json.Unmarshal(blob, &config); err != nil {
		return Config{}, invalidConfig("image config", "is not JSON of the expected form", err)
	}

	if err := config.Validate(); err != nil {
		return Config{}, err
	}

	return config, nil
}

// Validate tells what is wrong with a config, first of all things. The error is ErrNotAnImage.
func (c Config) Validate() error {
	switch {
	case !namePattern.MatchString(c.Name):
		return invalidField("name", c.Name, "lower-case letters, digits, '.', '_' and '-', such as \"labos\"")
	case !versionPattern.MatchString(c.Version):
		return invalidField("version", c.Version, "letters, digits, '.' and '-', such as \"1.1.0\"")
	case c.Variant != "" && !variantPattern.MatchString(c.Variant):
		return invalidField("variant", c.Variant, "at most 256 lower-case letters, digits, '.', '_' and '-', such as \"server\"")
	case c.Scheme == SchemeDPS && len(c.Label()) > maxLabelLength:
		return invalidField("name and version", c.Label(), "a GPT label has at most 36 characters for name_version")
	case !slices.Contains(Architectures(), c.Architecture):
		return invalidField("architecture", c.Architecture, "one of "+strings.Join(Architectures(), ", "))
	case c.MinSourceVersion != "" && !versionPattern.MatchString(c.MinSourceVersion):
		return invalidField("minSourceVersion", c.MinSourceVersion, "letters, digits, '.' and '-'")
	case !slices.Contains(Schemes(), c.Scheme):
		return invalidField("scheme", c.Scheme, "one of "+strings.Join(Schemes(), ", ")+"; a newer program may know it")
	}

	if err := c.validateRootHash(); err != nil {
		return err
	}

	seen := map[Role]bool{}

	for _, content := range c.Contents {
		if err := content.validate(); err != nil {
			return err
		}

		if seen[content.Role] {
			return invalidField("contents.role", string(content.Role), "each role occurs once")
		}

		seen[content.Role] = true
	}

	return validateRoles(c.Scheme, seen)
}

func (c Config) validateRootHash() error {
	switch {
	case c.Scheme == SchemeUKI && c.RootHash != "":
		return invalidField("rootHash", c.RootHash, "none: an image of the scheme "+SchemeUKI+" is one UKI")
	case c.Scheme != SchemeUKI && !rootHashPattern.MatchString(c.RootHash):
		return invalidField("rootHash", c.RootHash, "64 lower-case hexadecimal digits, as veritysetup prints them")
	default:
		return nil
	}
}

// validateRoles checks that a slot of the scheme can be made of the roles.
func validateRoles(scheme string, seen map[Role]bool) error {
	switch scheme {
	case SchemeGPTPrio:
		return validateExactly(scheme, seen, RoleUSR, RoleKernel)
	case SchemeUKI:
		return validateExactly(scheme, seen, RoleUKI)
	default:
		return validateDPS(seen)
	}
}

// validateDPS wants one file system with its hash tree, and a UKI.
func validateDPS(seen map[Role]bool) error {
	switch {
	case seen[RoleRoot] == seen[RoleUSR]:
		return invalidContents("an image has either a root or a usr content")
	case seen[RoleRoot] != seen[RoleRootVerity]:
		return invalidContents("root and root-verity occur together")
	case seen[RoleUSR] != seen[RoleUSRVerity]:
		return invalidContents("usr and usr-verity occur together")
	case !seen[RoleUKI]:
		return invalidContents("a uki content is missing")
	case seen[RoleKernel]:
		return invalidContents("a kernel content is for the scheme " + SchemeGPTPrio)
	default:
		return nil
	}
}

func validateExactly(scheme string, seen map[Role]bool, wanted ...Role) error {
	for _, role := range Roles() {
		if seen[role] != slices.Contains(wanted, role) {
			return invalidContents(fmt.Sprintf("an image of the scheme %s has exactly the contents %v", scheme, wanted))
		}
	}

	return nil
}

func invalidContents(detail string) error {
	return invalidConfig("image config field contents", detail, nil)
}

func (c Content) validate() error {
	switch {
	case !slices.Contains(Roles(), c.Role):
		return invalidField("contents.role", string(c.Role), "this program does not know it; a newer one may")
	case !digestPattern.MatchString(c.Digest):
		return invalidField("contents.digest", c.Digest, "sha256: and 64 lower-case hexadecimal digits")
	case !digestPattern.MatchString(c.RawDigest):
		return invalidField("contents.rawDigest", c.RawDigest, "sha256: and 64 lower-case hexadecimal digits")
	case c.Size <= 0:
		return invalidField("contents.size", strconv.FormatInt(c.Size, 10), "a number of bytes above 0")
	case c.RawSize <= 0:
		return invalidField("contents.rawSize", strconv.FormatInt(c.RawSize, 10), "a number of bytes above 0")
	case c.ChunkIndex == nil:
		return nil
	case !digestPattern.MatchString(c.ChunkIndex.Digest):
		return invalidField("contents.chunkIndex.digest", c.ChunkIndex.Digest, "sha256: and 64 lower-case hexadecimal digits")
	case c.ChunkIndex.Size <= 0 || c.ChunkIndex.Size > chunk.MaxHead:
		return invalidField("contents.chunkIndex.size", strconv.FormatInt(c.ChunkIndex.Size, 10),
			fmt.Sprintf("a number of bytes from 1 to %d", chunk.MaxHead))
	case c.ChunkIndex.IDs == nil:
		return nil
	case !digestPattern.MatchString(c.ChunkIndex.IDs.Digest):
		return invalidField("contents.chunkIndex.ids.digest", c.ChunkIndex.IDs.Digest,
			"sha256: and 64 lower-case hexadecimal digits")
	case c.ChunkIndex.IDs.Size <= 0 || c.ChunkIndex.IDs.Size > chunk.MaxIDs:
		return invalidField("contents.chunkIndex.ids.size", strconv.FormatInt(c.ChunkIndex.IDs.Size, 10),
			fmt.Sprintf("a number of bytes from 1 to %d", chunk.MaxIDs))
	default:
		return nil
	}
}

func invalidField(field, value, want string) error {
	return invalidConfig("image config field "+field, fmt.Sprintf("%q is invalid, want %s", value, want), nil)
}

func invalidConfig(subject, detail string, cause error) error {
	return &Error{
		Kind: ErrNotAnImage, Subject: subject, Detail: detail, Err: cause,
		Fix: "build the image with `stayput image build`",
	}
}
