package tools

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The versions that the lab runs. The nested modules pin the same; a test compares them.
const (
	KubernetesVersion = "v1.36.3"
	ContainerdVersion = "v2.2.2"
	// BareMetalOperatorVersion is that of its API in the project's own go.mod, too.
	BareMetalOperatorVersion = "v0.13.2"
	// Cosign2Version and Cosign3Version are the newest of each major version: v2 signs at a tag, v3 in bundles.
	Cosign2Version = "v2.6.5"
	Cosign3Version = "v3.1.3"
)

const (
	dirMode  = 0o755
	fileMode = 0o644

	// progressInterval is how often a long build says that it is still at work.
	progressInterval = 15 * time.Second
	// lockInterval is how often a lock that another build holds is tried.
	lockInterval = 500 * time.Millisecond
)

// Report receives one line of progress at a time.
type Report func(format string, args ...any)

// step is one call of the Go compiler.
type step struct {
	ldflags  string
	packages []string
}

// Set is a directory of programs that belong together.
type Set struct {
	name    string // directory name in the cache
	module  string // nested module, from the repository's root
	steps   []step
	minutes int // from an empty build cache on two cores; for the progress line
}

// Kubernetes is kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kubectl and etcd.
func Kubernetes() Set {
	const version = "k8s.io/component-base/version"

	return Set{
		name: "kubernetes-" + KubernetesVersion, module: "hack/kubernetes", minutes: 12,
		steps: []step{
			{
				// Without a version Cluster API refuses the server, and kubelets report v0.0.0.
				ldflags: "-s -w -X " + version + ".gitVersion=" + KubernetesVersion +
					" -X " + version + ".gitMajor=1 -X " + version + ".gitMinor=36",
				packages: []string{
					"k8s.io/kubernetes/cmd/kubelet", "k8s.io/kubernetes/cmd/kube-apiserver",
					"k8s.io/kubernetes/cmd/kube-controller-manager", "k8s.io/kubernetes/cmd/kubectl",
					"k8s.io/kubernetes/cmd/kube-scheduler",
				},
			},
			{ldflags: "-s -w", packages: []string{"go.etcd.io/etcd/server/v3"}},
		},
	}
}

// Containerd is containerd and containerd-shim-runc-v2.
func Containerd() Set {
	return Set{
		name: "containerd-" + ContainerdVersion, module: "hack/containerd", minutes: 2,
		steps: []step{{
			ldflags: "-s -w -X github.com/containerd/containerd/v2/version.Version=" + ContainerdVersion,
			packages: []string{
				"github.com/containerd/containerd/v2/cmd/containerd",
				"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
			},
		}},
	}
}

// BareMetalOperator is Metal3's baremetal-operator.
func BareMetalOperator() Set {
	return Set{
		name: "baremetal-operator-" + BareMetalOperatorVersion, module: "hack/bmo", minutes: 3,
		steps: []step{{ldflags: "-s -w", packages: []string{"github.com/metal3-io/baremetal-operator"}}},
	}
}

// Cosign2 is sigstore's cosign before it signed in bundles. Only `make interop` needs it.
func Cosign2() Set {
	return Set{
		name: "cosign-" + Cosign2Version, module: "hack/cosign2", minutes: 6,
		steps: []step{{ldflags: "-s -w", packages: []string{"github.com/sigstore/cosign/v2/cmd/cosign"}}},
	}
}

// Cosign3 is sigstore's cosign. Only `make interop` needs it.
func Cosign3() Set {
	return Set{
		name: "cosign-" + Cosign3Version, module: "hack/cosign3", minutes: 6,
		steps: []step{{ldflags: "-s -w", packages: []string{"github.com/sigstore/cosign/v3/cmd/cosign"}}},
	}
}

// CacheDir is where the lab keeps what it builds and downloads: stayput-lab in the user's cache folder.
func CacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the user's cache folder: %w", err)
	}

	return filepath.Join(base, "stayput-lab"), nil
}

// MarkUsed gives a build in the cache the time of its last use, so that old ones can be told.
func MarkUsed(path string) error {
	now := time.Now()

	if err := os.Chtimes(path, now, now); err != nil {
		return fmt.Errorf("noting the use of %s: %w", path, err)
	}

	return nil
}

// Dir is where the set's programs are once Ensure has returned.
func (s Set) Dir() (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}

	return filepath.Join(cache, s.name), nil
}

// Programs are the file names in Dir.
func (s Set) Programs() []string {
	var names []string

	for _, step := range s.steps {
		for _, path := range step.packages {
			names = append(names, programName(path))
		}
	}

	return names
}

