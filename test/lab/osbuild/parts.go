package osbuild

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// Fixed, so that nothing differs between two builds; mkfs would draw them.
const (
	usrUUID   = "6b7f3c1e-52a4-4a55-9a0e-3d1f5c0b7a01"
	treeUUID  = "6b7f3c1e-52a4-4a55-9a0e-3d1f5c0b7a02"
	stateUUID = "6b7f3c1e-52a4-4a55-9a0e-3d1f5c0b7a03"
	stateSeed = "6b7f3c1e-52a4-4a55-9a0e-3d1f5c0b7a04"
	// treeSalt is hashed before each block of usr. It is no secret, it lies beside the tree; a fresh one would keep whoever
	// can have blocks put into an image from preparing colliding ones, which SHA-256 does not have as far as anybody knows.
	// What protects usr is the root hash. With the same salt, what versions have in common has the same hash tree.
	treeSalt = "8d1c3f0a5b7e42969e0d61f4a2c85b37d4e9f6018c7a4b25903fd2e6b1a87c54"
	// stateSize is that of the state's file system before it grows to its partition.
	stateSize = "192M"
)

// baseArguments are those of mmdebstrap, but for paths.
func baseArguments() []string {
	packages, _ := baseFiles.ReadFile("base/packages.txt")

	return []string{
		"--variant=minbase", "--mode=root", "--format=directory",
		"--aptopt=Acquire::Languages \"none\"", "--dpkgopt=force-unsafe-io",
		"--include=" + strings.Join(lines(string(packages)), ","),
		"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/info/*",
		"--dpkgopt=path-exclude=/usr/share/locale/*", "--dpkgopt=path-exclude=/usr/share/man/*",
	}
}

// buildBase unpacks Debian 13 with the system and the build tools: the folder "tree" of what it returns.
func buildBase(ctx context.Context, store *store) (string, string, error) {
	name, err := keyOf(func(k key) error {
		modules, _ := baseFiles.ReadFile("base/modules.txt")
		hook, _ := baseFiles.ReadFile("base/hook.sh")

		return errors.Join(k.text(baseArguments()...), k.text(lines(string(modules))...), k.text(string(hook)))
	})
	if err != nil {
		return "", "", err
	}

	dir, err := store.once("osbuild-base-"+name, "Debian packages (about 1 min)", func(dir string) error {
		if err := os.CopyFS(filepath.Join(dir, "inputs"), baseFiles); err != nil {
			return fmt.Errorf("writing the hook: %w", err)
		}

		inputs := filepath.Join(dir, "inputs", "base")
		arguments := append(baseArguments(),
			fmt.Sprintf("--customize-hook=sh '%s/hook.sh' \"$1\" '%s/modules.txt'", inputs, inputs),
			"trixie", filepath.Join(dir, "tree"))

		command := exec.CommandContext(ctx, "eatmydata", append([]string{"mmdebstrap"}, arguments...)...)
		// INITRD=No keeps the kernel package from making an initrd of its own.
		command.Env = append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", epoch), "INITRD=No")

		_, err := output(command)

		return err
	})

	return dir, name, err
}

// initrdArguments are those of dracut: a plain systemd initrd, without dracut's own shell scripts, which take long
// under emulation.
func initrdArguments() []string {
	drivers, _ := initrdFiles.ReadFile("initrd/drivers.txt")

	return []string{
		"--force", "--no-hostonly", "--no-hostonly-cmdline", "--no-early-microcode", "--reproducible", "--nostrip",
		"--compress", "zstd -T0 -12",
		"--modules", "lab systemd systemd-initrd systemd-journald systemd-modules-load systemd-udevd" +
			" systemd-veritysetup dm udev-rules",
		"--add-drivers", strings.Join(lines(string(drivers)), " "),
	}
}

// buildInitrd makes the initrd that all versions share: the file "initrd" of what it returns.
func buildInitrd(ctx context.Context, store *store, base, baseKey string) (string, string, error) {
	name, err := keyOf(func(k key) error {
		return errors.Join(k.text(baseKey), k.text(initrdArguments()...), k.tree(initrdFiles))
	})
	if err != nil {
		return "", "", err
	}

	dir, err := store.once("osbuild-initrd-"+name, "initrd", func(dir string) error {
		tools := chroot{root: filepath.Join(base, "tree")}

		return tools.withDesk(func(desk desk) error {
			// dracut finds its modules only there. The last one can change what the others installed.
			module := filepath.Join(tools.root, "usr/lib/dracut/modules.d/99lab")
			if err := replaceDir(module, initrdFiles, "initrd"); err != nil {
				return err
			}

			defer func() { _ = os.RemoveAll(module) }()

			release, err := kernelRelease(tools.root)
			if err != nil {
				return err
			}

			arguments := append(initrdArguments(), "--kver", release, desk.in("initrd"))
			if _, err := tools.run(ctx, "dracut", arguments...); err != nil {
				return err
			}

			return moveFile(desk.outside("initrd"), filepath.Join(dir, "initrd"))
		})
	})

	return dir, name, err
}

