//go:build interop

package interop

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"errors"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/trust"
	"github.com/stayput-dev/stayput/osimage/trust/sign"
	"github.com/stayput-dev/stayput/osimage/trust/trusttest"
	"github.com/stayput-dev/stayput/test/lab/tools"
)

const password = "open sesame"

// cosign is one version of the program.
type cosign struct {
	path string
	// major is its version, and home a folder for what it writes about itself.
	major int
	home  string
}

// cosigns builds the versions once.
func cosigns(t *testing.T) []cosign {
	t.Helper()

	root, err := tools.RepositoryRoot()
	trusttest.Must(t, err)

	sets := map[int]tools.Set{2: tools.Cosign2(), 3: tools.Cosign3()}
	found := make([]cosign, 0, len(sets))

	for major, set := range sets {
		dir, err := tools.Ensure(t.Context(), root, set, t.Logf)
		trusttest.Must(t, err)

		found = append(found, cosign{path: filepath.Join(dir, "cosign"), major: major, home: t.TempDir()})
	}

	return found
}

// run calls the program in a folder.
func (c cosign) run(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()

	command := exec.CommandContext(t.Context(), c.path, args...)
	command.Dir = dir
	// No network but the registry's: a proxy that refuses all would be asked for anything else.
	command.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + c.home, "COSIGN_PASSWORD=" + password,
		"HTTPS_PROXY=http://127.0.0.1:1", "NO_PROXY=127.0.0.1",
	}

	out, err := command.CombinedOutput()

	return string(out), err
}

func (c cosign) mustRun(t *testing.T, dir string, args ...string) {
	t.Helper()

	if out, err := c.run(t, dir, args...); err != nil {
		t.Fatalf("cosign v%d %s: %v\n%s", c.major, strings.Join(args, " "), err, out)
	}
}

// sign signs by digest, in the form that the version writes by default, or in the other one.
func (c cosign) sign(t *testing.T, dir, reference string, form trust.Form) {
	t.Helper()

	args := []string{"sign", "--yes", "--key", "cosign.key", "--tlog-upload=false"}

	switch {
	case c.major >= 3:
		args = append(args, "--use-signing-config=false")
		if form == trust.FormTag {
			args = append(args, "--new-bundle-format=false")
		}
	case form == trust.FormBundle:
		args = append(args, "--new-bundle-format=true")
	}

	c.mustRun(t, dir, append(args, reference)...)
}

func (c cosign) verify(t *testing.T, dir, reference string, form trust.Form) (string, error) {
	t.Helper()

	args := []string{"verify", "--key", "cosign.pub", "--insecure-ignore-tlog=true"}

	if c.major < 3 && form == trust.FormBundle {
		// It wants one even where it needs nothing of it.
		root := filepath.Join(c.home, "root.json")
		trusttest.Must(t, os.WriteFile(root, []byte(`{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`), 0o600))

		args = append(args, "--new-bundle-format=true", "--trusted-root", root)
	}

	keys, err := trust.LoadKeys(filepath.Join(dir, "cosign.pub"))
	trusttest.Must(t, err)

	// It signs with the hash of the curve's size, and verifies with SHA-256 unless told.
	if hash := map[string]string{"ECDSA P-384": "sha384", "ECDSA P-521": "sha512"}[keys[0].Algorithm]; hash != "" {
		args = append(args, "--signature-digest-algorithm", hash)
	}

	return c.run(t, dir, append(args, reference)...)
}

// keyPair makes a folder with cosign.key and cosign.pub.
func (c cosign) keyPair(t *testing.T, key crypto.Signer) string {
	t.Helper()

	dir := t.TempDir()

	if key == nil {
		c.mustRun(t, dir, "generate-key-pair")

		return dir
	}

	trusttest.Must(t, os.WriteFile(filepath.Join(dir, "plain.pem"), trusttest.PrivatePEM(t, key), 0o600))
	c.mustRun(t, dir, "import-key-pair", "--key", "plain.pem", "--output-key-prefix", "cosign")

	return dir
}

// place is a registry with an image.
type place struct {
	reference string
	digest    string
	store     osimage.SignatureStore
	client    *osimage.Client
}

