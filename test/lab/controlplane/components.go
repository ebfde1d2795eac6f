package controlplane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"time"

	"github.com/stayput-dev/stayput/test/lab/process"
)

const (
	probeTimeout  = 2 * time.Second
	probeInterval = 100 * time.Millisecond
	// logLines is how much of a component's log an error shows.
	logLines = 20

	serviceCIDR = "10.96.0.0/16"
	issuer      = "https://kubernetes.default.svc.cluster.local"
)

// ErrUnhealthy means that a component ended, or did not become healthy in time.
var ErrUnhealthy = errors.New("component is not healthy")

// component is one program with its arguments and the address where it says that it is well.
type component struct {
	name   string
	args   []string
	health string
	tls    *tls.Config
}

func (c *Cluster) etcd() component {
	client := "http://" + c.local(portEtcd)
	peer := "http://" + c.local(portEtcdPeer)

	return component{
		name:   portEtcd,
		health: client + "/readyz",
		args: []string{
			"--name=lab", "--data-dir=" + filepath.Join(c.dir, "etcd"),
			"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
			"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=lab=" + peer,
			"--unsafe-no-fsync", // the data need not outlive a crash of the host
			"--log-level=warn",
		},
	}
}

func (c *Cluster) apiServer() component {
	args := []string{
		"--etcd-servers=http://" + c.local(portEtcd),
		"--bind-address=" + loopback,
		"--secure-port=" + strconv.Itoa(c.state.Ports[portAPIServer]),
		// What the Service "kubernetes" points to. A loopback address is refused there.
		"--advertise-address=" + GuestHost,
		"--tls-cert-file=" + c.pkiFile("apiserver.crt"), "--tls-private-key-file=" + c.pkiFile("apiserver.key"),
		"--client-ca-file=" + c.pkiFile(caName+".crt"),
		"--service-account-key-file=" + c.pkiFile("service-account.crt"),
		"--service-account-signing-key-file=" + c.pkiFile("service-account.key"),
		"--service-account-issuer=" + issuer,
		"--service-cluster-ip-range=" + serviceCIDR,
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--profiling=false",
	}

	if c.state.Audit {
		args = append(args, "--audit-policy-file="+c.auditPolicyFile(), "--audit-log-path="+c.auditLogFile(),
			"--audit-log-mode=blocking")
	}

	return component{name: portAPIServer, args: args, health: c.URL() + "/readyz", tls: c.trust()}
}

func (c *Cluster) controllerManager() component {
	component := c.client(portController,
		"--cluster-signing-cert-file="+c.pkiFile(caName+".crt"),
		"--cluster-signing-key-file="+c.pkiFile(caName+".key"),
		"--root-ca-file="+c.pkiFile(caName+".crt"),
		"--service-account-private-key-file="+c.pkiFile("service-account.key"),
		"--use-service-account-credentials=true",
	)

	return component
}

func (c *Cluster) scheduler() component { return c.client(portScheduler) }

// client is a component that works for the API server and serves its own health over TLS.
func (c *Cluster) client(name string, args ...string) component {
	kubeconfig := filepath.Join(c.dir, name+".kubeconfig")

	return component{
		name:   name,
		health: "https://" + c.local(name) + "/healthz",
		tls:    c.trust(),
		args: append([]string{
			"--kubeconfig=" + kubeconfig,
			"--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
			// Nobody but the health probe asks; without this the component looks for a front proxy's CA.
			"--authentication-skip-lookup=true",
			"--bind-address=" + loopback, "--secure-port=" + strconv.Itoa(c.state.Ports[name]),
			"--tls-cert-file=" + c.pkiFile(name+".crt"), "--tls-private-key-file=" + c.pkiFile(name+".key"),
			"--leader-elect=false", "--profiling=false",
		}, args...),
	}
}

func (c *Cluster) local(port string) string {
	return net.JoinHostPort(loopback, strconv.Itoa(c.state.Ports[port]))
}

func (c *Cluster) trust() *tls.Config {
	return &tls.Config{RootCAs: c.ca.Pool(), MinVersion: tls.VersionTLS12}
}

// probe asks once.
func (m component) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()

	transport := &http.Transport{TLSClientConfig: m.tls, DisableKeepAlives: true}

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, m.health, http.NoBody)
	if err != nil {
		return fmt.Errorf("asking %s for its health: %w", m.name, err)
	}

	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return fmt.Errorf("asking %s for its health: %w", m.name, err)
	}
	defer response.Body.Close()

	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))

		return fmt.Errorf("%s answers %s: %s: %w", m.name, response.Status, body, ErrUnhealthy)
	}

	return nil
}

// wait asks until the component is healthy, has ended, or has had its time.
func (m component) wait(ctx context.Context, child *process.Process) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWait, fmt.Errorf("%w after %s", ErrUnhealthy, readyWait))
	defer cancel()

	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()

	for {
		last := m.probe(ctx)
		if last == nil {
			return nil
		}

		select {
		case <-child.Exited():
			return fmt.Errorf("%s ended: %w; the end of its log:\n%s", m.name, ErrUnhealthy, child.Tail(logLines))
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w; last answer: %w; the end of its log:\n%s",
				m.name, context.Cause(ctx), last, child.Tail(logLines))
		case <-ticker.C:
		}
	}
}
