package osimage_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/registrytest"
)

const (
	// memoryLimit is what the product promises for any size on a node.
	memoryLimit = 64 << 20
	// bigSize is large beside it: random bytes first, then a hole. hack/bench/memory.sh sets sizeVariable, in MiB.
	bigSize, bigRandom = 512, 96
	sizeVariable       = "OSIMAGE_TEST_MIB"

	// Building, which no node does, has 36 MiB of tables for each goroutine that compresses, of which there are maxEncoders at
	// most, and may have those of the content before, which are not yet collected.
	buildLimit, encoderLimit, maxEncoders = 64 << 20, 72 << 20, 8

	childVariable  = "OSIMAGE_TEST_CHILD"
	childBuilds    = "build"
	childTransfers = "transfer"
)

// TestMain runs this program's child, see TestMemory.
func TestMain(m *testing.M) {
	act := os.Getenv(childVariable)
	if act == "" {
		os.Exit(m.Run())
	}

	child := transferChild
	if act == childBuilds {
		child = buildChild
	}

	if err := child(context.Background(), os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// buildChild builds an image.
func buildChild(ctx context.Context, dir, _, _, _ string) (err error) {
	files := map[osimage.Role]string{}
	for _, role := range []osimage.Role{osimage.RoleUSR, osimage.RoleUSRVerity, osimage.RoleUKI} {
		files[role] = filepath.Join(dir, string(role))
	}

	inputs, err := osimage.FileInputs(files)
	if err != nil {
		return err
	}

	if _, err := osimage.Build(ctx, filepath.Join(dir, "image"), osimage.BuildSpec{
		Name: "big", Version: "1", Architecture: "amd64", RootHash: rootHash, Inputs: inputs,
	}); err != nil {
		return err
	}

	return printPeak()
}

// transferChild pushes, pulls and writes the image, the second time onto what is there.
func transferChild(ctx context.Context, dir, reference, caFile, dockerConfig string) (err error) {
	client, err := osimage.NewClient(osimage.WithCAFile(caFile), osimage.WithDockerConfig(dockerConfig))
	if err != nil {
		return err
	}

	if _, err := client.Push(ctx, filepath.Join(dir, "image"), "", reference, nil); err != nil {
		return err
	}

	if _, err := client.Pull(ctx, reference, filepath.Join(dir, "pulled"), nil); err != nil {
		return err
	}

	image, err := client.Image(ctx, reference)
	if err != nil {
		return err
	}

	target, err := os.Create(filepath.Join(dir, "target"))
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, target.Close()) }()

	// The running slot has another version.
	running, err := os.Open(filepath.Join(dir, string(osimage.RoleUSR)))
	if err != nil {
		return err
	}

	defer func() { _ = running.Close() }()

	info, err := running.Stat()
	if err != nil {
		return err
	}

	const longer = 1 << 20

	seed := osimage.Seed{Name: "older", Reader: io.NewSectionReader(running, longer, info.Size()-longer), Size: info.Size() - longer}

	for _, options := range []osimage.WriteOptions{
		{}, {Seeds: []osimage.Seed{seed}}, {Seeds: []osimage.Seed{seed}, Resume: true},
	} {
		options.Sparse = true

		if !options.Resume {
			if err := target.Truncate(0); err != nil {
				return err
			}
		}

		if err := osimage.Write(ctx, image, osimage.RoleUSR, target, options); err != nil {
			return err
		}
	}

	return printPeak()
}

// printPeak prints the most memory that this process had, in bytes.
func printPeak() error {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}

	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kibibytes, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			fmt.Println(kibibytes << 10)

			return err
		}
	}

	return io.ErrUnexpectedEOF
}

func TestMemory(t *testing.T) {
	server := registrytest.Start(t)
	dir := t.TempDir()

	mebibytes := bigSize
	if text := os.Getenv(sizeVariable); text != "" {
		var err error
		if mebibytes, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}

	for role, size := range map[osimage.Role]int64{
		osimage.RoleUSR: int64(mebibytes) << 20, osimage.RoleUSRVerity: 1 << 20, osimage.RoleUKI: 1 << 20,
	} {
		writeBig(t, filepath.Join(dir, string(role)), size)
	}

	for _, test := range []struct {
		act   string
		limit int64
	}{
		{childBuilds, buildLimit + encoderLimit*int64(min(runtime.GOMAXPROCS(0), maxEncoders))},
		{childTransfers, memoryLimit},
	} {
		command := exec.CommandContext(t.Context(), os.Args[0],
			dir, server.Address+"/os/big:1", server.CAFile, server.DockerConfig)
		command.Env = append(os.Environ(), childVariable+"="+test.act)

		output, err := command.Output()
		if err != nil {
			if exit, ok := errors.AsType[*exec.ExitError](err); ok {
				t.Fatalf("%s: %v: %s", test.act, err, exit.Stderr)
			}

			t.Fatal(err)
		}

		peak, err := strconv.ParseInt(strings.TrimSpace(string(output)), 10, 64)
		if err != nil {
			t.Fatal(err)
		}

		t.Logf("%s of %d MiB: at most %d MiB", test.act, mebibytes, peak>>20)

		if peak > test.limit {
			t.Errorf("%s: it had %d MiB of memory, at most %d are allowed", test.act, peak>>20, test.limit>>20)
		}
	}
}

func writeBig(t *testing.T, path string, size int64) {
	t.Helper()

	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}

	defer func() { _ = file.Close() }()

	if _, err := io.Copy(file, io.LimitReader(rand.NewChaCha8([32]byte{1}), min(size, bigRandom<<20))); err != nil {
		t.Fatal(err)
	}

	// It looks like an erofs: in blocks, which makes the largest index.
	if _, err := file.WriteAt([]byte("\xe2\xe1\xf5\xe0"), 1024); err != nil {
		t.Fatal(err)
	}

	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
}
