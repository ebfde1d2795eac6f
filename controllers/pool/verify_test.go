package pool

import (
	"encoding/pem"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/trust"
	"github.com/stayput-dev/stayput/test/signedimage"
)

const (
	releaseKeys = "release-keys"
	verified    = "True/" + v1alpha1.ReasonVerified
	untrusted   = "False/" + v1alpha1.ReasonReleaseUntrusted
)

// signing is a scenario whose pool takes its images from a registry and its keys from a ConfigMap.
type signing struct {
	*scenario

	repository *signedimage.Repository
	key, other signedimage.Signer
}

func startSigning(t *testing.T, name string) *signing {
	t.Helper()
	s := &signing{
		scenario: startWith(t, name, server, Registries{}), repository: signedimage.New(t),
		key: signedimage.NewSigner(t), other: signedimage.NewSigner(t),
	}
	s.create(s.home, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "registry"},
		Data: map[string][]byte{
			"ca.crt": certificate(s.repository),
		},
	})

	return s
}

func certificate(repository *signedimage.Repository) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: repository.Registry.Certificate()})
}

// required is the policy that a signature by the key is needed.
func required(t *testing.T, key signedimage.Signer) trust.Policy {
	t.Helper()
	policy, err := trust.NewPolicy(trust.ModeRequire, []trust.Key{key.Key()})
	if err != nil {
		t.Fatal(err)
	}

	return policy
}

// release makes the pool with the tag, which asks for the keys of the ConfigMap.
func (s *signing) release(tag string, changes ...func(*v1alpha1.HostPool)) {
	s.t.Helper()
	s.addPool(tag, append([]func(*v1alpha1.HostPool){func(pool *v1alpha1.HostPool) {
		pool.Spec.Release.OS.Image, pool.Spec.Release.OS.PullSecretName = s.repository.Reference(tag), "registry"
		pool.Spec.Verification.PublicKeys = &v1alpha1.PublicKeySource{ConfigMapName: releaseKeys}
	}}, changes...)...)
}

// trust puts keys into the ConfigMap in place of those that were there.
func (s *signing) trust(signers ...signedimage.Signer) {
	s.t.Helper()
	var text strings.Builder
	for _, signer := range signers {
		text.WriteString(signer.Public)
	}
	keys := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: releaseKeys}, Data: map[string]string{"cosign.pub": text.String()},
	}
	if err := s.home.Update(s.ctx, keys.DeepCopy()); err != nil {
		s.create(s.home, keys)
	}
}

// nudge makes the controller look now.
func (s *signing) nudge() {
	s.t.Helper()
	s.change(func(pool *v1alpha1.HostPool) {
		if pool.Annotations == nil {
			pool.Annotations = map[string]string{}
		}
		pool.Annotations["test/nudge"] += "x"
	})
}

func (s *signing) update(node string) *v1alpha1.NodeUpdate {
	s.t.Helper()
	update := &v1alpha1.NodeUpdate{}
	s.Expect(client.IgnoreNotFound(s.nodes.Get(s.ctx, client.ObjectKey{Name: node}, update))).To(gomega.Succeed())

	return update
}

// events counts those about signatures.
func (s *signing) events() int {
	s.t.Helper()
	var list eventsv1.EventList
	s.Expect(s.home.List(s.ctx, &list, client.InNamespace(s.name))).To(gomega.Succeed())
	count := 0
	for _, event := range list.Items {
		if event.Reason == v1alpha1.ReasonReleaseUntrusted && event.Type == corev1.EventTypeWarning {
			count++
		}
	}

	return count
}