func newPlace(t *testing.T, referrers bool) place {
	t.Helper()

	server := httptest.NewServer(registry.New(registry.Logger(log.New(&bytes.Buffer{}, "", 0)), registry.WithReferrersSupport(referrers)))
	t.Cleanup(server.Close)

	client, err := osimage.NewClient(osimage.WithPlainHTTP(true))
	trusttest.Must(t, err)

	tag := strings.TrimPrefix(server.URL, "http://") + "/os/labos:1.1.0"
	store, err := client.Signatures(tag)
	trusttest.Must(t, err)

	blob := trusttest.New().PutBlob([]byte("{}"), "application/vnd.oci.empty.v1+json")
	manifest := []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":` +
		string(trusttest.Marshal(t, blob)) + `,"layers":[` + string(trusttest.Marshal(t, blob)) + `]}`)
	descriptor := trusttest.New().Put("", manifest, "application/vnd.oci.image.manifest.v1+json")

	trusttest.Must(t, store.Add(t.Context(), trust.Update{
		Blobs:     []trust.Blob{{Descriptor: blob, Bytes: []byte("{}")}},
		Manifests: []trust.NewManifest{{Tag: "1.1.0", Descriptor: descriptor, Bytes: manifest}},
	}))

	target, err := client.Signable(t.Context(), tag)
	trusttest.Must(t, err)

	return place{reference: target.Reference, digest: descriptor.Digest.String(), store: store, client: client}
}

// check verifies with our library.
func (p place) check(t *testing.T, dir string, form trust.Form) error {
	t.Helper()

	keys, err := trust.LoadKeys(filepath.Join(dir, "cosign.pub"))
	trusttest.Must(t, err)

	policy, err := trust.NewPolicy(trust.ModeRequire, keys)
	trusttest.Must(t, err)

	_, err = trust.VerifyForm(t.Context(), p.store, policy, form, p.digest)

	return err
}

// signOurselves signs with our library and cosign's key.
func (p place) signOurselves(t *testing.T, dir string, form trust.Form) {
	t.Helper()

	signer, err := sign.LoadKey(filepath.Join(dir, "cosign.key"), func() ([]byte, error) { return []byte(password), nil })
	trusttest.Must(t, err)

	target, err := p.client.Signable(t.Context(), p.reference)
	trusttest.Must(t, err)

	signIn := signer.Tag
	if form == trust.FormBundle {
		signIn = signer.Bundle
	}

	update, err := signIn(t.Context(), p.store, sign.Artifact{Name: target.Name, Descriptor: target.Artifact})
	trusttest.Must(t, err)

	if update.IsEmpty() {
		t.Error("there was nothing to sign")
	}

	trusttest.Must(t, p.store.Add(t.Context(), update))
}

// TestCosign has each side read what the other one wrote, in both forms, with and without the referrers API.
func TestCosign(t *testing.T) {
	t.Parallel()

	kinds := trusttest.Keys(t)
	kinds["as generated"] = nil

	for _, program := range cosigns(t) {
		for kind, key := range kinds {
			for _, form := range []trust.Form{trust.FormTag, trust.FormBundle} {
				for _, referrers := range []bool{true, false} {
					name := map[bool]string{true: "referrers", false: "fallback tag"}[referrers]

					t.Run(strings.Join([]string{map[int]string{2: "v2", 3: "v3"}[program.major], kind, string(form), name}, "/"), func(t *testing.T) {
						t.Parallel()
						bothWays(t, program, key, form, referrers)
					})
				}
			}
		}
	}
}

func bothWays(t *testing.T, program cosign, key crypto.Signer, form trust.Form, referrers bool) {
	t.Helper()

	dir, other := program.keyPair(t, key), program.keyPair(t, nil)

	theirs := newPlace(t, referrers)
	program.sign(t, dir, theirs.reference, form)

	if err := theirs.check(t, dir, form); err != nil {
		t.Errorf("cosign signed, and we refuse it: %v", err)
	}

	if err := theirs.check(t, other, form); !errors.Is(err, trust.ErrWrongKey) {
		t.Errorf("cosign signed, and with another key we say: %v", err)
	}

	ours := newPlace(t, referrers)
	ours.signOurselves(t, dir, form)

	if out, err := program.verify(t, dir, ours.reference, form); err != nil {
		t.Errorf("we signed, and cosign refuses it: %v\n%s", err, out)
	}

	if out, err := program.verify(t, other, ours.reference, form); err == nil {
		t.Errorf("we signed, and cosign takes it for another key's:\n%s", out)
	}

	// Each adds to what the other one left.
	theirs.signOurselves(t, other, form)
	program.sign(t, other, ours.reference, form)

	for _, where := range []place{theirs, ours} {
		for _, who := range []string{dir, other} {
			// It signs with Ed25519ph, and does not verify that itself.
			_, isEd25519 := key.(ed25519.PrivateKey)
			itsOwn := where == theirs && who == dir && isEd25519

			if err := where.check(t, who, form); err != nil {
				t.Errorf("with two signatures we say: %v", err)
			}

			if out, err := program.verify(t, who, where.reference, form); err != nil != itsOwn {
				t.Errorf("with two signatures cosign says: %v\n%s", err, out)
			}
		}
	}
}
