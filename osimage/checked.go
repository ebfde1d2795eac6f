package osimage

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// bounded gives an answer that the registry library reads into memory an end: it alone would read 100 MiB of a manifest.
// A registry need not take manifests of more than 4 MiB (OCI distribution-spec).
func bounded(request *http.Request, body io.ReadCloser) io.ReadCloser {
	path := request.URL.Path
	if !strings.Contains(path, "/manifests/") && !strings.Contains(path, "/referrers/") {
		return body
	}

	return &boundedBody{ReadCloser: body, left: maxManifest, subject: path}
}

type boundedBody struct {
	io.ReadCloser

	left    int64
	subject string
}

func (b *boundedBody) Read(buffer []byte) (int, error) {
	n, err := b.ReadCloser.Read(buffer)
	if b.left -= int64(n); b.left < 0 {
		return 0, &Error{
			Kind: ErrTooLarge, Subject: b.subject, Detail: fmt.Sprintf("the answer has more than %d bytes", maxManifest),
			Fix: "check that this is an OCI registry",
		}
	}

	return n, err
}

// checkManifest makes sure that a manifest is what its descriptor says. For one media type, schema 1 of Docker, the
// library takes the registry's word for the digest, even when a manifest was asked for by its digest.
func checkManifest(subject string, descriptor *remote.Descriptor) error {
	hasher, err := v1.Hasher(descriptor.Digest.Algorithm)
	if err != nil {
		return notAnImage(subject, "its digest is of an unknown kind", err)
	}

	// A hash never returns an error.
	_, _ = hasher.Write(descriptor.Manifest)

	if got := hex.EncodeToString(hasher.Sum(nil)); got != descriptor.Digest.Hex {
		return wrongDigest(subject, "manifest", descriptor.Digest.Algorithm+":"+got, descriptor.Digest.String())
	}

	return nil
}