func TestASignedReleaseIsRolledOut(t *testing.T) {
	t.Parallel()
	s := startSigning(t, "signed")
	node := s.addNode(1)
	s.trust(s.other, s.key)
	s.repository.Sign(t, s.repository.Push(t, "stable", "1.1.0"), s.key)
	s.release("stable")
	s.Eventually(s.condition(v1alpha1.ConditionReady)).Should(gomega.Equal(allUpdated))
	s.Expect(s.condition(v1alpha1.ConditionReleaseVerified)()).To(gomega.Equal(verified))
	s.Expect(s.message(v1alpha1.ConditionReleaseVerified)).To(gomega.ContainSubstring(s.key.Key().Fingerprint))
	s.Expect(s.pool().Status.Release.Signature).To(gomega.HaveValue(gomega.And(
		gomega.HaveField("Verified", true), gomega.HaveField("Key", s.key.Key().Fingerprint),
		gomega.HaveField("Form", string(trust.FormTag)), gomega.HaveField("Policy", v1alpha1.VerificationRequire))))
	verification := s.update(node).Spec.Verification
	s.Expect(verification).NotTo(gomega.BeNil())
	s.Expect(verification.Policy).To(gomega.Equal(v1alpha1.VerificationRequire))
	s.Expect(verification.PublicKeys).To(gomega.ConsistOf(s.key.Public, s.other.Public))
	s.Expect(s.events()).To(gomega.BeZero())
	// Nobody asks any more: the condition goes, and so does the fact.
	s.change(func(pool *v1alpha1.HostPool) { pool.Spec.Verification.Policy = v1alpha1.VerificationOff })
	s.Eventually(s.condition(v1alpha1.ConditionReleaseVerified)).Should(gomega.BeEmpty())
	s.Expect(s.pool().Status.Release.Signature).To(gomega.BeNil())
}

// What is not signed is not begun. It is as soon as somebody signs it, with nobody telling the controller.
func TestAnUnsignedReleaseWaitsUntilItIsSigned(t *testing.T) {
	t.Parallel()
	s := startSigning(t, "unsigned")
	node := s.addNode(1)
	s.trust(s.key)
	reference := s.repository.Push(t, "1.1.0", "1.1.0")
	s.release("1.1.0")
	s.Eventually(s.condition(v1alpha1.ConditionReady)).Should(gomega.Equal(untrusted))
	s.Expect(s.condition(v1alpha1.ConditionReleaseVerified)()).To(gomega.Equal(untrusted))
	s.Expect(s.condition(v1alpha1.ConditionReleaseResolved)()).To(gomega.Equal(untrusted))
	s.Expect(s.message(v1alpha1.ConditionReleaseVerified)).To(gomega.And(
		gomega.ContainSubstring("not signed"), gomega.ContainSubstring("stayput image sign")))
	s.repository.Sign(t, reference, s.other)
	s.nudge()
	s.Eventually(func() string { return s.message(v1alpha1.ConditionReleaseVerified) }).Should(
		gomega.ContainSubstring("1 signature found: 1 by an unknown key"))
	s.Eventually(s.events).Should(gomega.BeNumerically(">=", 1))
	s.Expect(s.update(node).Name).To(gomega.BeEmpty(), "the release was offered")
	s.repository.Sign(t, reference, s.key)
	s.Eventually(s.condition(v1alpha1.ConditionReady)).Should(gomega.Equal(allUpdated))
}

func TestWarnGoesOn(t *testing.T) {
	t.Parallel()
	s := startSigning(t, "warned")
	node := s.addNode(1)
	s.trust(s.key)
	s.repository.Push(t, "1.1.0", "1.1.0")
	s.release("1.1.0", func(pool *v1alpha1.HostPool) { pool.Spec.Verification.Policy = v1alpha1.VerificationWarn })
	s.Eventually(s.condition(v1alpha1.ConditionReady)).Should(gomega.Equal(allUpdated))
	s.Expect(s.condition(v1alpha1.ConditionReleaseVerified)()).To(gomega.Equal(untrusted))
	s.Expect(s.message(v1alpha1.ConditionReleaseVerified)).To(gomega.ContainSubstring("policy is Warn"))
	s.Expect(s.update(node).Spec.Verification.Policy).To(gomega.Equal(v1alpha1.VerificationWarn))
	s.Eventually(s.events).Should(gomega.Equal(1))
}

