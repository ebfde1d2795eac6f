package kubeconfig_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/stayput-dev/stayput/agent/kubeconfig"
)

// user has a client certificate that is valid from one time to another.
func user(t *testing.T, from, until time.Time) *api.AuthInfo {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: until}

	certificate, certErr := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)

	private, keyErr := x509.MarshalECPrivateKey(key)
	if err := errors.Join(certErr, keyErr); err != nil {
		t.Fatal(err)
	}

	return &api.AuthInfo{
		ClientCertificateData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}),
		ClientKeyData:         pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}),
	}
}

// text is a kubeconfig of the user.
func text(t *testing.T, user *api.AuthInfo) string {
	t.Helper()

	data, err := clientcmd.Write(api.Config{
		Clusters:       map[string]*api.Cluster{"c": {Server: "https://127.0.0.1:6443"}},
		AuthInfos:      map[string]*api.AuthInfo{"u": user},
		Contexts:       map[string]*api.Context{"c": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "c",
	})
	if err != nil {
		t.Fatal(err)
	}

	return string(data)
}

func TestCheck(t *testing.T) {
	t.Parallel()

	now := time.Now().Truncate(time.Second)
	valid := user(t, now.Add(-time.Hour), now.Add(time.Hour))
	damaged := valid.DeepCopy()
	damaged.ClientCertificateData = []byte("secret")

	for name, test := range map[string]struct {
		text string
		then time.Time
		want error
		says string // "" when it can be used
	}{
		"valid as long as it is needed": {text: text(t, valid), then: now.Add(time.Hour)},
		"a second too short": {
			text: text(t, valid), then: now.Add(time.Hour + time.Second), want: kubeconfig.ErrNotValidThen,
			says: now.Add(time.Hour).UTC().Format(time.RFC3339),
		},
		"not valid yet": {
			text: text(t, user(t, now.Add(time.Minute), now.Add(time.Hour))), then: now.Add(time.Second),
			want: kubeconfig.ErrNotValidThen, says: "not valid",
		},
		"a token does not end":   {text: text(t, &api.AuthInfo{Token: "secret"}), then: now.Add(time.Hour)},
		"not a kubeconfig":       {text: "secret: [", want: kubeconfig.ErrNotOne, says: "is not a kubeconfig"},
		"text for a list":        {text: `{"users": "secret"}`, want: kubeconfig.ErrNotOne, says: "is not a kubeconfig"},
		"empty":                  {says: "using kubeconfig"},
		"a damaged certificate":  {text: text(t, damaged), says: "using kubeconfig"},
		"a file that is not set": {text: text(t, &api.AuthInfo{ClientCertificate: "/none.crt", ClientKey: "/none.key"}), says: "/none.crt"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			path := filepath.Join(t.TempDir(), "kubeconfig")
			if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}

			err := kubeconfig.Check(path, now, test.then)

			switch {
			case test.says == "" && err == nil:
			case err == nil, test.want != nil && !errors.Is(err, test.want), !strings.Contains(err.Error(), path),
				!strings.Contains(err.Error(), test.says), strings.Contains(err.Error(), "secret"):
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestAFileThatIsNotThereIsNamedOnce(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "kubeconfig")

	_, err := kubeconfig.Load(path)
	if err == nil || strings.Count(err.Error(), path) != 1 || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}
