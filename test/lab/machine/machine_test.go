package machine_test

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stayput-dev/stayput/test/lab/machine"
	"github.com/stayput-dev/stayput/test/lab/ports"
)

// firmwareWait is how long emulated firmware may take to its first line on the console, on a busy machine.
const firmwareWait = 2 * time.Minute

func TestTheProbeTellsAFirmwareThatComesUp(t *testing.T) {
	t.Parallel()

	works, err := machine.Probe(t.Context(), machine.Emulation)
	if err != nil || !works {
		t.Errorf("emulation: works %v, %v", works, err)
	}

	detected, err := machine.Detect(t.Context())
	if err != nil || (detected != machine.KVM && detected != machine.Emulation) {
		t.Errorf("detected %q, %v", detected, err)
	}

	t.Logf("guests run under %s here", detected)
}

func TestPowerOfAMachineAndItsTraces(t *testing.T) {
	t.Parallel()

	g := NewWithT(t)
	ctx := t.Context()
	m, libvirt := create(t, "stayput-test-"+strings.ToLower(rand.Text()[:6]))

	g.Expect(m.Running(ctx)).To(BeFalse())
	g.Expect(m.PowerOn(ctx)).To(Succeed())
	g.Expect(m.Running(ctx)).To(BeTrue())

	// The firmware runs: it finds nothing to boot and says so on the serial console.
	g.Expect(m.Inspect(t.Context())).To(And(ContainSubstring("running"), ContainSubstring("IP=")))
	g.Eventually(func() (string, error) { return m.Console(4 << 10) }).WithTimeout(firmwareWait).
		Should(ContainSubstring("BdsDxe"))

	g.Expect(m.Suspend(ctx)).To(Succeed())
	g.Expect(m.PowerCut(ctx)).To(Succeed())
	g.Expect(m.WaitOff(ctx)).To(Succeed())
	g.Expect(m.DataUntouched()).To(BeTrue())

	again, err := libvirt.Open(filepath.Dir(m.SystemDisk()))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again.UUID()).To(Equal(m.UUID()))
	g.Expect(again.PowerOn(ctx)).To(Succeed())

	// A write of one byte anywhere on the data disk is seen.
	flipByte(t, filepath.Join(filepath.Dir(m.SystemDisk()), "data.img"))
	g.Expect(again.DataUntouched()).To(BeFalse())

	g.Expect(again.Destroy(ctx)).To(Succeed())
	g.Expect(again.Destroy(ctx)).To(Succeed(), "a second time")

	domains, err := libvirt.Domains(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(slices.Contains(domains, m.Domain())).To(BeFalse())
	g.Expect(filepath.Join("/var/log/libvirt/qemu", m.Domain()+".log")).NotTo(BeAnExistingFile())
}

func create(t *testing.T, domain string) (*machine.Machine, *machine.Libvirt) {
	t.Helper()

	shared, err := machine.SharedDir()
	if err != nil {
		t.Fatal(err)
	}

	libvirt, err := machine.ConnectLibvirt(t.Context(), shared)
	if err != nil {
		t.Fatal(err)
	}

	acceleration, err := machine.Detect(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	port, err := new(ports.Allocator).Next()
	if err != nil {
		t.Fatal(err)
	}

	key, err := machine.NewKey()
	if err != nil {
		t.Fatal(err)
	}

	m, err := libvirt.Create(t.Context(), machine.Spec{
		Name: "one", Domain: domain, Dir: filepath.Join(t.TempDir(), "one"), DiskSize: 64 << 20, SSHPort: port, Key: key,
		Acceleration: acceleration, MemoryMiB: 256,
	})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		ctx := context.Background()
		if err := m.Destroy(ctx); err != nil {
			t.Error(err)
		}

		if err := machine.ReleaseLibvirt(ctx, shared); err != nil {
			t.Error(err)
		}
	})

	return m, libvirt
}

func flipByte(t *testing.T, path string) {
	t.Helper()

	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}

	defer file.Close()

	const somewhere = 12345

	one := make([]byte, 1)
	if _, err := file.ReadAt(one, somewhere); err != nil {
		t.Fatal(err)
	}

	one[0] ^= 1
	if _, err := file.WriteAt(one, somewhere); err != nil {
		t.Fatal(err)
	}
}