// programName is the name that the Go command gives the program of a package: a major-version suffix does not count.
func programName(path string) string {
	base := filepath.Base(path)
	if len(base) > 1 && base[0] == 'v' && strings.Trim(base[1:], "0123456789") == "" {
		base = filepath.Base(filepath.Dir(path))
	}

	if base == "server" {
		return "etcd" // go.etcd.io/etcd/server: the program is called etcd everywhere
	}

	return base
}

// Ensure builds the set unless it is there, and returns its directory. It blocks while another process builds it.
// root is the repository's root.
func Ensure(ctx context.Context, root string, set Set, report Report) (string, error) {
	dir, err := set.Dir()
	if err != nil {
		return "", err
	}

	if set.complete(dir) {
		return dir, nil
	}

	unlock, err := Lock(ctx, dir+".lock", func() { report("waiting for another build of %s", set.name) })
	if err != nil {
		return "", err
	}
	defer unlock()

	if set.complete(dir) {
		return dir, nil
	}

	if err := set.build(ctx, root, dir, report); err != nil {
		return "", fmt.Errorf("building %s: %w", set.name, err)
	}

	return dir, nil
}

func (s Set) complete(dir string) bool {
	for _, name := range s.Programs() {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
			return false
		}
	}

	return true
}

func (s Set) build(ctx context.Context, root, dir string, report Report) error {
	temporary, err := os.MkdirTemp(filepath.Dir(dir), "."+s.name+"-")
	if err != nil {
		return fmt.Errorf("making a build directory: %w", err)
	}
	defer os.RemoveAll(temporary)

	report("building %s from %s (about %d minutes from an empty build cache)", s.name, s.module, s.minutes)
	started := time.Now()

	for _, step := range s.steps {
		if err := step.run(ctx, filepath.Join(root, s.module), temporary, func(what string) {
			report("building %s: %s, %s so far", s.name, what, time.Since(started).Round(time.Second))
		}); err != nil {
			return err
		}
	}

	if err := os.Chmod(temporary, dirMode); err != nil {
		return fmt.Errorf("setting the mode of the build directory: %w", err)
	}

	if err := os.RemoveAll(dir); err != nil { // an incomplete one of an earlier way of building
		return fmt.Errorf("removing the incomplete %s: %w", dir, err)
	}

	if err := os.Rename(temporary, dir); err != nil {
		return fmt.Errorf("putting the build in its place: %w", err)
	}

	report("built %s in %s", s.name, time.Since(started).Round(time.Second))

	return nil
}

// run compiles the packages of the step, saying every progressInterval what is there already.
func (s step) run(ctx context.Context, module, out string, alive func(what string)) error {
	target := out + string(filepath.Separator)
	if len(s.packages) == 1 {
		target = filepath.Join(out, programName(s.packages[0]))
	}

	args := append([]string{"build", "-ldflags", s.ldflags, "-o", target}, s.packages...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = module
	// The flags of the Makefile: one build cache serves the product, its tests and the lab.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false")

	type result struct {
		output []byte
		err    error
	}

	done := make(chan result, 1)

	go func() {
		output, err := cmd.CombinedOutput()
		done <- result{output, err}
	}()

	ticker := time.NewTicker(progressInterval)
	defer ticker.Stop()

	for {
		select {
		case r := <-done:
			if r.err != nil {
				return fmt.Errorf("go build in %s: %w\n%s", module, r.err, r.output)
			}

			return nil
		case <-ticker.C:
			alive(built(out))
		}
	}
}

func built(dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		return "compiling"
	}

	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}

	return "done " + strings.Join(names, ", ")
}

// Lock takes an exclusive flock on the file, which the kernel gives back when its holder dies, and returns what gives it
// back. waiting is called now and then while another holds it. The context bounds the wait.
func Lock(ctx context.Context, path string, waiting func()) (func(), error) {
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return nil, fmt.Errorf("making the lock's directory: %w", err)
	}

	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, fileMode)
	if err != nil {
		return nil, fmt.Errorf("opening the lock: %w", err)
	}

	said := time.Time{}

	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil
		}

		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), file.Close())
		}

		if time.Since(said) >= progressInterval {
			waiting()

			said = time.Now()
		}

		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("waiting for the lock %s: %w", path, ctx.Err()), file.Close())
		case <-time.After(lockInterval):
		}
	}
}

// ErrNoModule means that no go.mod of this project lies above a directory.
var ErrNoModule = errors.New("not inside the Stayput repository")

// RepositoryRoot is the directory of the project's go.mod, looked for upwards from the working directory.
func RepositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the working directory: %w", err)
	}

	for ; ; dir = filepath.Dir(dir) {
		data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(data), "module github.com/stayput-dev/stayput\n") {
			return dir, nil
		}

		if dir == filepath.Dir(dir) {
			return "", ErrNoModule
		}
	}
}
