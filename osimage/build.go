package osimage

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/stayput-dev/stayput/osimage/chunk"
)

// titleAnnotation is the file name of a layer (OCI image-spec, annotations).
const titleAnnotation = "org.opencontainers.image.title"

// maxEncoders bounds the goroutines that compress, and with them the memory: see chunk.Options. One for less than bytesPerEncoder
// would take longer to begin than it saves.
const (
	maxEncoders     = 8
	bytesPerEncoder = 8 << 20
)

// BuildSpec says what an image is made of.
type BuildSpec struct {
	// Name, Version, Variant, Architecture, MinSourceVersion, Scheme and RootHash are those of Config. No scheme means
	// SchemeDPS.
	Name, Version, Variant, Architecture, MinSourceVersion, Scheme, RootHash string
	// ZstdLevel, 1 to 22, has the layers compressed by the program zstd, at this level; ErrInvalid when it is not installed.
	// 0 means the encoder that is built in, which is about as strong as level 9. A higher one makes layers smaller, and so
	// what updates fetch, and takes several times as long.
	ZstdLevel int
	// Inputs are the contents, by role.
	Inputs map[Role]Input
	// Progress, when set, is called with the raw bytes of a content that are done.
	Progress func(role Role, done, total int64)
}

// Input gives the raw bytes of a content.
type Input struct {
	// Name names it in errors, such as a path.
	Name string
	// Size is the number of bytes.
	Size int64
	// Open starts reading from the first byte. It may be called more than once.
	Open func(ctx context.Context) (io.ReadCloser, error)
}

// FileInputs are the contents of regular files and block devices. It returns ErrInvalid for what is empty or neither.
func FileInputs(files map[Role]string) (map[Role]Input, error) {
	inputs := map[Role]Input{}

	for role, path := range files {
		input, err := fileInput(role, path)
		if err != nil {
			return nil, err
		}

		inputs[role] = input
	}

	return inputs, nil
}

func fileInput(role Role, path string) (input Input, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return Input{}, fmt.Errorf("adding %s: %w", role, err)
	}

	if kind := info.Mode(); !kind.IsRegular() && kind&(os.ModeDevice|os.ModeCharDevice) != os.ModeDevice {
		return Input{}, invalid(path, fmt.Sprintf("what is given for %s is neither a regular file nor a block device", role),
			"give the file that was built")
	}

	file, err := os.Open(path)
	if err != nil {
		return Input{}, fmt.Errorf("adding %s: %w", role, err)
	}

	defer func() { err = errors.Join(err, file.Close()) }()

	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return Input{}, fmt.Errorf("finding the size of %s: %w", path, err)
	}

	if size == 0 {
		return Input{}, invalid(path, fmt.Sprintf("the file for %s is empty", role), "give the file that was built")
	}

	return Input{Name: path, Size: size, Open: func(context.Context) (io.ReadCloser, error) { return os.Open(path) }}, nil
}

// Build makes an image in an OCI layout folder, which is created when needed and may hold other images. An
// image of the same version in it is replaced. The same files give the same digests with the same Stayput version.
func Build(ctx context.Context, dir string, spec BuildSpec) (image *Image, err error) {
	config := Config{
		Name: spec.Name, Version: spec.Version, Variant: spec.Variant, Architecture: spec.Architecture,
		MinSourceVersion: spec.MinSourceVersion, Scheme: cmp.Or(spec.Scheme, SchemeDPS), RootHash: spec.RootHash,
	}

	if err := checkSpec(config, spec.Inputs); err != nil {
		return nil, err
	}

	program, err := zstdProgram(spec.ZstdLevel)
	if err != nil {
		return nil, err
	}

	target, err := openFolder(dir)
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, target.close()) }()

	if err := checkReplaced(ctx, dir, config); err != nil {
		return nil, err
	}

	for _, role := range Roles() {
		input, ok := spec.Inputs[role]
		if !ok {
			continue
		}

		content, err := addContent(ctx, target, role, input, program, spec.Progress)
		if err != nil {
			return nil, fmt.Errorf("adding %s from %s: %w", role, input.Name, err)
		}

		config.Contents = append(config.Contents, content)
	}

	// A device, or a file that is being changed, may hold something else than checkSpec saw.
	if err := config.Validate(); err != nil {
		return nil, err
	}

	digest, err := addManifest(target, config)
	if err != nil {
		return nil, err
	}

	return OpenLayout(ctx, dir, digest.String())
}

// zstdProgram finds the program, nil for level 0.
func zstdProgram(level int) (*chunk.Program, error) {
	if level == 0 {
		return nil, nil //nolint:nilnil // The built-in encoder has no program.
	}

	program, err := chunk.FindProgram(level)
	subject, without := fmt.Sprintf("zstd level %d", level), ", or leave it out for the encoder that is built in"

	switch {
	case errors.Is(err, chunk.ErrLevel):
		return nil, invalid(subject, "there is no such level",
			fmt.Sprintf("give one of %d to %d%s", chunk.LeastLevel, chunk.GreatestLevel, without))
	case errors.Is(err, chunk.ErrNoProgram):
		return nil, invalid(subject, err.Error(), "install it"+without)
	default:
		return program, err
	}
}

