package redfish_test

import (
	"errors"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stayput-dev/stayput/bmc"
	driver "github.com/stayput-dev/stayput/bmc/redfish"
	"github.com/stayput-dev/stayput/test/lab/redfish"
)

const uuid = "27946b59-9e44-4fa7-8e91-f3527a1ef094"

func TestEmulator(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	emulator := redfish.StartFake(t, "admin", "secret word", redfish.FakeSystem{UUID: uuid, Name: "one", PoweredOn: true})

	address, err := bmc.ParseAddress(emulator.Address(uuid))
	g.Expect(err).NotTo(HaveOccurred())
	options := bmc.Options{
		Address: address, CA: emulator.CA(), UUID: uuid,
		Credentials: bmc.Credentials{Username: "admin", Password: "secret word"},
	}
	machine, err := driver.Open(t.Context(), options)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(machine.Power(t.Context())).To(Equal(bmc.PowerOn))
	g.Expect(machine.Actions(t.Context())).To(ConsistOf(
		bmc.ActionOn, bmc.ActionForceOff, bmc.ActionForceRestart, bmc.ActionShutdown, bmc.ActionSoftRestart))
	g.Expect(machine.Do(t.Context(), bmc.ActionForceRestart)).To(Succeed())
	g.Eventually(func() (bmc.Power, error) { return machine.Power(t.Context()) }).
		WithTimeout(20 * time.Second).WithPolling(200 * time.Millisecond).Should(Equal(bmc.PowerOn))
	g.Expect(emulator.Resets(uuid)).To(Equal(1))
	g.Expect(machine.Close(t.Context())).To(Succeed())

	options.Credentials.Password = "wrong"
	_, err = driver.Open(t.Context(), options)
	g.Expect(bmc.KindOf(err)).To(Equal(bmc.Auth), "%v", err)

	g.Expect(emulator.Stop()).To(Succeed())
	g.Expect(errors.Is(syscall.Kill(emulator.PID(), 0), syscall.ESRCH)).To(BeTrue(), "the process is still there")
}

func TestStartRefuses(t *testing.T) {
	t.Parallel()
	for _, options := range []redfish.Options{
		{},
		{LibvirtURI: "qemu:///system", Fake: []redfish.FakeSystem{{UUID: uuid}}},
	} {
		if _, err := redfish.Start(t.Context(), options); err == nil {
			t.Errorf("%+v is accepted", options)
		}
	}
}
