package pool

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/trust"
)

// trusted is which signatures a pool asks for, with the keys as they are in this pass.
type trusted struct {
	setting v1alpha1.VerificationPolicy
	policy  trust.Policy
	// keySet is the SHA-256 over the keys' fingerprints, "" without any.
	keySet string
	// verification is what the nodes are told, nil for nothing.
	verification *v1alpha1.NodeVerification
}

// off tells whether no signature is asked for.
func (t trusted) off() bool { return t.verification == nil }

// settled tells whether a release with this signature was checked with this policy and these keys, and may be rolled out.
func (t trusted) settled(signature *v1alpha1.ReleaseSignature) bool {
	if t.off() || signature == nil {
		return t.off() && signature == nil
	}

	return signature.Policy == t.setting && signature.KeySet == t.keySet && !signature.Refused()
}

// stillTrusts tells whether the signature is by one of the keys, though others may have come or gone.
func (t trusted) stillTrusts(signature *v1alpha1.ReleaseSignature) bool {
	return signature != nil && signature.Verified && slices.ContainsFunc(t.policy.Keys(), func(key trust.Key) bool {
		return key.Fingerprint == signature.Key
	})
}

// signature is what is kept of a result.
func (t trusted) signature(result trust.Result) *v1alpha1.ReleaseSignature {
	if t.off() {
		return nil
	}
	signature := &v1alpha1.ReleaseSignature{
		Policy: t.setting, KeySet: t.keySet, Verified: result.Verified, Form: string(result.Form),
		Message: v1alpha1.Cut(result.Reason, v1alpha1.MaxMessage),
	}
	if result.Key != nil {
		signature.Key = result.Key.Fingerprint
	}

	return signature
}

var (
	errNoPublicKeys = errors.New("it holds none; put the signers' public keys into it, such as cosign.pub")
	errNoSuchKey    = errors.New("it has no such key; correct spec.verification.publicKeys.key, or leave it out for all")
)

// trusts reads the pool's keys. They are read in every pass, so that a changed object is taken up; there is no watch, which
// would need the right to list the objects of all namespaces.
func (r *Reconciler) trusts(ctx context.Context, pool *v1alpha1.HostPool) (trusted, error) {
	settings := pool.Spec.Verification
	setting := settings.Effective()
	if setting == v1alpha1.VerificationOff || settings.PublicKeys == nil {
		return trusted{setting: v1alpha1.VerificationOff}, nil
	}
	subject, data, err := r.publicKeys(ctx, pool.Namespace, *settings.PublicKeys)
	if err != nil {
		return trusted{}, fmt.Errorf("reading the public keys of %s: %w", subject, err)
	}
	var keys []trust.Key
	for _, name := range slices.Sorted(maps.Keys(data)) {
		more, err := trust.ParseKeys(subject+", key "+name, data[name])
		if err != nil {
			return trusted{}, err
		}
		keys = append(keys, more...)
	}

	return newTrusted(setting, keys)
}

// publicKeys are the values of the object that is named, by key.
func (r *Reconciler) publicKeys(
	ctx context.Context, namespace string, source v1alpha1.PublicKeySource,
) (subject string, data map[string][]byte, err error) {
	name := types.NamespacedName{Namespace: namespace, Name: source.ConfigMapName}
	if source.SecretName != "" {
		var secret corev1.Secret
		name.Name = source.SecretName
		subject = "Secret " + name.String()
		if err := r.Live.Get(ctx, name, &secret); err != nil {
			return subject, nil, err
		}
		data = secret.Data
	} else {
		var object corev1.ConfigMap
		subject = "ConfigMap " + name.String()
		if err := r.Live.Get(ctx, name, &object); err != nil {
			return subject, nil, err
		}
		data = maps.Clone(object.BinaryData)
		if data == nil {
			data = map[string][]byte{}
		}
		for key, value := range object.Data {
			data[key] = []byte(value)
		}
	}
	if source.Key != "" {
		subject += ", key " + source.Key
		value, found := data[source.Key]
		if !found {
			return subject, nil, errNoSuchKey
		}
		data = map[string][]byte{source.Key: value}
	}
	if len(data) == 0 {
		return subject, nil, errNoPublicKeys
	}

	return subject, data, nil
}

