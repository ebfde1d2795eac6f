package images_test

import (
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"

	"github.com/stayput-dev/stayput/agent/config"
	"github.com/stayput-dev/stayput/agent/images"
	"github.com/stayput-dev/stayput/agent/journal"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/registrytest"
	"github.com/stayput-dev/stayput/osimage/trust"
	"github.com/stayput-dev/stayput/osimage/trust/trusttest"
	"github.com/stayput-dev/stayput/test/signedimage"
)

// bench is a registry with one image, and two who may sign it.
type bench struct {
	*testing.T

	repository        *signedimage.Repository
	registry          *registrytest.Faulty
	caFile, reference string
	vendor, site      signedimage.Signer
	// root has the default folders, log what was logged.
	root string
	log  strings.Builder
}

func newBench(t *testing.T) *bench {
	t.Helper()

	b := &bench{
		T: t, repository: signedimage.New(t), root: t.TempDir(),
		vendor: signedimage.NewSigner(t), site: signedimage.NewSigner(t),
	}
	b.registry = b.repository.Registry
	b.caFile = filepath.Join(b.root, "ca.pem")
	b.write(b.caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: b.registry.Certificate()}))
	b.reference = b.repository.Push(t, "1.1.0", "1.1.0")

	return b
}

func (b *bench) write(path string, data []byte) {
	b.Helper()

	trusttest.Must(b.T, os.MkdirAll(filepath.Dir(path), 0o755))
	trusttest.Must(b.T, os.WriteFile(path, data, 0o600))
}

// images are those of an agent with these settings.
func (b *bench) images(settings config.Config) *images.Images {
	if settings.Registry.CAFile == "" {
		settings.Registry.CAFile = b.caFile
	}

	return &images.Images{
		Settings: settings, Root: b.root, Count: func(int64) {},
		Log: funcr.New(func(_, args string) { b.log.WriteString(args + "\n") }, funcr.Options{}),
	}
}

// folder is a key folder of the configuration; with own it is the default one.
func (b *bench) folder(own bool, keys ...string) config.Config {
	b.Helper()

	dir := filepath.Join(b.root, config.DefaultKeyDir)
	if !own {
		dir = filepath.Join(b.root, "keys")
	}

	trusttest.Must(b.T, os.MkdirAll(dir, 0o755))

	for number, key := range keys {
		b.write(filepath.Join(dir, fmt.Sprintf("%d.pub", number)), []byte(key))
	}

	if own {
		return config.Config{}
	}

	return config.Config{Trust: config.Trust{KeyDir: dir}}
}

func wants(policy v1alpha1.VerificationPolicy, keys ...string) *v1alpha1.NodeVerification {
	return &v1alpha1.NodeVerification{Policy: policy, PublicKeys: keys}
}

