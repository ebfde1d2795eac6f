package osbuild

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
)

// Fault is what is broken in a version. What it makes useless is left out, so that a machine has written it sooner.
type Fault string

// The faults.
const (
	// None: a good version.
	None Fault = ""
	// Panic: the kernel finds neither an init nor a root file system, and panics. panic= on its command line makes
	// it start again after five seconds.
	Panic Fault = "panic"
	// Hang: nothing is started after the kernel, and nothing ends it: no unit, no network, no armed watchdog.
	Hang Fault = "hang"
	// SickKubelet: the system is fine, but in place of its kubelet a program runs that exits at once, each time.
	SickKubelet Fault = "sickkubelet"
	// NoNetwork: the system is fine, but its network interfaces are never configured. It has no kubelet, which could
	// reach nobody.
	NoNetwork Fault = "nonetwork"
)

// Faults are all of them, None aside.
func Faults() []Fault {
	return []Fault{Panic, Hang, SickKubelet, NoNetwork}
}

// Variant is one version of the lab's OS.
type Variant struct {
	// Version becomes IMAGE_VERSION: numbers and dots, such as "1.1.0".
	Version string
	Fault   Fault
	// FillMiB fills /usr up to so many MiB with files of this machine, other ones for each version in part; 0 for none. What
	// is made like this depends on the machine: it is for measuring, not for comparing digests.
	FillMiB int64
}

// errVariant is what a malformed variant is refused with.
var errVariant = errors.New("not a variant of the lab's OS")

// maxFillMiB is four times what an OS image has.
const maxFillMiB = 8192

var versionPattern = regexp.MustCompile(`^[0-9]+(\.[0-9]+){0,3}$`)

// Validate refuses a malformed version and an unknown fault.
func (v Variant) Validate() error {
	if !versionPattern.MatchString(v.Version) {
		return fmt.Errorf("%w: version %q: want numbers and dots, such as 1.1.0", errVariant, v.Version)
	}

	if v.FillMiB < 0 || v.FillMiB > maxFillMiB {
		return fmt.Errorf("%w: filled up to %d MiB: want at most %d", errVariant, v.FillMiB, maxFillMiB)
	}

	if v.Fault == None || slices.Contains(Faults(), v.Fault) {
		return nil
	}

	return fmt.Errorf("%w: fault %q: want one of %q, or nothing", errVariant, v.Fault, Faults())
}

// String names the variant, and its folder: "1.1.0", "1.2.0-panic" or "1.1.0-2048MiB".
func (v Variant) String() string {
	name := v.Version
	if v.Fault != None {
		name += "-" + string(v.Fault)
	}

	if v.FillMiB > 0 {
		name += fmt.Sprintf("-%dMiB", v.FillMiB)
	}

	return name
}

// osRelease is /usr/lib/os-release. IMAGE_ID and IMAGE_VERSION are what systemd-boot sorts by.
func (v Variant) osRelease() string {
	return fmt.Sprintf(`NAME="Stayput lab OS"
PRETTY_NAME="Stayput lab OS %[1]s"
ID=%[2]s
ID_LIKE=debian
VERSION_ID=%[1]s
IMAGE_ID=%[2]s
IMAGE_VERSION=%[1]s
`, v.Version, ImageID)
}

// stopsEarly tells that the variant never mounts its /usr. That holds nothing but os-release then, so that a machine has
// written it in seconds.
func (v Variant) stopsEarly() bool { return v.Fault == Panic || v.Fault == Hang }

// withoutKubelet tells that the variant's kubelet would do nothing. It is a third of /usr, so that a machine has written
// that sooner without it.
func (v Variant) withoutKubelet() bool { return v.Fault == SickKubelet || v.Fault == NoNetwork }

// files are the files below /usr that make the variant differ from the others.
func (v Variant) files() map[string]string {
	files := map[string]string{"lib/os-release": v.osRelease()}

	if v.withoutKubelet() {
		files["lib/systemd/system/kubelet.service.d/50-fault.conf"] = "[Service]\nExecStart=\nExecStart=/usr/bin/false\n"
	}

	if v.Fault == NoNetwork {
		files["lib/systemd/network/10-fault.network"] = "[Match]\nName=*\n\n[Link]\nUnmanaged=yes\n"
	}

	return files
}

// commandLine is the kernel's. Its length is limited by the kernel to 2048 bytes.
func (v Variant) commandLine(rootHash string) string {
	line := "root=PARTLABEL=root rootfstype=ext4 rw fsck.mode=skip" +
		" usrhash=" + rootHash + " mount.usr=/dev/mapper/usr mount.usrfstype=erofs mount.usrflags=ro" +
		// A kernel or initrd that fails must start again, so that the boot loader counts the try.
		" panic=5 oops=panic rd.shell=0 rd.emergency=reboot systemd.default_device_timeout_sec=180" +
		" console=ttyS0 loglevel=4 systemd.show_status=error" +
		// What a machine under emulation need not spend its time on.
		" mitigations=off nowatchdog audit=0 apparmor=0 cryptomgr.notests tsc=reliable 8250.nr_uarts=1"

	switch v.Fault {
	case Panic:
		return line + " rdinit=/nonexistent"
	case Hang:
		return line + " rdinit=/usr/bin/sleep infinity"
	case None, SickKubelet, NoNetwork:
	}

	return line
}
