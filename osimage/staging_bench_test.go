package osimage_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/registrytest"
)

// benchmarkSize is about what a /usr has.
const benchmarkSize = 512 << 20

// writePrograms fills a file with the programs and libraries of this machine, which compress like those of any, and random
// bytes if there are not enough.
func writePrograms(b *testing.B, path string) {
	b.Helper()

	file, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}

	defer func() { _ = file.Close() }()

	left := int64(benchmarkSize)

	for _, root := range []string{"/usr/bin", "/usr/lib"} {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() || left == 0 {
				return err
			}

			source, err := os.Open(path)
			if err != nil {
				return err
			}

			count, err := io.Copy(file, io.LimitReader(source, left))
			left -= count

			return errors.Join(err, source.Close())
		})
		if err != nil {
			b.Fatal(err)
		}
	}

	if _, err := file.Write(randomBytes(1, int(left))); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkStaging compares writing a content with what a person would do in a shell: curl | zstd -d | dd conv=fsync.
// Ours also hashes everything twice and reads it back from the medium.
func BenchmarkStaging(b *testing.B) {
	server := registrytest.Start(b)
	image := benchmarkImage(b, server)
	content, _ := image.Config().Content(osimage.RoleUSR)
	target := filepath.Join(b.TempDir(), "target")

	b.Run("stayput", func(b *testing.B) {
		b.SetBytes(benchmarkSize)

		for range b.N {
			if err := os.RemoveAll(target); err != nil {
				b.Fatal(err)
			}

			file, err := os.Create(target)
			if err != nil {
				b.Fatal(err)
			}

			if err := osimage.Write(b.Context(), image, osimage.RoleUSR, file, osimage.WriteOptions{}); err != nil {
				b.Fatal(err)
			}

			if err := file.Close(); err != nil {
				b.Fatal(err)
			}
		}
	})

	b.Run("shell", func(b *testing.B) {
		b.SetBytes(benchmarkSize)

		line := fmt.Sprintf("set -o pipefail; curl -fsS --cacert %s -u %s:%s https://%s/v2/os/bench/blobs/%s | "+
			"zstd -dcq | dd of=%s bs=1M conv=fsync iflag=fullblock status=none",
			server.CAFile, registrytest.User, server.Password, server.Address, content.Digest, target)

		for range b.N {
			if err := os.RemoveAll(target); err != nil {
				b.Fatal(err)
			}

			if out, err := exec.CommandContext(b.Context(), "bash", "-c", line).CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, out)
			}
		}
	})
}

func benchmarkImage(b *testing.B, server *registrytest.Registry) *osimage.Image {
	b.Helper()

	dir := b.TempDir()
	files := map[osimage.Role]string{}

	for role, size := range map[osimage.Role]int{
		osimage.RoleUSR: benchmarkSize, osimage.RoleUSRVerity: 4096, osimage.RoleUKI: 4096,
	} {
		files[role] = filepath.Join(dir, string(role))
		if err := os.WriteFile(files[role], randomBytes(1, size), 0o600); err != nil {
			b.Fatal(err)
		}
	}

	writePrograms(b, files[osimage.RoleUSR])

	inputs, err := osimage.FileInputs(files)
	if err != nil {
		b.Fatal(err)
	}

	layout := filepath.Join(dir, "image")
	if _, err := osimage.Build(b.Context(), layout, osimage.BuildSpec{
		Name: "bench", Version: "1", Architecture: "amd64", RootHash: rootHash, Inputs: inputs,
	}); err != nil {
		b.Fatal(err)
	}

	client, err := osimage.NewClient(osimage.WithCAFile(server.CAFile), osimage.WithDockerConfig(server.DockerConfig))
	if err != nil {
		b.Fatal(err)
	}

	reference := server.Address + "/os/bench:1"
	if _, err := client.Push(b.Context(), layout, "", reference, nil); err != nil {
		b.Fatal(err)
	}

	image, err := client.Image(b.Context(), reference)
	if err != nil {
		b.Fatal(err)
	}

	return image
}