func TestWhoseSignaturesAreNeeded(t *testing.T) {
	t.Parallel()

	const (
		vendor, site = "vendor", "site"
		required     = v1alpha1.VerificationRequire
		warned       = v1alpha1.VerificationWarn
	)

	tests := map[string]struct {
		// signed are those who signed, update whose key the NodeUpdate has, and node whose the node's folder has.
		signed []string
		policy v1alpha1.VerificationPolicy
		update string
		node   string
		// named has the folder named in the configuration.
		named   bool
		wantErr error
	}{
		"nobody asks":                         {},
		"signed as the NodeUpdate wants":      {signed: []string{vendor}, policy: required, update: vendor},
		"not signed":                          {policy: required, update: vendor, wantErr: trust.ErrUnsigned},
		"signed by another":                   {signed: []string{site}, policy: required, update: vendor, wantErr: trust.ErrWrongKey},
		"not signed, and only warned of":      {policy: warned, update: vendor},
		"the folder alone":                    {signed: []string{site}, node: site},
		"the folder alone, named":             {signed: []string{site}, node: site, named: true},
		"the folder alone, not signed":        {node: site, wantErr: trust.ErrUnsigned},
		"the folder alone, named, not signed": {node: site, named: true, wantErr: trust.ErrUnsigned},
		"the folder wins over Warn": {
			signed: []string{vendor}, policy: warned, update: vendor, node: site, wantErr: trust.ErrWrongKey,
		},
		"the folder wins over the cluster's key": {
			signed: []string{vendor}, policy: required, update: vendor, node: site, wantErr: trust.ErrWrongKey,
		},
		"the cluster wins over the folder's key": {
			signed: []string{site}, policy: required, update: vendor, node: site, wantErr: trust.ErrWrongKey,
		},
		"both are content":                 {signed: []string{vendor, site}, policy: required, update: vendor, node: site},
		"the folder is content, warned of": {signed: []string{site}, policy: warned, update: vendor, node: site},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			b := newBench(t)
			signers := map[string]signedimage.Signer{vendor: b.vendor, site: b.site}

			for _, who := range test.signed {
				b.repository.Sign(t, b.reference, signers[who])
			}

			var settings config.Config
			if test.node != "" {
				settings = b.folder(!test.named, signers[test.node].Public)
			}

			var verification *v1alpha1.NodeVerification
			if test.update != "" {
				verification = wants(test.policy, signers[test.update].Public)
			}

			image, err := b.images(settings).Image(t.Context(), b.reference, verification)

			switch {
			case test.wantErr == nil && (err != nil || image.Config().Version != "1.1.0"):
				t.Fatalf("got %v, want the image", err)
			case test.wantErr != nil && (!errors.Is(err, osimage.ErrUntrusted) || !errors.Is(err, test.wantErr) || image.Source != nil):
				t.Fatalf("got %v, want a refusal as %v", err, test.wantErr)
			case test.policy == warned && err == nil && !strings.Contains(b.log.String(), "is NOT signed"):
				t.Errorf("no warning in %s", b.log.String())
			case err == nil:
				wantVerdict(t, image.Signature, signers, test.update, test.node, test.policy == warned)
			}
		})
	}
}

// wantVerdict checks that the verdict names the key of each who asked, or says that the image is only warned of.
func wantVerdict(
	t *testing.T, got *journal.Signature, signers map[string]signedimage.Signer, update, node string, warned bool,
) {
	t.Helper()

	if asked := update != "" || node != ""; asked != (got != nil) {
		t.Fatalf("verdict %+v, asked: %v", got, asked)
	}

	if got == nil {
		return
	}

	var wants []string

	if node != "" {
		wants = append(wants, "signed by the key "+signers[node].Key().Fingerprint+" of /")
	}

	switch {
	case warned:
		wants = append(wants, "staged all the same, since the HostPool's policy is Warn: not signed")
	case update != "":
		wants = append(wants, "signed by the key "+signers[update].Key().Fingerprint+" of spec.verification.publicKeys[0] (form tag)")
	}

	for _, want := range wants {
		if !strings.Contains(got.Message, want) {
			t.Errorf("nothing of %q in %q", want, got.Message)
		}
	}

	if got.Verified == warned {
		t.Errorf("verified %v, only warned of %v", got.Verified, warned)
	}
}

// Nothing but the manifest and the signatures is asked for when an image is refused.
func TestARefusedImageIsNotFetched(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.registry.Requests() // and forgets them

	_, err := b.images(config.Config{}).Image(t.Context(), b.reference, wants(v1alpha1.VerificationRequire, b.vendor.Public))
	if !errors.Is(err, osimage.ErrUntrusted) || !strings.Contains(err.Error(), "stayput image sign") {
		t.Errorf("got %v, want a refusal with the next action", err)
	}

	for _, request := range b.registry.Requests() {
		if strings.Contains(request.Path, "/blobs/") {
			t.Errorf("%s %s was asked for", request.Method, request.Path)
		}
	}
}

