package lab_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/test/lab"
	"github.com/stayput-dev/stayput/test/lab/machine"
)

// powerWait is how long a power action may take to show; on a busy machine libvirt needs seconds.
const powerWait = time.Minute

// A machine without an operating system: everything about a lab but what runs in the guests.
func TestALabComesUpActsThroughItsBMCsAndLeavesNoTrace(t *testing.T) {
	t.Parallel()

	g := NewWithT(t)
	ctx := t.Context()
	id := "t" + strings.ToLower(rand.Text()[:6])
	dir := filepath.Join(t.TempDir(), "lab")
	down := func() error { return lab.Down(context.Background(), dir, id) }

	running, err := lab.Start(ctx, lab.Options{ID: id, Dir: dir, Management: true, Report: t.Logf})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		if err := down(); err != nil {
			t.Error(err)
		}
	})

	disk := filepath.Join(t.TempDir(), "empty.img")
	g.Expect(os.WriteFile(disk, nil, 0o600)).To(Succeed())

	one, err := running.AddMachine(ctx, lab.MachineSpec{Node: "node-1", Disk: disk, DiskSize: 1 << 20})
	g.Expect(err).NotTo(HaveOccurred())

	two, err := running.AddMachine(ctx, lab.MachineSpec{Node: "node-2", Disk: disk, DiskSize: 1 << 20})
	g.Expect(err).NotTo(HaveOccurred())

	hosts := checkHosts(g, running)
	g.Expect(one.ProviderID).To(Equal("metal3://metal/host-node-1/machine-host-node-1"))
	g.Expect(two.ProviderID).To(Equal("metal3://" + string(hosts["host-node-2"].UID)))

	// The BMC of one acts on one and nothing else.
	g.Expect(reset(g, running, hosts["host-node-1"], "On")).To(Equal(http.StatusNoContent))
	g.Eventually(func() (bool, error) { return one.Machine.Running(ctx) }).WithTimeout(powerWait).Should(BeTrue())
	g.Expect(two.Machine.Running(ctx)).To(BeFalse())
	g.Expect(reset(g, running, hosts["host-node-1"], "ForceOff")).To(Equal(http.StatusNoContent))
	g.Eventually(func() (bool, error) { return one.Machine.Running(ctx) }).WithTimeout(powerWait).Should(BeFalse())
	g.Expect(running.BMC.Resets(one.Machine.UUID())).To(Equal(2))

	again, err := lab.Open(ctx, dir, t.Logf)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again.Nodes()).To(Equal([]string{"node-1", "node-2"}))

	domain := two.Machine.Domain()
	libvirt := running.Libvirt
	emulator := running.BMC.PID()

	g.Expect(domains(ctx, libvirt)).To(ContainElement(domain))
	g.Expect(down()).To(Succeed())
	g.Expect(dir).NotTo(BeADirectory())
	g.Expect(cmdline(emulator)).NotTo(ContainSubstring(dir))
	g.Expect(down()).To(Succeed(), "a second time")

	if found, err := libvirt.Domains(ctx); err == nil { // libvirtd may be gone
		g.Expect(slices.Contains(found, domain)).To(BeFalse())
	}
}

func domains(ctx context.Context, libvirt *machine.Libvirt) []string {
	names, err := libvirt.Domains(ctx)
	if err != nil {
		return nil
	}

	return names
}

// checkHosts reads the BareMetalHosts, which must look as Metal3 leaves provisioned ones, in the management cluster.
func checkHosts(g *WithT, running *lab.Lab) map[string]*metal3.BareMetalHost {
	var list metal3.BareMetalHostList

	ctx := context.Background()
	g.Expect(running.ManagementClient.List(ctx, &list, client.InNamespace(lab.Namespace),
		client.MatchingLabels{lab.PoolLabel: lab.PoolValue})).To(Succeed())
	g.Expect(list.Items).To(HaveLen(2))

	hosts := map[string]*metal3.BareMetalHost{}

	for index := range list.Items {
		host := &list.Items[index]
		hosts[host.Name] = host

		g.Expect(host.Status.Provisioning.State).To(Equal(metal3.StateProvisioned))
		g.Expect(host.Status.PoweredOn).To(BeTrue())
		g.Expect(host.Status.OperationalStatus).To(Equal(metal3.OperationalStatusOK))
		g.Expect(host.Spec.BMC.Address).To(HavePrefix("redfish"))
	}

	g.Expect(running.Client.List(ctx, &list)).To(MatchError(ContainSubstring("no matches for metal3.io/v1alpha1")),
		"hosts in the cluster of the nodes")

	return hosts
}

// reset asks the host's BMC for a reset, with what its BareMetalHost and Secret say, and returns the HTTP status.
func reset(g *WithT, running *lab.Lab, host *metal3.BareMetalHost, kind string) int {
	ctx := context.Background()

	var secret corev1.Secret

	g.Expect(running.ManagementClient.Get(ctx,
		client.ObjectKey{Namespace: host.Namespace, Name: host.Spec.BMC.CredentialsName}, &secret)).To(Succeed())

	_, rest, _ := strings.Cut(host.Spec.BMC.Address, "://")
	body := strings.NewReader(`{"ResetType": "` + kind + `"}`)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost,
		"https://"+rest+"/Actions/ComputerSystem.Reset", body)
	g.Expect(err).NotTo(HaveOccurred())
	request.Header.Set("Content-Type", "application/json")
	request.SetBasicAuth(string(secret.Data["username"]), string(secret.Data["password"]))

	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(running.BMC.CA())

	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()

	response, err := transport.RoundTrip(request)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(response.Body.Close()).To(Succeed())

	return response.StatusCode
}

func cmdline(pid int) string {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return ""
	}

	return string(data)
}