// newTrusted puts the keys into the order of their fingerprints: the same keys are the same for the nodes, wherever they
// lie in the object.
func newTrusted(setting v1alpha1.VerificationPolicy, keys []trust.Key) (trusted, error) {
	slices.SortFunc(keys, func(a, b trust.Key) int { return strings.Compare(a.Fingerprint, b.Fingerprint) })
	policy, err := trust.NewPolicy(trust.Mode(strings.ToLower(string(setting))), keys)
	if err != nil {
		return trusted{}, fmt.Errorf("reading spec.verification: %w", err)
	}
	result := trusted{setting: setting, policy: policy, verification: &v1alpha1.NodeVerification{Policy: setting}}
	set := sha256.New()
	for _, key := range policy.Keys() {
		fmt.Fprintln(set, key.Fingerprint)
		der, err := x509.MarshalPKIXPublicKey(key.Public())
		if err != nil {
			return trusted{}, fmt.Errorf("encoding the %s: %w", key, err)
		}
		result.verification.PublicKeys = append(result.verification.PublicKeys,
			string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})))
	}
	result.keySet = "sha256:" + hex.EncodeToString(set.Sum(nil))

	return result, nil
}

// verify brings the signature of a release that was resolved before in line with what the pool asks for now. It asks for
// the digest, not for the tag again. It tells whether the status is to be stored.
func (r *Reconciler) verify(ctx context.Context, pool *v1alpha1.HostPool, report *report) bool {
	release, wanted := pool.Status.Release, report.trusted
	was := release.Signature
	switch {
	case wanted.off():
		release.Signature = nil
	case wanted.stillTrusts(was):
		release.Signature = &v1alpha1.ReleaseSignature{
			Policy: wanted.setting, KeySet: wanted.keySet, Verified: true, Key: was.Key, Form: was.Form,
		}
	default:
		found, err := r.resolve(ctx, pool, byDigest(release.Image, release.Digest), wanted)
		switch {
		case errors.Is(err, osimage.ErrUntrusted):
			r.Metrics.failed(pool, "resolve")
			release.Signature = &v1alpha1.ReleaseSignature{
				Policy: wanted.setting, KeySet: wanted.keySet, Message: v1alpha1.Cut(err.Error(), v1alpha1.MaxMessage),
			}
		case err != nil:
			r.Metrics.failed(pool, "resolve")
			report.resolveError, report.held = err, true
		default:
			release.Signature = found.Signature
		}
	}

	return !equality.Semantic.DeepEqual(was, release.Signature)
}

// unverified says what was found of a release that is not verified.
func unverified(signature *v1alpha1.ReleaseSignature) string {
	if signature.Policy == v1alpha1.VerificationWarn {
		return "rolled out all the same, since spec.verification.policy is Warn: " + signature.Message
	}

	return signature.Message
}

// tellUntrusted tells, once it is stored, that the condition has begun to say so or says something else: a pass that is
// done again since it could not store its status has told nothing.
func (r *Reconciler) tellUntrusted(pool *v1alpha1.HostPool, before *v1alpha1.HostPoolStatus) {
	was := meta.FindStatusCondition(before.Conditions, v1alpha1.ConditionReleaseVerified)
	is := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionReleaseVerified)
	if is == nil || is.Reason != v1alpha1.ReasonReleaseUntrusted ||
		was != nil && was.Reason == is.Reason && was.Message == is.Message {
		return
	}
	r.Events.Eventf(pool, nil, corev1.EventTypeWarning, is.Reason, "Resolve", "%s", notef("%s", is.Message))
}
