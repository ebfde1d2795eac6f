package registrytest

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
)

const (
	// User is who the credentials belong to.
	User     = "robot"
	password = "registry-secret"
	// startTimeout bounds the wait for the registry's first answer.
	startTimeout = 30 * time.Second
	pollEvery    = 50 * time.Millisecond
	fileMode     = 0o600
)

// Registry is a running registry.
type Registry struct {
	// Address is its host and port.
	Address string
	// CAFile has the authority that signed its certificate, as PEM.
	CAFile string
	// DockerConfig has the credentials that it accepts; WrongConfig has others.
	DockerConfig, WrongConfig string
	// Password is the secret in DockerConfig, for tests that nothing prints it.
	Password string

	log *lockedBuffer
}

// Start starts a registry that stops with the test.
func Start(tb testing.TB) *Registry {
	tb.Helper()

	dir := tb.TempDir()
	registry := &Registry{
		Address: freeAddress(tb), Password: password, log: &lockedBuffer{},
		CAFile: filepath.Join(dir, "ca.pem"), DockerConfig: filepath.Join(dir, "config.json"),
		WrongConfig: filepath.Join(dir, "wrong.json"),
	}

	writeCertificate(tb, dir, registry.CAFile)
	writeCredentials(tb, dir)
	writeDockerConfig(tb, registry.DockerConfig, registry.Address, password)
	writeDockerConfig(tb, registry.WrongConfig, registry.Address, "wrong-"+password)
	registry.run(tb, dir)

	return registry
}

// Log returns what the registry logged so far, its access log included.
func (r *Registry) Log() string {
	return r.log.String()
}

func (r *Registry) run(tb testing.TB, dir string) {
	tb.Helper()

	config := map[string]any{
		"version": "0.1",
		"log":     map[string]any{"level": "error"},
		"storage": map[string]any{"filesystem": map[string]any{"rootdirectory": filepath.Join(dir, "storage")}},
		"auth":    map[string]any{"htpasswd": map[string]any{"realm": "test", "path": filepath.Join(dir, "htpasswd")}},
		"http": map[string]any{
			"addr": r.Address,
			"tls":  map[string]any{"certificate": filepath.Join(dir, "cert.pem"), "key": filepath.Join(dir, "key.pem")},
		},
	}

	// JSON is YAML.
	data, err := json.Marshal(config)
	must(tb, err)
	must(tb, os.WriteFile(filepath.Join(dir, "config.yml"), data, fileMode))

	ctx, stop := context.WithCancel(context.Background())
	command := exec.CommandContext(ctx, "docker-registry", "serve", filepath.Join(dir, "config.yml"))
	command.Stdout, command.Stderr = r.log, r.log

	must(tb, command.Start())
	tb.Cleanup(func() {
		stop()

		// It was killed, so the error says that.
		_ = command.Wait()
	})

	r.waitUntilUp(tb)
}

// waitUntilUp asks until the registry answers that it wants credentials.
func (r *Registry) waitUntilUp(tb testing.TB) {
	tb.Helper()

	pool := x509.NewCertPool()
	data, err := os.ReadFile(r.CAFile)
	must(tb, err)
	pool.AppendCertsFromPEM(data)

	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
	}}
	defer client.CloseIdleConnections()

	ctx, cancel := context.WithTimeout(tb.Context(), startTimeout)
	defer cancel()

	poll := time.NewTicker(pollEvery)
	defer poll.Stop()

	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+r.Address+"/v2/", nil)
		must(tb, err)

		response, err := client.Do(request)
		if err == nil {
			must(tb, response.Body.Close())

			if response.StatusCode == http.StatusUnauthorized {
				return
			}
		}

		select {
		case <-ctx.Done():
			tb.Fatalf("docker-registry did not come up: %v\n%s", err, r.Log())
		case <-poll.C:
		}
	}
}

func writeCertificate(tb testing.TB, dir, caFile string) {
	tb.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(tb, err)

	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "registrytest"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}

	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(tb, err)

	keyData, err := x509.MarshalPKCS8PrivateKey(key)
	must(tb, err)

	encoded := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	must(tb, os.WriteFile(caFile, encoded, fileMode))
	must(tb, os.WriteFile(filepath.Join(dir, "cert.pem"), encoded, fileMode))
	must(tb, os.WriteFile(filepath.Join(dir, "key.pem"),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyData}), fileMode))
}

func writeCredentials(tb testing.TB, dir string) {
	tb.Helper()

	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	must(tb, err)
	must(tb, os.WriteFile(filepath.Join(dir, "htpasswd"), fmt.Appendf(nil, "%s:%s\n", User, hash), fileMode))
}

func writeDockerConfig(tb testing.TB, path, address, secret string) {
	tb.Helper()

	data, err := json.Marshal(map[string]any{
		"auths": map[string]any{address: map[string]string{"username": User, "password": secret}},
	})
	must(tb, err)
	must(tb, os.WriteFile(path, data, fileMode))
}

func freeAddress(tb testing.TB) string {
	tb.Helper()

	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	must(tb, err)

	address := listener.Addr().String()
	must(tb, listener.Close())

	return address
}

func must(tb testing.TB, err error) {
	tb.Helper()

	if err != nil {
		tb.Fatal(err)
	}
}

// lockedBuffer takes the output of a running program.
type lockedBuffer struct {
	mutex  sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(data []byte) (int, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()

	return b.buffer.Write(data)
}

func (b *lockedBuffer) String() string {
	b.mutex.Lock()
	defer b.mutex.Unlock()

	return b.buffer.String()
}