// replaceDir makes dir hold what a folder of files does. Scripts become programs.
func replaceDir(dir string, files fs.FS, folder string) error {
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("replacing %s: %w", dir, err)
	}

	inner, err := fs.Sub(files, folder)
	if err != nil {
		return fmt.Errorf("replacing %s: %w", dir, err)
	}

	if err := os.CopyFS(dir, inner); err != nil {
		return fmt.Errorf("replacing %s: %w", dir, err)
	}

	scripts, err := filepath.Glob(filepath.Join(dir, "*.sh"))
	if err != nil {
		return fmt.Errorf("replacing %s: %w", dir, err)
	}

	for _, script := range scripts {
		if err := os.Chmod(script, modeProgram); err != nil {
			return fmt.Errorf("replacing %s: %w", dir, err)
		}
	}

	return nil
}

func moveFile(from, to string) error {
	if err := os.Chmod(from, modeFile); err != nil {
		return fmt.Errorf("keeping a result: %w", err)
	}

	if err := os.Rename(from, to); err != nil {
		return fmt.Errorf("keeping a result: %w", err)
	}

	return nil
}

var errKernel = errors.New("want exactly one kernel in the base tree")

func kernelRelease(root string) (string, error) {
	found, err := filepath.Glob(filepath.Join(root, "boot", "vmlinuz-*"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("%w: found %q", errKernel, found)
	}

	return strings.TrimPrefix(filepath.Base(found[0]), "vmlinuz-"), nil
}

// makeVersion writes usr, usr-verity, uki, loader and roothash into dir.
func makeVersion(
	ctx context.Context, tools chroot, inputs Inputs, parts versionParts, variant Variant, dir string,
) error {
	return tools.withDesk(func(desk desk) error {
		files, err := usrTree(tools.root, inputs, variant)
		if err != nil {
			return err
		}

		if err := desk.put("usr.tar", files); err != nil {
			return err
		}

		// Not compressed: on an emulated CPU containerd took 34 s of CPU to start from compressed pages and 10 s from these.
		// Why is not known. The layers are compressed anyway. The ends of files do not lie between the inodes, so that an update
		// fetches what changed, see docs/image-format.md.
		_, err = tools.run(ctx, "mkfs.erofs", "--quiet", "--tar=f", "-Enoinline_data",
			fmt.Sprintf("-T%d", epoch), "-U"+usrUUID, desk.in("usr"), desk.in("usr.tar"))
		if err != nil {
			return err
		}

		rootHash, err := makeVerity(ctx, tools, desk)
		if err != nil {
			return err
		}

		if err := makeUKI(ctx, tools, desk, parts.initrd, variant, rootHash); err != nil {
			return err
		}

		loader := filepath.Join(tools.root, "usr/lib/systemd/boot/efi/systemd-bootx64.efi")
		if err := copyFile(loader, filepath.Join(dir, "loader")); err != nil {
			return err
		}

		for _, part := range []string{"usr", "usr-verity", "uki"} {
			if err := moveFile(desk.outside(part), filepath.Join(dir, part)); err != nil {
				return err
			}
		}

		if err := os.WriteFile(filepath.Join(dir, "roothash"), []byte(rootHash), modeFile); err != nil {
			return fmt.Errorf("keeping the root hash: %w", err)
		}

		return nil
	})
}

var rootHashLine = regexp.MustCompile(`(?m)^Root hash:\s*([0-9a-f]{64})$`)

var errNoRootHash = errors.New("veritysetup told no root hash")

// makeVerity writes the hash tree of usr. No two versions share a root hash, for os-release names the version.
func makeVerity(ctx context.Context, tools chroot, desk desk) (string, error) {
	told, err := tools.run(ctx, "veritysetup", "format", "--hash=sha256", "--salt="+treeSalt,
		"--uuid="+treeUUID, desk.in("usr"), desk.in("usr-verity"))
	if err != nil {
		return "", err
	}

	match := rootHashLine.FindStringSubmatch(told)
	if match == nil {
		return "", fmt.Errorf("%w: %s", errNoRootHash, tail(told))
	}

	return match[1], nil
}

func makeUKI(
	ctx context.Context, tools chroot, desk desk, initrd string, variant Variant, rootHash string,
) error {
	if err := copyFile(filepath.Join(initrd, "initrd"), desk.outside("initrd")); err != nil {
		return err
	}

	if err := os.WriteFile(desk.outside("os-release"), []byte(variant.osRelease()), modeFile); err != nil {
		return fmt.Errorf("writing os-release: %w", err)
	}

	release, err := kernelRelease(tools.root)
	if err != nil {
		return err
	}

	_, err = tools.run(ctx, "ukify", "build", "--linux=/boot/vmlinuz-"+release, "--uname="+release,
		"--initrd="+desk.in("initrd"), "--os-release=@"+desk.in("os-release"),
		"--cmdline="+variant.commandLine(rootHash), "--output="+desk.in("uki"))

	return err
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copying a file: %w", err)
	}

	defer func() { _ = source.Close() }()

	target, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, modeFile)
	if err != nil {
		return fmt.Errorf("copying a file: %w", err)
	}

	_, err = io.Copy(target, source)
	if err := errors.Join(err, target.Close()); err != nil {
		return fmt.Errorf("copying %s: %w", from, err)
	}

	return nil
}
