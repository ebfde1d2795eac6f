package osbuild

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// usrTree is /usr of a variant.
func usrTree(base string, inputs Inputs, variant Variant) (tree, error) {
	files := tree{}

	if variant.stopsEarly() {
		for name, data := range variant.files() {
			files.addFile(name, modeFile, data)
		}

		return files, nil
	}

	exclude, _ := baseFiles.ReadFile("base/exclude.txt")
	if err := files.addHost(filepath.Join(base, "usr"), lines(string(exclude))); err != nil {
		return nil, err
	}

	overlay, err := fs.Sub(overlayFiles, "overlay/usr")
	if err != nil {
		return nil, fmt.Errorf("adding embedded files: %w", err)
	}

	if err := files.addFS(overlay); err != nil {
		return nil, err
	}

	for name, program := range inputs.programs() {
		if name == kubeletPath && variant.withoutKubelet() {
			continue
		}

		if err := files.addProgram(name, program); err != nil {
			return nil, err
		}
	}

	if err := files.addWants(); err != nil {
		return nil, err
	}

	for name, data := range variant.files() {
		files.addFile(name, modeFile, data)
	}

	if err := errors.Join(files.checkRequired(), files.checkLibraries()); err != nil {
		return nil, err
	}

	return files, files.fill("/usr", variant)
}

var errNoUnit = errors.New("no such unit")

// addWants makes the links of base/wants.txt, and multi-user.target the default.
func (t tree) addWants() error {
	const units = "lib/systemd/system/"

	wants, _ := baseFiles.ReadFile("base/wants.txt")
	for _, line := range lines(string(wants)) {
		target, unit, _ := strings.Cut(line, " ")
		if _, there := t[units+unit]; !there {
			return fmt.Errorf("base/wants.txt: %q: %w", line, errNoUnit)
		}

		t.addLink(units+target+".wants/"+unit, "../"+unit)
	}

	t.addLink(units+"default.target", "multi-user.target")
	// logind and others ask for graphics and FUSE.
	t.addLink(units+"modprobe@.service", "/dev/null")

	return nil
}

// stateExclude are the parts of Debian's /etc that belong to the machine, or to what the image leaves out.
func stateExclude() patterns {
	return patterns{
		"*-", "apt", "cron.*", "debconf.conf", "dpkg", "dracut*", "fstab", "hostname", "hosts", "init.d", "initramfs*",
		"kernel", "logrotate.d", "machine-id", "mtab", "os-release", "python3*", "rc?.d", "resolv.conf", "runit",
		"ssh/ssh_host_*", "sv", "systemd/system/*", "ucf.conf", "ufw",
	}
}

// stateTree is the first contents of the persistent root: all but /usr.
func stateTree(base string, inputs Inputs) (tree, error) {
	etc := tree{}
	if err := etc.addHost(filepath.Join(base, "etc"), stateExclude()); err != nil {
		return nil, err
	}

	files := tree{}

	for name, found := range etc {
		files["etc/"+name] = found
	}

	for _, dir := range []string{
		"boot", "dev", "etc", "etc/containerd/certs.d", "etc/kubernetes/kubelet.conf.d", "etc/kubernetes/manifests",
		"etc/stayput", "etc/systemd/system", "home", "media", "mnt", "opt/stayput", "proc", "run", "srv", "sys", "usr",
		"var/cache", "var/lib", "var/log/journal", "var/spool",
	} {
		files.addDir(dir, modeDir)
	}

	files.addDir("root", 0o700)                  //nolint:mnd // as in base-files
	files.addDir("tmp", 0o777|fs.ModeSticky)     //nolint:mnd // as in base-files
	files.addDir("var/tmp", 0o777|fs.ModeSticky) //nolint:mnd // as in base-files

	for name, target := range map[string]string{
		"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64",
		"var/run": "../run", "var/lock": "../run/lock",
		"etc/mtab": "../proc/self/mounts", "etc/os-release": "../usr/lib/os-release",
	} {
		files.addLink(name, target)
	}

	// Empty, not missing: systemd makes an ID and keeps it, without the long way of a first boot (machine-id(5)).
	files.addFile("etc/machine-id", 0o444, "") //nolint:mnd // as systemd has it

	overlay, err := fs.Sub(overlayFiles, "overlay/etc")
	if err != nil {
		return nil, fmt.Errorf("adding embedded files: %w", err)
	}

	config := tree{}
	if err := config.addFS(overlay); err != nil {
		return nil, err
	}

	for name, found := range config {
		files["etc/"+name] = found
	}

	return files, files.addState(inputs.StateDir)
}

// addState adds a folder of the host, as root's.
func (t tree) addState(dir string) error {
	if dir == "" {
		return nil
	}

	extra := tree{}
	if err := extra.addHost(dir, nil); err != nil {
		return err
	}

	for name, found := range extra {
		found.uid, found.gid = 0, 0

		if _, there := t[name]; there && found.mode.IsDir() {
			continue
		}

		t.addParents(name)
		t[name] = found
	}

	return nil
}

// buildState makes the file system image of the persistent root: the file "state" of what it returns.
func buildState(ctx context.Context, store *store, base, baseKey string) (string, error) {
	tools := chroot{root: filepath.Join(base, "tree")}

	files, err := stateTree(tools.root, store.inputs)
	if err != nil {
		return "", err
	}

	name, err := keyOf(func(k key) error {
		return errors.Join(k.text(baseKey, stateSize), k.tree(sources), files.writeTar(k.digest))
	})
	if err != nil {
		return "", err
	}

	return store.once("osbuild-state-"+name, "persistent root", func(dir string) error {
		return tools.withDesk(func(desk desk) error {
			if err := desk.put("state.tar", files); err != nil {
				return err
			}

			_, err := tools.run(ctx, "mke2fs", "-q", "-t", "ext4", "-b", "4096", "-T", "default", "-J", "size=16",
				"-L", "root", "-U", stateUUID, "-E", "hash_seed="+stateSeed+",root_owner=0:0,lazy_itable_init=0",
				"-d", desk.in("state.tar"), desk.in("state"), stateSize)
			if err != nil {
				return err
			}

			return moveFile(desk.outside("state"), filepath.Join(dir, "state"))
		})
	})
}