func TestKeysThatCannotBeUsed(t *testing.T) {
	t.Parallel()

	tests := map[string]struct {
		settings func(b *bench) config.Config
		update   *v1alpha1.NodeVerification
		kind     error
		says     string
	}{
		"a folder that is not there": {
			settings: func(b *bench) config.Config {
				return config.Config{Trust: config.Trust{KeyDir: filepath.Join(b.root, "none")}}
			},
			kind: trust.ErrKey, says: "none",
		},
		"a named folder without keys": {settings: func(b *bench) config.Config { return b.folder(false) }, kind: trust.ErrKey, says: "*.pub"},
		"a broken key in the default folder": {
			settings: func(b *bench) config.Config { return b.folder(true, "ssh-ed25519 AAAA") }, kind: trust.ErrKey, says: "SSH",
		},
		"a broken key of the NodeUpdate": {
			update: wants(v1alpha1.VerificationRequire, "-----BEGIN PUBLIC KEY-----"), kind: trust.ErrKey,
			says: "spec.verification.publicKeys[0]",
		},
		"no key of the NodeUpdate":  {update: wants(v1alpha1.VerificationRequire), kind: trust.ErrPolicy, says: "no key"},
		"a policy of another world": {update: wants("Maybe"), kind: trust.ErrPolicy, says: "maybe"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			b := newBench(t)

			var settings config.Config
			if test.settings != nil {
				settings = test.settings(b)
			}

			b.registry.Requests() // and forgets them

			_, err := b.images(settings).Image(t.Context(), b.reference, test.update)
			if !errors.Is(err, test.kind) || errors.Is(err, osimage.ErrUntrusted) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want one of the kind %v that says %q", err, test.kind, test.says)
			}

			if asked := len(b.registry.Requests()); asked > 0 {
				t.Errorf("the registry was asked %d times", asked)
			}
		})
	}
}

// An empty default folder, or one with other files only, asks for nothing.
func TestADefaultFolderWithoutKeys(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	settings := b.folder(true)
	b.write(filepath.Join(b.root, config.DefaultKeyDir, "README"), []byte("put keys here"))
	b.write(filepath.Join(b.root, config.DefaultKeyDir, ".old.pub"), []byte("no key"))

	if _, err := b.images(settings).Image(t.Context(), b.reference, nil); err != nil {
		t.Error(err)
	}
}

// A registry that fails says nothing of signatures: the agent tries again.
func TestARegistryThatFails(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.repository.Sign(t, b.reference, b.vendor)
	b.registry.Misbehave(1, func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, ".sig") }, registrytest.Status(403))

	_, err := b.images(config.Config{}).Image(t.Context(), b.reference, wants(v1alpha1.VerificationRequire, b.vendor.Public))
	if err == nil || errors.Is(err, osimage.ErrUntrusted) {
		t.Errorf("got %v, want an error that is no refusal", err)
	}
}

// The image comes from the mirror that the default folder names.
func TestTheDefaultHostsFolder(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	reference := strings.Replace(b.reference, b.registry.Address, "registry.invalid", 1)
	b.write(filepath.Join(b.root, config.DefaultHostsDir, "registry.invalid", "hosts.toml"), fmt.Appendf(nil,
		"server = \"https://%s\"\nca = %q\n", b.registry.Address, b.caFile))

	image, err := b.images(config.Config{Registry: config.Registry{LimitRate: "100M"}}).Image(t.Context(), reference, nil)
	if err != nil {
		t.Fatal(err)
	}

	content, err := image.Open(t.Context(), osimage.RoleUKI, 0)
	if err != nil {
		t.Fatal(err)
	}

	if size, err := io.Copy(io.Discard, content); err != nil || size != 4096 || content.Close() != nil {
		t.Errorf("read %d bytes, %v", size, err)
	}

	missing := config.Config{Registry: config.Registry{HostsDir: filepath.Join(b.root, "none")}}
	if _, err := b.images(missing).Image(t.Context(), reference, nil); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("got %v, want an error that names the folder", err)
	}
}
