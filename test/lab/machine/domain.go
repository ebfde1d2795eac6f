package machine

import (
	"fmt"
	"slices"

	"libvirt.org/go/libvirtxml"
)

const (
	firmwareCode = "/usr/share/OVMF/OVMF_CODE_4M.fd"
	firmwareVars = "/usr/share/OVMF/OVMF_VARS_4M.fd"

	guestNetwork = "10.0.2.0/24"
	guestSSHPort = 22
	// firstAddress is the guest address of the machine with index 0; below it are QEMU's own.
	firstAddress = 16
	// networkSlot is a PCI slot that libvirt, which does not see the network card, leaves free: it fills from 0x1.
	networkSlot = "0x10"
)

// domain is the libvirt definition of the machine. securityModels are those that libvirt has here.
func (m *Machine) domain(securityModels []string) *libvirtxml.Domain {
	disks := []libvirtxml.DomainDisk{
		disk(m.SystemDisk(), "vda", "system"), disk(m.file(configDriveFile), "vdb", "config"),
		disk(m.file(dataDiskFile), "vdc", "data"),
	}
	disks[0].Boot = &libvirtxml.DomainDeviceBoot{Order: 1}
	disks[1].ReadOnly = &libvirtxml.DomainDiskReadOnly{}

	return &libvirtxml.Domain{
		Type:   string(m.state.Acceleration),
		Name:   m.state.Domain,
		UUID:   m.state.UUID,
		Memory: &libvirtxml.DomainMemory{Value: m.state.MemoryMiB, Unit: "MiB"},
		VCPU:   &libvirtxml.DomainVCPU{Value: m.state.CPUs},
		OS: &libvirtxml.DomainOS{
			Type:   &libvirtxml.DomainOSType{Arch: "x86_64", Machine: "q35", Type: "hvm"},
			Loader: &libvirtxml.DomainLoader{Path: firmwareCode, Readonly: "yes", Type: "pflash"},
			NVRam:  &libvirtxml.DomainNVRam{NVRam: m.file(nvramFile), Template: firmwareVars},
		},
		Features: &libvirtxml.DomainFeatureList{
			ACPI: &libvirtxml.DomainFeature{}, APIC: &libvirtxml.DomainFeatureAPIC{},
		},
		CPU:        m.cpu(),
		Clock:      &libvirtxml.DomainClock{Offset: "utc"},
		OnPoweroff: "destroy",
		OnReboot:   "restart",
		OnCrash:    "restart",
		Devices: &libvirtxml.DomainDeviceList{
			Emulator: qemuProgram,
			Disks:    disks,
			Controllers: []libvirtxml.DomainController{
				{Type: "usb", Model: "none"},
			},
			Serials: []libvirtxml.DomainSerial{{
				Source: &libvirtxml.DomainChardevSource{
					File: &libvirtxml.DomainChardevSourceFile{Path: m.ConsoleFile(), Append: "on"},
				},
			}},
			// QEMU resets the machine when the guest stops feeding it.
			Watchdogs:  []libvirtxml.DomainWatchdog{{Model: "i6300esb", Action: "reset"}},
			MemBalloon: &libvirtxml.DomainMemBalloon{Model: "none"},
			RNGs: []libvirtxml.DomainRNG{{
				Model:   "virtio",
				Backend: &libvirtxml.DomainRNGBackend{Random: &libvirtxml.DomainRNGBackendRandom{Device: "/dev/urandom"}},
			}},
		},
		SecLabel:        securityLabels(securityModels),
		QEMUCommandline: &libvirtxml.DomainQEMUCommandline{Args: m.network()},
	}
}

// emulatedSlow are features that programs take for fast and that QEMU emulates slowly. The SHA-256 that every staged byte
// goes through ran at 20 MB/s with AVX and at 32 MB/s without; without AES instructions TLS takes ChaCha20, which ran three
// times as fast as AES-GCM with them (QEMU 7.2, user mode, Go 1.26).
func emulatedSlow() []string { return []string{"aes", "avx", "avx2", "erms", "pclmuldq"} }

func (m *Machine) cpu() *libvirtxml.DomainCPU {
	cpu := &libvirtxml.DomainCPU{Mode: "maximum"}

	if m.state.Acceleration == Emulation {
		for _, feature := range emulatedSlow() {
			cpu.Features = append(cpu.Features, libvirtxml.DomainCPUFeature{Policy: "disable", Name: feature})
		}
	}

	return cpu
}

func disk(path, device, serial string) libvirtxml.DomainDisk {
	return libvirtxml.DomainDisk{
		Device: "disk",
		// Unsafe: the guest's flushes do not wait for the host's disk, which need not outlive the host.
		Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: "raw", Cache: "unsafe", Discard: "unmap"},
		Source: &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: path}},
		Target: &libvirtxml.DomainDiskTarget{Dev: device, Bus: "virtio"},
		Serial: serial,
	}
}

// network is QEMU's user network with a forward to the guest's SSH server. It is given to QEMU directly, for libvirt
// 9.0 forwards ports only with passt. Each machine has an address of its own: a Node's address shall tell it apart.
func (m *Machine) network() []libvirtxml.DomainQEMUCommandlineArg {
	words := []string{
		"-netdev", fmt.Sprintf("user,id=lab,net=%s,dhcpstart=%s,hostfwd=tcp:127.0.0.1:%d-:%d",
			guestNetwork, m.Address(), m.state.SSHPort, guestSSHPort),
		"-device", "virtio-net-pci,netdev=lab,romfile=,bus=pcie.0,addr=" + networkSlot + ",mac=" + m.mac(),
	}

	args := make([]libvirtxml.DomainQEMUCommandlineArg, 0, len(words))
	for _, word := range words {
		args = append(args, libvirtxml.DomainQEMUCommandlineArg{Value: word})
	}

	return args
}

func (m *Machine) mac() string { return fmt.Sprintf("52:54:00:73:70:%02x", m.state.Index+1) }

// Address is the guest's IPv4 address in its user network.
func (m *Machine) Address() string { return AddressOf(m.state.Index) }

// AddressOf is the address of the machine with that index.
func AddressOf(index int) string { return fmt.Sprintf("10.0.2.%d", firstAddress+index) }

// securityLabels let the machine's QEMU run as root and leave the owners of its files alone, so that the lab can live
// in a private directory and the host's libvirt configuration stays as it is.
func securityLabels(models []string) []libvirtxml.DomainSecLabel {
	var labels []libvirtxml.DomainSecLabel

	if slices.Contains(models, "apparmor") {
		labels = append(labels, libvirtxml.DomainSecLabel{Type: "none", Model: "apparmor"})
	}

	return append(labels, libvirtxml.DomainSecLabel{Type: "static", Model: "dac", Relabel: "no", Label: "+0:+0"})
}
