package main

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/secure-systems-lab/go-securesystemslib/encrypted"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/registrytest"
	"github.com/stayput-dev/stayput/osimage/trust"
	"github.com/stayput-dev/stayput/osimage/trust/trusttest"
)

// keyPair writes a private key, encrypted when there is a password, and its public half.
func keyPair(t *testing.T, password string) (private, public string) {
	t.Helper()

	key := trusttest.Ed25519(t)
	dir := t.TempDir()
	private, public = filepath.Join(dir, "my.key"), filepath.Join(dir, "my.pub")
	text := trusttest.PrivatePEM(t, key)

	if password != "" {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		trusttest.Must(t, err)

		box, err := encrypted.Encrypt(der, []byte(password))
		trusttest.Must(t, err)

		text = pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED SIGSTORE PRIVATE KEY", Bytes: box})
	}

	trusttest.Must(t, os.WriteFile(private, text, 0o600))
	trusttest.Must(t, os.WriteFile(public, trusttest.PublicPEM(t, key), 0o600))

	return private, public
}

func builtImage(t *testing.T) string {
	t.Helper()

	_, flags := testFiles(t, "1.1.0")
	dir := filepath.Join(t.TempDir(), "image")
	mustRun(t, append([]string{
		"image", "build", dir, "--name", "labos", "--version", "1.1.0", "--arch", "amd64", "--root-hash", testRootHash,
	}, flags...)...)

	return dir
}

func TestImageSignAndVerify(t *testing.T) {
	t.Parallel()

	server := registrytest.Start(t)
	private, public := keyPair(t, "")
	_, other := keyPair(t, "")
	access := []string{"--ca-file", server.CAFile, "--docker-config", server.DockerConfig}
	dir := builtImage(t)
	pushed := strings.TrimSpace(mustRun(t, append([]string{"image", "push", dir, server.Address + "/os/labos:1.1.0"}, access...)...))

	for _, image := range []string{server.Address + "/os/labos:1.1.0", dir, "oci:" + dir + ":1.1.0"} {
		for _, form := range [][]string{nil, {"--bundle"}} {
			out := mustRun(t, append(append([]string{"image", "sign", image, "--key", private}, access...), form...)...)
			if !strings.HasSuffix(strings.TrimSpace(out), "@"+pushed[strings.Index(pushed, "@")+1:]) {
				t.Errorf("signing %s ended with %q, want the digest of %s", image, out, pushed)
			}
		}

		again := mustRun(t, append([]string{"image", "sign", image, "--key", private}, access...)...)
		if !strings.Contains(again, "signed already") {
			t.Errorf("signing %s again: %q", image, again)
		}

		var result verification

		out := mustRun(t, append([]string{"image", "verify", image, "--key", other, "--key", public, "-o", "json"}, access...)...)
		trusttest.Must(t, json.Unmarshal([]byte(out), &result))

		if !result.Verified || len(result.Results) != 1 || result.Results[0].Key == nil || result.Results[0].Key.Source != public {
			t.Errorf("verifying %s: %s", image, out)
		}

		out = mustRun(t, append([]string{"image", "verify", image, "--key-dir", filepath.Dir(public)}, access...)...)
		if !strings.Contains(out, "Verified:   yes") || !strings.Contains(out, "of "+public) {
			t.Errorf("verifying %s: %s", image, out)
		}

		out, _, err := stayput(t, append([]string{"image", "verify", image, "--key", other, "-o", "json"}, access...)...)
		if !errors.Is(err, osimage.ErrUntrusted) || !errors.Is(err, trust.ErrWrongKey) {
			t.Errorf("verifying %s with another key: %v", image, err)
		}

		trusttest.Must(t, json.Unmarshal([]byte(out), &result))

		if result.Verified || !strings.Contains(result.Results[0].Reason, "2 signatures found: 2 by unknown keys") {
			t.Errorf("verifying %s with another key: %s", image, out)
		}
	}
}

