package machine

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/stayput-dev/stayput/test/lab/process"
)

const (
	systemDiskFile  = "system.img"
	configDriveFile = "config.iso"
	dataDiskFile    = "data.img"
	nvramFile       = "nvram.fd"
	consoleFile     = "console.log"
	stateFile       = "machine.json"

	defaultMemoryMiB = 1536
	defaultCPUs      = 2
	// emulatedCPUs: emulated processors that wait for each other burn the host's when it has few, and a lab has two
	// machines on as little as two processors.
	emulatedCPUs = 1
	dataDiskSize = 16 << 20

	// priority is the nice value of a machine's session. What serves the machines goes before them.
	priority = -10
)

// Spec says what machine to make.
type Spec struct {
	// Name is the node's name; Domain the libvirt domain's, unique on this host.
	Name, Domain string
	// Dir holds everything of this machine.
	Dir string
	// Index tells the machines of a lab apart: 0, 1, …; it gives the guest its address.
	Index int
	// Disk is the raw image that the system disk starts as; "" means an empty disk of DiskSize bytes.
	Disk string
	// DiskSize is the size of the system disk; 0 means that of the image.
	DiskSize int64
	// Files are unpacked over the guest's root at its first boot.
	Files []File
	// SSHPort is the port of this host that leads to the guest's SSH server; Key is who may log in.
	SSHPort int
	Key     Key
	// Acceleration is what Detect found.
	Acceleration Acceleration
	// MemoryMiB and CPUs default to 1536 and 2, or 1 when the machine is emulated.
	MemoryMiB, CPUs uint
}

// Machine is a machine that was made.
type Machine struct {
	dir     string
	state   state
	libvirt *Libvirt
}

type state struct {
	Name         string       `json:"name"`
	Domain       string       `json:"domain"`
	UUID         string       `json:"uuid"`
	Index        int          `json:"index"`
	SSHPort      int          `json:"sshPort"`
	Key          Key          `json:"key"`
	Acceleration Acceleration `json:"acceleration"`
	MemoryMiB    uint         `json:"memoryMiB"`
	CPUs         uint         `json:"cpus"`
	DataDigest   string       `json:"dataDigest"`
}

// Create makes a machine and defines it in libvirt. It is off.
func (l *Libvirt) Create(ctx context.Context, spec Spec) (*Machine, error) {
	machine := &Machine{dir: spec.Dir, libvirt: l, state: state{
		Name: spec.Name, Domain: spec.Domain, UUID: string(uuid.NewUUID()), Index: spec.Index, SSHPort: spec.SSHPort, Key: spec.Key,
		Acceleration: spec.Acceleration, MemoryMiB: spec.MemoryMiB, CPUs: spec.CPUs,
	}}
	if machine.state.MemoryMiB == 0 {
		machine.state.MemoryMiB = defaultMemoryMiB
	}

	if machine.state.CPUs == 0 {
		machine.state.CPUs = defaultCPUs
		if spec.Acceleration != KVM {
			machine.state.CPUs = emulatedCPUs
		}
	}

	if err := machine.makeFiles(ctx, spec); err != nil {
		return nil, fmt.Errorf("making machine %s: %w", spec.Name, err)
	}

	if err := machine.define(ctx); err != nil {
		// By UUID: a domain of this name may be another's. The error does not matter when nothing was defined.
		_, _ = l.virsh(context.WithoutCancel(ctx), "undefine", "--nvram", machine.state.UUID)

		return nil, fmt.Errorf("defining machine %s: %w", spec.Name, err)
	}

	return machine, nil
}

// Open finds a machine that Create made earlier.
func (l *Libvirt) Open(dir string) (*Machine, error) {
	machine := &Machine{dir: dir, libvirt: l}

	data, err := os.ReadFile(machine.file(stateFile))
	if err != nil {
		return nil, fmt.Errorf("reading the machine's state: %w", err)
	}

	if err := json.Unmarshal(data, &machine.state); err != nil {
		return nil, fmt.Errorf("reading %s: %w", machine.file(stateFile), err)
	}

	return machine, nil
}

