package install_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/agent/install"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

func hostName(t *testing.T) string {
	t.Helper()

	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}

	return strings.ToLower(name)
}

func agentOf(node string) pkix.Name {
	return pkix.Name{CommonName: "stayput:agent:" + node, Organization: []string{"stayput:agents"}}
}

// kubeconfig has a client certificate of the group of agents.
func kubeconfig(t *testing.T, node string, lasts time.Duration) string {
	t.Helper()

	return kubeconfigOf(t, agentOf(node), -24*time.Hour, lasts)
}

func kubeconfigOf(t *testing.T, subject pkix.Name, from, until time.Duration) string {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: subject,
		NotBefore: time.Now().Add(from), NotAfter: time.Now().Add(until),
	}

	certificate, certErr := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)

	private, keyErr := x509.MarshalECPrivateKey(key)
	if err := errors.Join(certErr, keyErr); err != nil {
		t.Fatal(err)
	}

	encode := func(kind string, data []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}))
	}

	return fmt.Sprintf(`{"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:6443"}}],
		"users": [{"name": "u", "user": {"client-certificate-data": %q, "client-key-data": %q}}],
		"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "current-context": "c"}`,
		encode("CERTIFICATE", certificate), encode("EC PRIVATE KEY", private))
}

// What would keep the agent from starting, or from being let in, is found while the operator still looks.
func TestFilesThatTheAgentCannotUse(t *testing.T) {
	t.Parallel()

	good := kubeconfig(t, "n1", time.Hour)

	for name, test := range map[string]struct {
		config, kubeconfig string
		subject, says      string // "" when all is well
	}{
		"all is well":          {config: "nodeName: n1\n", kubeconfig: good},
		"a misspelt field":     {config: "nodName: n1\n", kubeconfig: good, subject: "configuration", says: "nodName"},
		"no kubeconfig":        {config: "nodeName: n1\n", kubeconfig: "secret", subject: "identity", says: "is not a kubeconfig"},
		"an empty kubeconfig":  {config: "nodeName: n1\n", subject: "identity", says: "cannot be used"},
		"another node's":       {config: "nodeName: n2\n", kubeconfig: good, subject: "identity", says: "CN=stayput:agent:n2"},
		"a certificate in DER": {config: "nodeName: n1\n", kubeconfig: notPEM(good), subject: "identity", says: "PEM"},
		"an old certificate": {
			config: "nodeName: n1\n", kubeconfig: kubeconfig(t, "n1", -time.Hour), subject: "identity", says: "was good until",
		},
		"a clock that is slow": {
			config: "nodeName: n1\n", kubeconfig: kubeconfigOf(t, agentOf("n1"), time.Hour, 2*time.Hour),
			subject: "identity", says: "is not good before",
		},
		"no group": {
			config: "nodeName: n1\n", kubeconfig: kubeconfigOf(t, pkix.Name{CommonName: "stayput:agent:n1"}, -time.Hour, time.Hour),
			subject: "identity", says: "O=stayput:agents",
		},
		"another key": {
			config: "nodeName: n1\n", kubeconfig: withKeyOf(t, good, kubeconfig(t, "n1", time.Hour)),
			subject: "identity", says: "client key",
		},
		"no credentials": {
			config: "{nodeName: n1, registry: {dockerConfig: /etc/none.json}}", kubeconfig: good,
			subject: "registry.dockerConfig", says: "/etc/none.json: absent",
		},
		"no CA": {
			config: "{nodeName: n1, registry: {caFile: /etc/none.pem}}", kubeconfig: good,
			subject: "registry.caFile", says: "/etc/none.pem: absent",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			root := t.TempDir()
			dir := filepath.Join(root, "etc/stayput")

			if err := errors.Join(
				os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "agent.yaml"), []byte(test.config), 0o600),
				os.WriteFile(filepath.Join(dir, "kubeconfig"), []byte(test.kubeconfig), 0o600),
			); err != nil {
				t.Fatal(err)
			}

			live := &install.Live{Scheme: fakeScheme{}, Rungs: func(context.Context) []v1alpha1.RungStatus { return nil }}

			var bad []install.Finding

			for _, finding := range install.Inspect(t.Context(), root, live) {
				if !finding.OK {
					bad = append(bad, finding)
				}
			}

			switch {
			case test.subject == "" && len(bad) == 0:
			case len(bad) != 1 || bad[0].Subject != test.subject || !strings.Contains(bad[0].Found, test.says) || bad[0].Fix == "":
				t.Errorf("got %+v", bad)
			case strings.Contains(bad[0].Found, "secret"):
				t.Errorf("it quotes the file: %+v", bad)
			}
		})
	}
}

// withKeyOf gives a kubeconfig the client key of another one.
func withKeyOf(t *testing.T, text, other string) string {
	t.Helper()

	key := regexp.MustCompile(`"client-key-data": "[^"]*"`)

	return key.ReplaceAllLiteralString(text, key.FindString(other))
}

// notPEM damages the certificate of a kubeconfig.
func notPEM(text string) string {
	return strings.Replace(text, `"client-certificate-data": "LS0t`, `"client-certificate-data": "AAAA`, 1)
}