// checkSpec refuses what cannot become an image before anything is read in full.
func checkSpec(config Config, inputs map[Role]Input) error {
	const anyDigest = "sha256:0000000000000000000000000000000000000000000000000000000000000000"

	for role := range inputs {
		config.Contents = append(config.Contents,
			Content{Role: role, Digest: anyDigest, RawDigest: anyDigest, Size: 1, RawSize: 1})
	}

	err := config.Validate()

	if problem, ok := errors.AsType[*Error](err); ok {
		// Nothing was built yet: it is what was asked for that cannot be used.
		return invalid(problem.Subject, problem.Detail, "correct it and build again")
	}

	return err
}

// addContent compresses an input into a blob of the layout.
func addContent(
	ctx context.Context, target *folder, role Role, from Input, program *chunk.Program, progress func(Role, int64, int64),
) (content Content, err error) {
	input, err := from.Open(ctx)
	if err != nil {
		return Content{}, fmt.Errorf("opening it: %w", err)
	}

	defer func() { err = errors.Join(err, input.Close()) }()

	output, err := target.create()
	if err != nil {
		return Content{}, fmt.Errorf("making a blob: %w", err)
	}

	result, err := compress(ctx, input, output, from.Size, program, func(done int64) {
		if progress != nil {
			progress(role, done, from.Size)
		}
	})
	if err == nil && result.RawSize != from.Size {
		err = truncated(from.Name, "input", result.RawSize, from.Size)
	}

	if err != nil {
		return Content{}, errors.Join(err, output.Close(), os.Remove(output.Name()))
	}

	if err := target.keep(output, blobPath(target.dir, result.Digest)); err != nil {
		return Content{}, fmt.Errorf("keeping the blob: %w", err)
	}

	content = Content{
		Role: role, Digest: result.Digest, Size: result.Size, RawDigest: result.RawDigest, RawSize: result.RawSize,
	}

	if result.Head == nil {
		return content, nil
	}

	head, err := target.writeBlob(result.Head)
	if err != nil {
		return Content{}, err
	}

	content.ChunkIndex = &ChunkIndex{Digest: head.String(), Size: int64(len(result.Head))}

	if len(result.IDs) == 0 {
		return content, nil
	}

	ids, err := target.writeBlob(result.IDs)
	if err != nil {
		return Content{}, err
	}

	content.ChunkIndex.IDs = &ChunkIDs{Digest: ids.String(), Size: int64(len(result.IDs))}

	return content, nil
}

// compress makes a layer and its chunk index. An input that is longer than its size is read one byte further only.
func compress(
	ctx context.Context, input io.Reader, output io.Writer, size int64, program *chunk.Program, progress func(done int64),
) (chunk.Result, error) {
	head := make([]byte, min(size, chunk.HeadSize))

	count, err := io.ReadFull(input, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return chunk.Result{}, fmt.Errorf("reading it: %w", err)
	}

	head = head[:count]

	return chunk.Encode(ctx, io.LimitReader(io.MultiReader(bytes.NewReader(head), input), size+1), output, chunk.Options{
		Params: chunk.ParamsFor(head, size), Program: program, Progress: progress,
		Concurrency: int(min(int64(runtime.GOMAXPROCS(0)), maxEncoders, 1+size/bytesPerEncoder)),
	})
}

// addManifest writes config and manifest and names the image in the index.
func addManifest(target *folder, config Config) (v1.Hash, error) {
	data, err := json.Marshal(config)
	if err != nil {
		return v1.Hash{}, fmt.Errorf("writing the config: %w", err)
	}

	digest, err := target.writeBlob(data)
	if err != nil {
		return v1.Hash{}, err
	}

	manifest := v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: ArtifactType,
		Config: v1.Descriptor{MediaType: ConfigMediaType, Digest: digest, Size: int64(len(data))},
		Annotations: map[string]string{
			titleAnnotation:                    config.Name,
			"org.opencontainers.image.version": config.Version,
		},
	}

	image := Image{config: config}

	for _, layer := range image.layers() {
		hash, err := v1.NewHash(layer.blob.digest)
		if err != nil {
			return v1.Hash{}, fmt.Errorf("writing the manifest: %w", err)
		}

		manifest.Layers = append(manifest.Layers, v1.Descriptor{
			MediaType: types.MediaType(layer.mediaType), Digest: hash, Size: layer.blob.size,
			// The title is the file name that generic tools give the layer.
			Annotations: map[string]string{titleAnnotation: layer.title},
		})
	}

	data, err = json.Marshal(manifest)
	if err != nil {
		return v1.Hash{}, fmt.Errorf("writing the manifest: %w", err)
	}

	return target.name(config, data)
}
