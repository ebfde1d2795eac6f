package osimage

// ArtifactType and the media types; see docs/image-format.md.
const (
	ArtifactType    = "application/vnd.stayput.os.image.v1"
	ConfigMediaType = "application/vnd.stayput.os.config.v1+json"
	LayerMediaType  = "application/vnd.stayput.os.content.v1+zstd"
	IndexMediaType  = "application/vnd.stayput.os.chunks.v1"
	IDsMediaType    = "application/vnd.stayput.os.chunkids.v1"
)

// Role says what a content is for.
type Role string

// The roles; which of them an image has depends on its scheme. Loader and State are used only by `stayput image disk`:
// the boot loader's EFI program, and the first contents of the persistent root file system.
const (
	RoleRoot       Role = "root"
	RoleRootVerity Role = "root-verity"
	RoleUSR        Role = "usr"
	RoleUSRVerity  Role = "usr-verity"
	RoleUKI        Role = "uki"
	RoleKernel     Role = "kernel"
	RoleLoader     Role = "loader"
	RoleState      Role = "state"
)

// FirstDiskOnly tells that a content is used only when a machine's first disk is made: no update fetches it.
func (r Role) FirstDiskOnly() bool { return r == RoleLoader || r == RoleState }

// Config is the config blob of an image.
type Config struct {
	// Name is the image's IMAGE_ID, such as "labos": lower-case letters, digits, '.', '_' and '-'.
	Name string `json:"name"`
	// Version is its IMAGE_VERSION, such as "1.1.0".
	Version string `json:"version"`
	// Variant is its VARIANT_ID, such as "server", where one name has several; "" means that it has none. Of Garden Linux it
	// is the flavour, such as "baremetal-gardener_prod_usi".
	Variant string `json:"variant,omitempty"`
	// Architecture is a GOARCH: "amd64" or "arm64".
	Architecture string `json:"architecture"`
	// MinSourceVersion is the oldest version that can be updated to this one in place; "" means any.
	MinSourceVersion string `json:"minSourceVersion,omitempty"`
	// Scheme is the slot scheme that the image is made for: "dps", "gptprio" or "uki".
	Scheme string `json:"scheme"`
	// RootHash is the dm-verity root hash of the data content, 64 lower-case hex digits; "" with the scheme "uki", whose
	// images have none.
	RootHash string `json:"rootHash,omitempty"`
	// Contents are the parts, each in a layer.
	Contents []Content `json:"contents"`
}

// Content is one part of an image.
type Content struct {
	// Role says what it is for; a role occurs once.
	Role Role `json:"role"`
	// Digest and Size are the layer's (compressed).
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
	// RawDigest and RawSize are those of the raw bytes, "sha256:…".
	RawDigest string `json:"rawDigest"`
	RawSize   int64  `json:"rawSize"`
	// ChunkIndex names the layer that says of which chunks the content is made, nil when there is none: then an update
	// fetches all of it.
	ChunkIndex *ChunkIndex `json:"chunkIndex,omitempty"`
}

// ChunkIndex names the two parts of a chunk index (package chunk), each of which is a layer.
type ChunkIndex struct {
	// Digest and Size are those of its head, which whoever uses the index reads in full.
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
	// IDs names the ids, nil when all chunks are zeros. Of them only those are read that are not known already.
	IDs *ChunkIDs `json:"ids,omitempty"`
}

// ChunkIDs names the ids of a chunk index.
type ChunkIDs struct {
	// Digest and Size are the layer's.
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
}

// TotalSize is the number of bytes of both parts, 0 for no index.
func (c *ChunkIndex) TotalSize() int64 {
	if c == nil {
		return 0
	}

	return c.Size + c.idsSize()
}

func (c *ChunkIndex) idsSize() int64 {
	if c.IDs == nil {
		return 0
	}

	return c.IDs.Size
}

// Content returns the content of a role.
func (c Config) Content(role Role) (Content, bool) {
	for _, content := range c.Contents {
		if content.Role == role {
			return content, true
		}
	}

	return Content{}, false
}