// The key is rotated while a node waits, staged, and the tag has moved on: the release keeps its digest. It is taken back
// while no trusted key has signed it, and offered again when one has.
func TestAKeyIsRotated(t *testing.T) {
	t.Parallel()
	s := startSigning(t, "rotated")
	node := s.addNode(1)
	s.trust(s.key)
	first := s.repository.Push(t, "stable", "1.1.0")
	s.repository.Sign(t, first, s.key)
	s.release("stable", func(pool *v1alpha1.HostPool) { pool.Spec.Strategy.Type = v1alpha1.ManualInPlaceUpdate })
	staged := func() v1alpha1.Phase { return s.update(node).Status.Phase }
	s.Eventually(staged).Should(gomega.Equal(v1alpha1.PhaseStaged))
	attempt := s.update(node).Spec.Attempt
	s.repository.Sign(t, s.repository.Push(t, "stable", "1.2.0"), s.other)

	// Another key beside it changes nothing of what is staged.
	keySet := s.pool().Status.Release.Signature.KeySet
	s.trust(s.key, s.other)
	s.nudge()
	s.Eventually(func() string { return s.pool().Status.Release.Signature.KeySet }).ShouldNot(gomega.Equal(keySet))
	s.Expect(s.condition(v1alpha1.ConditionReleaseVerified)()).To(gomega.Equal(verified))
	s.Consistently(func() string { return s.update(node).Annotations[AnnotationClosedAs] }, "2s").Should(gomega.BeEmpty())

	s.trust(s.other) // nobody nudges: the controller looks by itself
	s.Eventually(s.condition(v1alpha1.ConditionReleaseVerified)).Should(gomega.Equal(untrusted))
	s.Eventually(func() string { return s.update(node).Annotations[AnnotationClosedAs] }).Should(gomega.Equal(string(Withdrawn)))
	s.Expect(s.condition(v1alpha1.ConditionReady)()).To(gomega.Equal(untrusted))
	s.Eventually(s.events).Should(gomega.Equal(1))
	s.Expect(s.update(node).Spec.Attempt).To(gomega.Equal(attempt))

	s.repository.Sign(t, first, s.other)
	s.nudge()
	s.Eventually(func() string { return s.update(node).Spec.Attempt }).ShouldNot(gomega.Equal(attempt))
	s.Eventually(s.condition(v1alpha1.ConditionReleaseVerified)).Should(gomega.Equal(verified))
	s.Expect(s.update(node).Spec.Release.OS.Image).To(gomega.Equal(first), "the tag was resolved again")
	s.Expect(s.update(node).Spec.Verification.PublicKeys).To(gomega.ConsistOf(s.other.Public))
	s.Eventually(staged).Should(gomega.Equal(v1alpha1.PhaseStaged))
}

