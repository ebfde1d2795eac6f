package docs

import (
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/stayput-dev/stayput/api/v1alpha1"
)

const provisioning = "docs/provisioning.md"

var sha256Digits = regexp.MustCompile(`^[0-9a-f]{64}$`)

// manifests are the objects of a page's examples.
type manifests struct {
	hosts   []metal3.BareMetalHost
	secrets []corev1.Secret
	pools   []v1alpha1.HostPool
}

// manifests reads the examples and refuses fields that the types do not have.
func (p page) manifests() (found manifests, err error) {
	for _, b := range p.blocks {
		if b.language != "yaml" {
			continue
		}

		switch {
		case strings.Contains(b.text, "\nkind: BareMetalHost\n"):
			found.hosts, err = decoded(found.hosts, b.text)
		case strings.Contains(b.text, "\nkind: Secret\n"):
			found.secrets, err = decoded(found.secrets, b.text)
		case strings.Contains(b.text, "\nkind: HostPool\n"):
			found.pools, err = decoded(found.pools, b.text)
		}
		if err != nil {
			return found, fmt.Errorf("%s: %w", p.path, err)
		}
	}

	return found, nil
}

func decoded[T any](list []T, text string) ([]T, error) {
	var object T
	err := yaml.UnmarshalStrict([]byte(text), &object)

	return append(list, object), err
}

// problems are what Metal3 or Ironic would refuse, and what would not go together.
func (m manifests) problems() []string {
	var problems []string
	for _, host := range m.hosts {
		for _, problem := range m.hostProblems(host) {
			problems = append(problems, host.Name+": "+problem)
		}
	}

	return problems
}

func (m manifests) hostProblems(host metal3.BareMetalHost) []string {
	var problems []string
	image := host.Spec.Image
	switch {
	case image == nil:
		return []string{"it has no image"}
	case host.APIVersion != metal3.GroupVersion.String():
		problems = append(problems, "apiVersion is "+host.APIVersion)
	case !host.Spec.Online || host.Spec.BMC.Address == "" || host.Spec.BMC.CredentialsName == "" || host.Spec.BootMACAddress == "":
		problems = append(problems, "Metal3 would not provision it")
	case host.Spec.BootMode != metal3.UEFI:
		problems = append(problems, "the disk boots by UEFI only")
	}

	// The webhook of baremetal-operator: validateImage.
	if _, err := url.ParseRequestURI(image.URL); err != nil {
		return append(problems, err.Error())
	}
	if _, _, err := image.GetChecksum(); err != nil {
		problems = append(problems, err.Error())
	}

	if image.IsOCI() {
		problems = append(problems, m.registryProblems(host)...)
	} else {
		problems = append(problems, fileProblems(*image)...)
	}

	return append(problems, m.poolProblems(host)...)
}

// registryProblems are those of an image that Ironic takes from a registry.
func (m manifests) registryProblems(host metal3.BareMetalHost) []string {
	var problems []string
	image := host.Spec.Image
	if image.Checksum != "" || image.ChecksumType != "" {
		problems = append(problems, "oci:// goes without a checksum")
	}
	if image.DiskFormat != nil {
		problems = append(problems, "Ironic learns the format from the index")
	}
	if _, err := name.ParseReference(strings.TrimPrefix(image.URL, "oci://"), name.StrictValidation); err != nil {
		problems = append(problems, err.Error())
	}
	if secret := image.OCIAuthSecretName; secret != nil && !slices.ContainsFunc(m.secrets, func(other corev1.Secret) bool {
		return other.Name == *secret && other.Namespace == host.Namespace &&
			(other.Type == corev1.SecretTypeDockerConfigJson && other.StringData[corev1.DockerConfigJsonKey] != "" ||
				other.Type == corev1.SecretTypeDockercfg && other.StringData[corev1.DockerConfigKey] != "")
	}) {
		problems = append(problems, "there is no docker config Secret "+*secret+" in its namespace")
	}

	return problems
}

// fileProblems are those of an image that is fetched from a web server.
func fileProblems(image metal3.Image) []string {
	var problems []string
	if !strings.HasPrefix(image.URL, "https://") {
		problems = append(problems, "the URL is not https")
	}
	if image.OCIAuthSecretName != nil {
		problems = append(problems, "ociAuthSecretName is for oci:// only")
	}
	if image.ChecksumType != metal3.SHA256 {
		problems = append(problems, "stayput image disk writes a SHA-256")
	}
	if image.Checksum != image.URL+".sha256" && !sha256Digits.MatchString(image.Checksum) {
		problems = append(problems, "the checksum is neither 64 digits nor the file beside the disk")
	}
	if image.DiskFormat == nil || "."+*image.DiskFormat != path.Ext(image.URL) {
		problems = append(problems, "the format is not that of the file")
	}

	return problems
}