func (m *Machine) makeFiles(ctx context.Context, spec Spec) error {
	if err := os.MkdirAll(m.dir, dirMode); err != nil {
		return fmt.Errorf("making its directory: %w", err)
	}

	if err := m.makeSystemDisk(ctx, spec); err != nil {
		return err
	}

	if err := writeConfigDrive(m.file(configDriveFile), append(spec.Files, spec.Key.files()...)); err != nil {
		return err
	}

	digest, err := writeRandom(m.file(dataDiskFile), dataDiskSize)
	if err != nil {
		return err
	}

	m.state.DataDigest = digest

	if err := copyFile(ctx, firmwareVars, m.file(nvramFile)); err != nil {
		return err
	}

	// The console's file exists from the start: whoever follows it need not wait for the first power-on.
	console, err := os.OpenFile(m.ConsoleFile(), os.O_CREATE|os.O_WRONLY, fileMode)
	if err != nil {
		return fmt.Errorf("making the console log: %w", err)
	}

	if err := console.Close(); err != nil {
		return fmt.Errorf("making the console log: %w", err)
	}

	data, err := json.MarshalIndent(m.state, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding its state: %w", err)
	}

	if err := renameio.WriteFile(m.file(stateFile), data, fileMode); err != nil {
		return fmt.Errorf("writing its state: %w", err)
	}

	return nil
}

func (m *Machine) makeSystemDisk(ctx context.Context, spec Spec) error {
	if spec.Disk != "" {
		if err := copyFile(ctx, spec.Disk, m.SystemDisk()); err != nil {
			return err
		}
	}

	if spec.DiskSize == 0 {
		return nil
	}

	file, err := os.OpenFile(m.SystemDisk(), os.O_CREATE|os.O_WRONLY, fileMode)
	if err != nil {
		return fmt.Errorf("opening the system disk: %w", err)
	}

	info, err := file.Stat()
	if err == nil && info.Size() < spec.DiskSize {
		err = file.Truncate(spec.DiskSize)
	}

	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("sizing the system disk: %w", err)
	}

	return nil
}

func (m *Machine) define(ctx context.Context) error {
	models, err := m.libvirt.securityModels(ctx)
	if err != nil {
		return err
	}

	document, err := m.domain(models).Marshal()
	if err != nil {
		return fmt.Errorf("encoding the domain: %w", err)
	}

	file := m.file("domain.xml")
	if err := os.WriteFile(file, []byte(document), fileMode); err != nil {
		return fmt.Errorf("writing the domain: %w", err)
	}

	_, err = m.libvirt.virsh(ctx, "define", "--validate", file)

	return err
}

// Name is the node's name.
func (m *Machine) Name() string { return m.state.Name }

// Domain is the libvirt domain's name.
func (m *Machine) Domain() string { return m.state.Domain }

// UUID is the SMBIOS and libvirt UUID, lower-case: the ID of the system at a Redfish emulator.
func (m *Machine) UUID() string { return m.state.UUID }

// MAC is the address of its network card.
func (m *Machine) MAC() string { return m.mac() }

// SystemDisk is the file of the system disk, raw.
func (m *Machine) SystemDisk() string { return m.file(systemDiskFile) }

// ConsoleFile is the file that everything goes to that the machine prints on its serial console.
func (m *Machine) ConsoleFile() string { return m.file(consoleFile) }

// Console is the last bytes, at most limit, of what the machine printed.
func (m *Machine) Console(limit int64) (string, error) {
	file, err := os.Open(m.ConsoleFile())
	if err != nil {
		return "", fmt.Errorf("opening the console of %s: %w", m.state.Name, err)
	}
	defer file.Close()

	info, err := file.Stat()
	if err != nil {
		return "", fmt.Errorf("reading the console of %s: %w", m.state.Name, err)
	}

	start := max(0, info.Size()-limit)

	data, err := io.ReadAll(io.NewSectionReader(file, start, info.Size()-start))
	if err != nil {
		return "", fmt.Errorf("reading the console of %s: %w", m.state.Name, err)
	}

	return string(data), nil
}

// Inspect is what QEMU says of the machine, for a person who wants to know where one hangs: its state, and twice the
// registers, of which the instruction pointer tells firmware from kernel, and a loop from a halt.
func (m *Machine) Inspect(ctx context.Context) (string, error) {
	var seen strings.Builder

	for _, question := range []string{"info status", "info registers", "info registers"} {
		answer, err := m.libvirt.virsh(ctx, "qemu-monitor-command", m.state.Domain, "--hmp", question)
		if err != nil {
			return seen.String(), err
		}

		seen.WriteString(answer + "\n")
	}

	return seen.String(), nil
}

// PowerOn starts the machine. It is an error when it runs.
func (m *Machine) PowerOn(ctx context.Context) error {
	if _, err := m.libvirt.virsh(ctx, "start", m.state.Domain); err != nil {
		return err
	}

	m.Prioritize()

	return nil
}