func TestKeysThatCannotBeRead(t *testing.T) {
	t.Parallel()
	s := startSigning(t, "keyless")
	node := s.addNode(1)
	s.repository.Sign(t, s.repository.Push(t, "1.1.0", "1.1.0"), s.key)
	invalid := "False/" + v1alpha1.ReasonPublicKeysInvalid
	says := func(texts ...string) {
		t.Helper()
		s.nudge()
		for _, text := range texts {
			s.Eventually(func() string { return s.message(v1alpha1.ConditionReleaseVerified) }).Should(gomega.ContainSubstring(text))
		}
		for _, condition := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionReleaseVerified, v1alpha1.ConditionReleaseResolved} {
			s.Expect(s.condition(condition)()).To(gomega.Equal(invalid))
		}
	}
	s.release("1.1.0")
	says("ConfigMap keyless/release-keys")
	s.trust()
	says("it is empty", "cosign.pub")
	s.change(func(pool *v1alpha1.HostPool) { pool.Spec.Verification.PublicKeys.Key = "other.pub" })
	says("no such key", "other.pub")
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: releaseKeys},
		Data:       map[string][]byte{"private": []byte("-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n")},
	}
	s.create(s.home, secret)
	s.change(func(pool *v1alpha1.HostPool) {
		pool.Spec.Verification.PublicKeys = &v1alpha1.PublicKeySource{SecretName: releaseKeys}
	})
	says("Secret keyless/release-keys", "a private key")
	s.Expect(s.message(v1alpha1.ConditionReleaseVerified)).NotTo(gomega.ContainSubstring("MAA="))
	s.Expect(s.update(node).Name).To(gomega.BeEmpty(), "the release was offered")
	secret.Data["cosign.pub"] = []byte(s.key.Public)
	s.Expect(s.home.Update(s.ctx, secret)).To(gomega.Succeed())
	s.change(func(pool *v1alpha1.HostPool) { pool.Spec.Verification.PublicKeys.Key = "cosign.pub" })
	s.Eventually(s.condition(v1alpha1.ConditionReady)).Should(gomega.Equal(allUpdated))
}

// The tag moves after it was resolved and before the signature is looked for: the digest that was found is the one that
// counts.
func TestATagThatMovesBetween(t *testing.T) {
	t.Parallel()
	key := signedimage.NewSigner(t)
	policy := required(t, key)
	for name, firstIsSigned := range map[string]bool{"away from a signed image": true, "to a signed image": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repository := signedimage.New(t)
			first, second := repository.Push(t, "first", "1.1.0"), repository.Push(t, "second", "1.2.0")
			if firstIsSigned {
				repository.Sign(t, first, key)
			} else {
				repository.Sign(t, second, key)
			}
			repository.Push(t, "stable", "1.1.0")
			repository.Registry.Misbehave(1, func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/manifests/stable") },
				func(w http.ResponseWriter, r *http.Request, next http.Handler) {
					next.ServeHTTP(w, r)
					repository.Push(t, "stable", "1.2.0")
				})
			image, err := Registries{}.Resolve(t.Context(), ImageRequest{
				Image: repository.Reference("stable"), Policy: policy,
				CA: certificate(repository),
			})
			if firstIsSigned && (err != nil || !strings.HasSuffix(first, image.Digest) || !image.Signature.Verified) {
				t.Errorf("got %+v, %v, want the first image", image, err)
			}
			if !firstIsSigned && !errors.Is(err, osimage.ErrUntrusted) {
				t.Errorf("got %+v, %v, want a refusal", image, err)
			}
		})
	}
}

// Nodes are told the digest of the index, and take the image for their architecture from it: a signature over the index, or
// over the image in it, is what they and the controller ask for.
func TestAnIndexStaysAnIndex(t *testing.T) {
	t.Parallel()
	for _, signed := range []string{"nothing", "index", "image"} {
		key, repository := signedimage.NewSigner(t), signedimage.New(t)
		image := repository.Push(t, "image", "1.1.0")
		index := repository.Index(t, "stable", image)
		request := ImageRequest{Image: repository.Reference("stable"), Policy: required(t, key), CA: certificate(repository)}
		if signed == "nothing" {
			if found, err := (Registries{}).Resolve(t.Context(), request); !errors.Is(err, osimage.ErrUntrusted) {
				t.Errorf("nothing is signed: got %+v, %v", found, err)
			}

			continue
		}
		reference := map[string]string{"index": index, "image": image}[signed]
		repository.Sign(t, reference, key)
		found, err := Registries{}.Resolve(t.Context(), request)
		if err != nil || !strings.HasSuffix(index, found.Digest) || !strings.HasSuffix(reference, found.Signature.Digest) {
			t.Errorf("the %s is signed: got %+v, %v", signed, found, err)
		}
	}
}