// poolProblems are what keeps the pool of the page from updating the host afterwards.
func (m manifests) poolProblems(host metal3.BareMetalHost) []string {
	for _, pool := range m.pools {
		selector, err := metav1.LabelSelectorAsSelector(&pool.Spec.HostSelector)
		if err != nil {
			return []string{err.Error()}
		}
		if pool.Namespace != host.Namespace || !selector.Matches(labels.Set(host.Labels)) {
			continue
		}
		began := strings.TrimPrefix(host.Spec.Image.URL, "oci://")
		next := pool.Spec.Release.OS.Image
		if host.Spec.Image.IsOCI() && (began == next || repositoryOf(began) != repositoryOf(next)) {
			return []string{fmt.Sprintf("the pool's %s is no update of %s", next, began)}
		}

		return nil
	}

	return []string{"no pool of the page selects it"}
}

func repositoryOf(reference string) string {
	return reference[:strings.LastIndexAny(reference, ":@")+1]
}

func TestProvisioningExamples(t *testing.T) {
	t.Parallel()

	found, err := readPage(t, provisioning).manifests()
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range found.problems() {
		t.Error(problem)
	}

	oci := 0
	for _, host := range found.hosts {
		if host.Spec.Image.IsOCI() {
			oci++
		}
	}
	if oci == 0 || oci == len(found.hosts) || len(found.pools) == 0 {
		t.Errorf("%d hosts, %d of them from a registry, and %d pools", len(found.hosts), oci, len(found.pools))
	}
}

// Each rule finds what it is for: the page's own examples with one thing changed.
func TestWrongProvisioningIsFound(t *testing.T) {
	t.Parallel()

	var page strings.Builder
	for _, b := range readPage(t, provisioning).blocks {
		page.WriteString(fence + b.language + "\n" + b.text + fence + "\n")
	}
	text := page.String()

	for _, test := range []struct{ old, changed, says string }{
		{"url: oci://registry.example/os/node:1.0.0", "url: oci://registry.example/os/node", "host-1: could not parse"},
		{"    ociAuthSecretName: registry-pull", "    checksum: abc\n    checksumType: sha256", "host-1: oci:// goes without a checksum"},
		{"    ociAuthSecretName: registry-pull", "    format: raw", "host-1: Ironic learns the format"},
		{"ociAuthSecretName: registry-pull", "ociAuthSecretName: other", "host-1: there is no docker config Secret other"},
		{"type: kubernetes.io/dockerconfigjson", "type: Opaque", "host-1: there is no docker config Secret"},
		{"  name: registry-pull\n  namespace: metal", "  name: registry-pull\n  namespace: other", "host-1: there is no docker config"},
		{"    checksum: https://images.example/node.raw.sha256\n", "", "host-2: checksum is required"},
		{"node.raw.sha256", "node.raw.md5", "host-2: the checksum is neither"},
		{"checksumType: sha256", "checksumType: md5", "host-2: stayput image disk writes a SHA-256"},
		{"format: raw", "format: qcow2", "host-2: the format is not that of the file"},
		{"    url: https://images", "    url: http://images", "host-2: the URL is not https"},
		{"    format: raw", "    format: raw\n    ociAuthSecretName: registry-pull", "host-2: ociAuthSecretName is for oci:// only"},
		{"image: registry.example/os/node:1.1.0", "image: registry.example/os/other:1.1.0", "host-1: the pool's registry.example/os/other"},
		{"image: registry.example/os/node:1.1.0", "image: registry.example/os/node:1.0.0", "host-1: the pool's"},
		{"matchLabels: {pool: workers}", "matchLabels: {pool: other}", "host-2: no pool of the page selects it"},
		{"bootMode: UEFI", "bootMode: legacy", "host-1: the disk boots by UEFI only"},
		{"online: true", "online: false", "host-1: Metal3 would not provision it"},
		{"    url: oci://", "    uri: oci://", "unknown field"},
	} {
		changed := strings.ReplaceAll(text, test.old, test.changed)
		if changed == text {
			t.Errorf("the page has no %q", test.old)
		}

		found, err := parsePage(provisioning, changed).manifests()
		problems := found.problems()
		if err != nil {
			problems = []string{err.Error()}
		}
		if !strings.Contains(strings.Join(problems, "\n"), test.says) {
			t.Errorf("%q in place of %q: got %v, want %q", test.changed, test.old, problems, test.says)
		}
	}
}