// TestIndex signs an image of an index, then the index.
func TestIndex(t *testing.T) {
	t.Parallel()

	private, public := keyPair(t, "")
	dir := builtImage(t)

	image, err := osimage.LayoutSignable(t.Context(), dir, "1.1.0")
	trusttest.Must(t, err)

	entry := image.Artifact
	entry.Platform = &v1.Platform{OS: "linux", Architecture: "amd64"}
	data := trusttest.Marshal(t, v1.IndexManifest{
		SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{entry},
	})
	digest, err := v1.NewHash(trust.DigestOf(data))
	trusttest.Must(t, err)

	trusttest.Must(t, osimage.LayoutSignatures(dir).Add(t.Context(), trust.Update{Manifests: []trust.NewManifest{{
		Tag: "multi", Bytes: data, Descriptor: v1.Descriptor{MediaType: types.OCIImageIndex, Digest: digest, Size: int64(len(data))},
	}}}))

	verify := func(more ...string) (verification, error) {
		var result verification

		out, _, err := stayput(t, append([]string{"image", "verify", dir + ":multi", "--key", public, "-o", "json"}, more...)...)
		trusttest.Must(t, json.Unmarshal([]byte(out), &result))

		return result, err
	}

	if result, err := verify(); !errors.Is(err, trust.ErrUnsigned) || result.Verified || len(result.Results) != 2 {
		t.Errorf("unsigned: %+v, %v", result, err)
	}

	mustRun(t, "image", "sign", dir+":1.1.0", "--key", private)

	result, err := verify()
	if err != nil || !result.Verified || result.Results[0].Verified || result.Results[1].Platform != "linux/amd64" {
		t.Errorf("the image is signed: %+v, %v", result, err)
	}

	if result, err := verify("--arch", "arm64"); !errors.Is(err, trust.ErrUnsigned) || result.Verified {
		t.Errorf("no image for arm64: %+v, %v", result, err)
	}

	out := mustRun(t, "image", "sign", dir+":multi", "--key", private)
	if strings.Count(out, "signed already") != 1 || strings.Count(out, "signed\t") != 1 {
		t.Errorf("signing the index: %s", out)
	}

	if result, err := verify(); err != nil || !result.Results[0].Verified || len(result.Results) != 1 {
		t.Errorf("the index is signed: %+v, %v", result, err)
	}
}

func TestImageVerifyWhenTheRegistryRefuses(t *testing.T) {
	t.Parallel()

	server := registrytest.Start(t)
	_, public := keyPair(t, "")

	out, _, err := stayput(t, "image", "verify", server.Address+"/os/labos:1.1.0", "--key", public, "--ca-file", server.CAFile,
		"--docker-config", server.WrongConfig)
	if !errors.Is(err, osimage.ErrUnauthorized) || out != "" {
		t.Errorf("got %q, %v; want that it is not known", out, err)
	}
}

func TestPasswordOfTheKey(t *testing.T) {
	private, _ := keyPair(t, "open sesame")
	dir := builtImage(t)

	file := filepath.Join(t.TempDir(), "password")
	trusttest.Must(t, os.WriteFile(file, []byte("open sesame\r\n"), 0o600))

	mustRun(t, "image", "sign", dir, "--key", private, "--password-file", file)

	// No terminal is asked in tests.
	if _, _, err := stayput(t, "image", "sign", dir, "--key", private); err == nil || !strings.Contains(err.Error(), "COSIGN_PASSWORD") {
		t.Errorf("without a password: %v", err)
	}

	t.Setenv("COSIGN_PASSWORD", "open sesame")
	mustRun(t, "image", "sign", dir, "--key", private)

	t.Setenv("COSIGN_PASSWORD", "wrong")

	_, _, err := stayput(t, "image", "sign", dir, "--key", private)
	if !errors.Is(err, trust.ErrKey) || !strings.Contains(err.Error(), "check the password") {
		t.Errorf("with a wrong password: %v", err)
	}
}

func TestSigningAndVerifyingThatCannotWork(t *testing.T) {
	t.Parallel()

	private, public := keyPair(t, "")
	dir := builtImage(t)

	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"sign without a key":        {[]string{"sign", dir}, "key"},
		"verify without a key":      {[]string{"verify", dir}, "key-dir"},
		"sign with the public key":  {[]string{"sign", dir, "--key", public}, "public half"},
		"verify with the private":   {[]string{"verify", dir, "--key", private}, "private key"},
		"verify with an empty dir":  {[]string{"verify", dir, "--key-dir", t.TempDir()}, "no file"},
		"sign what is not there":    {[]string{"sign", "./missing", "--key", private}, "not an OCI layout"},
		"verify what is not signed": {[]string{"verify", dir, "--key", public}, "stayput image sign"},
		"verify an unknown tag":     {[]string{"verify", dir + ":9", "--key", public}, `"1.1.0"`},
		"sign with a missing key":   {[]string{"sign", dir, "--key", "/missing"}, "/missing"},
		"missing password file":     {[]string{"sign", dir, "--key", encryptedKey(t), "--password-file", "/missing"}, "/missing"},
	} {
		if _, _, err := stayput(t, append([]string{"image"}, test.args...)...); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

func encryptedKey(t *testing.T) string {
	t.Helper()

	private, _ := keyPair(t, "x")

	return private
}
