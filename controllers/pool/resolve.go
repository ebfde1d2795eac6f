package pool

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage/trust"
)

// ImageRequest asks what an image reference stands for.
type ImageRequest struct {
	// Image is registry/repository:tag or @digest.
	Image string
	// DockerConfig is a docker config.json with the registry's credentials, empty for none.
	DockerConfig []byte
	// CA is the registry's CA in PEM, empty for the system's.
	CA []byte
	// PlainHTTP allows a registry without TLS.
	PlainHTTP bool
	// Policy says which signatures the image needs. They are over the digest that the answer has, which is what nodes pull:
	// a signature over an index is no signature over the image in it.
	Policy trust.Policy
}

// Image is what it stands for.
type Image struct {
	// Digest is the manifest's, "sha256:…"; Version is the one in the config.
	Digest, Version string
	// Signature is what was verified.
	Signature trust.Result
}

// Resolver looks images up in their registries. It must bound its own time and name no credentials in its errors. An image
// that the policy refuses is osimage.ErrUntrusted, and one whose signatures could not be read is not.
type Resolver interface {
	Resolve(ctx context.Context, request ImageRequest) (Image, error)
}

const secretKeyCA = "ca.crt"

// resolve looks the pool's image up, by its tag or by the digest that was found before.
func (r *Reconciler) resolve(
	ctx context.Context, pool *v1alpha1.HostPool, reference string, wanted trusted,
) (*v1alpha1.ResolvedRelease, error) {
	source := pool.Spec.Release.OS
	request := ImageRequest{Image: reference, PlainHTTP: source.PlainHTTP, Policy: wanted.policy}
	if source.PullSecretName != "" {
		var secret corev1.Secret
		key := types.NamespacedName{Namespace: pool.Namespace, Name: source.PullSecretName}
		if err := r.Live.Get(ctx, key, &secret); err != nil {
			return nil, fmt.Errorf("reading Secret %s of spec.release.os.pullSecretName: %w", key, err)
		}
		request.DockerConfig = secret.Data[corev1.DockerConfigJsonKey]
		request.CA = secret.Data[secretKeyCA]
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	image, err := r.Resolver.Resolve(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("resolving spec.release.os.image: %w", err)
	}

	return &v1alpha1.ResolvedRelease{
		Image: source.Image, Digest: image.Digest, Version: image.Version, ResolvedAt: metav1.NewTime(r.Clock.Now()),
		Signature: wanted.signature(image.Signature),
	}, nil
}

// byDigest is the reference of an image by its digest.
func byDigest(image, digest string) string {
	repository, _, _ := strings.Cut(image, "@")
	if colon := strings.LastIndex(repository, ":"); colon > strings.LastIndex(repository, "/") {
		repository = repository[:colon]
	}

	return repository + "@" + digest
}