// Prioritize puts the machine's emulator before the compilers and tests that run beside it: waits inside a guest are in
// wall-clock time, and an emulated guest that gets no processor takes its disks for lost. The kernel shares processors
// between sessions first (autogroup, sched(7)) and looks at nice values only within one; every start of a machine makes
// a session, so this is to be repeated when something else may have started it. A kernel without autogroup needs none.
func (m *Machine) Prioritize() {
	pid, err := os.ReadFile(filepath.Join("/run/libvirt/qemu", m.state.Domain+".pid"))
	if err != nil {
		return // it is off
	}

	if number, err := strconv.Atoi(strings.TrimSpace(string(pid))); err == nil {
		process.Prioritize(number, priority)
	}
}

// PowerCut takes the power away at once, as pulling the plug does. It is an error when the machine is off.
func (m *Machine) PowerCut(ctx context.Context) error {
	_, err := m.libvirt.virsh(ctx, "destroy", m.state.Domain)

	return err
}

// Running tells whether the machine has power.
func (m *Machine) Running(ctx context.Context) (bool, error) {
	output, err := m.libvirt.virsh(ctx, "domstate", m.state.Domain)

	return strings.TrimSpace(output) == "running", err
}

// Suspend stops the machine's processors, as a machine that hangs: it has power, answers nothing and does nothing.
func (m *Machine) Suspend(ctx context.Context) error {
	_, err := m.libvirt.virsh(ctx, "suspend", m.state.Domain)

	return err
}

// DataUntouched tells whether the data disk holds exactly the bytes that it was made with.
func (m *Machine) DataUntouched() (bool, error) {
	file, err := os.Open(m.file(dataDiskFile))
	if err != nil {
		return false, fmt.Errorf("opening the data disk: %w", err)
	}
	defer file.Close()

	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return false, fmt.Errorf("reading the data disk: %w", err)
	}

	return hex.EncodeToString(hash.Sum(nil)) == m.state.DataDigest, nil
}

// ListFAT lists a folder of a FAT file system on the system disk that starts at offset, for a look at the ESP while
// the machine is off. path is like "/EFI/Linux".
func (m *Machine) ListFAT(ctx context.Context, offset int64, path string) (string, error) {
	image := fmt.Sprintf("%s@@%d", m.SystemDisk(), offset)
	cmd := exec.CommandContext(ctx, "mdir", "-b", "-i", image, "::"+path)
	cmd.Env = append(os.Environ(), "MTOOLS_SKIP_CHECK=1")

	output, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("listing %s at %d: %w: %s", path, offset, err, output)
	}

	return string(output), nil
}

// Destroy takes the machine's power and its definition away. Its files go with its directory. It is safe to repeat.
func (m *Machine) Destroy(ctx context.Context) error {
	return m.libvirt.Remove(ctx, m.state.Domain)
}

// Remove destroys and undefines a domain, and removes libvirt's own log of it. It is safe to repeat.
func (l *Libvirt) Remove(ctx context.Context, domain string) error {
	domains, err := l.Domains(ctx)
	if err != nil {
		return err
	}

	for _, name := range domains {
		if name != domain {
			continue
		}

		if _, err := l.virsh(ctx, "destroy", domain); err != nil && !strings.Contains(err.Error(), "not running") {
			return err
		}

		if _, err := l.virsh(ctx, "undefine", "--nvram", domain); err != nil {
			return err
		}
	}

	if err := os.Remove(filepath.Join("/var/log/libvirt/qemu", domain+".log")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing libvirt's log of %s: %w", domain, err)
	}

	return nil
}

// WaitOff returns when the machine has no power.
func (m *Machine) WaitOff(ctx context.Context) error {
	for {
		running, err := m.Running(ctx)
		if err != nil || !running {
			return err
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s to go off: %w", m.state.Name, ctx.Err())
		case <-time.After(pollInterval):
		}
	}
}

func (m *Machine) file(name string) string { return filepath.Join(m.dir, name) }

// copyFile copies a file, keeping its holes, and sharing its blocks where the file system can.
func copyFile(ctx context.Context, from, to string) error {
	output, err := exec.CommandContext(ctx, "cp", "--reflink=auto", "--sparse=always", from, to).CombinedOutput()
	if err != nil {
		return fmt.Errorf("copying %s: %w: %s", from, err, output)
	}

	if err := os.Chmod(to, fileMode); err != nil {
		return fmt.Errorf("setting the mode of %s: %w", to, err)
	}

	return nil
}

func writeRandom(path string, size int64) (string, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, fileMode)
	if err != nil {
		return "", fmt.Errorf("making the data disk: %w", err)
	}

	hash := sha256.New()
	_, err = io.CopyN(io.MultiWriter(file, hash), rand.Reader, size)

	if err := errors.Join(err, file.Close()); err != nil {
		return "", fmt.Errorf("filling the data disk: %w", err)
	}

	return hex.EncodeToString(hash.Sum(nil)), nil
}
