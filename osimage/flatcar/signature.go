package flatcar

import (
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"

	"github.com/stayput-dev/stayput/osimage"
)

// maxSignatures bounds in bytes the message with the signatures; a release has two of 4096 bits.
const (
	maxSignatures = 64 << 10
	maxSigners    = 16
)

// ParseKeys reads RSA public keys in PEM, such as Flatcar's /usr/share/update_engine/update-payload-key.pub.pem. Name is
// for errors.
func ParseKeys(data []byte, name string) ([]*rsa.PublicKey, error) {
	var keys []*rsa.PublicKey

	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case "PUBLIC KEY":
			parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
			if err != nil {
				return nil, badKey(name, "a public key cannot be read", err)
			}

			key, ok := parsed.(*rsa.PublicKey)
			if !ok {
				return nil, badKey(name, fmt.Sprintf("a public key is a %T, want RSA", parsed), nil)
			}

			keys = append(keys, key)
		case "RSA PUBLIC KEY":
			key, err := x509.ParsePKCS1PublicKey(block.Bytes)
			if err != nil {
				return nil, badKey(name, "a public key cannot be read", err)
			}

			keys = append(keys, key)
		default:
			return nil, badKey(name, fmt.Sprintf("it holds a %q, want a \"PUBLIC KEY\"", block.Type), nil)
		}
	}

	if len(keys) == 0 {
		return nil, badKey(name, "there is no public key in PEM in it", nil)
	}

	return keys, nil
}

func badKey(name, detail string, cause error) error {
	return &osimage.Error{
		Kind: osimage.ErrInvalid, Subject: name, Detail: detail, Err: cause,
		Fix: "give the public key of Flatcar's payloads: /usr/share/update_engine/update-payload-key.pub.pem of a node",
	}
}

// checkSignature compares the payload's signatures with the keys, and returns what is to be told of them.
//
// What is signed are all bytes before the signatures: header, manifest, which names the place of the signatures already,
// and blobs (PayloadSigner::VerifySignedPayload). Each signature is RSA with PKCS #1 v1.5 over SHA-256. Their version is
// the place in the list, from the end, of the key that made them; any key that was given may have made any of them.
func (p *payload) checkSignature(ctx context.Context, options Options) ([]string, error) {
	if len(options.Keys) == 0 {
		if p.signed {
			return []string{"the payload's signature was not checked: no key was given"}, nil
		}

		return []string{"the payload is not signed"}, nil
	}

	if !p.signed {
		return nil, &osimage.Error{
			Kind: osimage.ErrInvalid, Subject: p.Name, Detail: "the payload is not signed",
			Fix: "give flatcar_production_update.gz, or leave the key out",
		}
	}

	signatures, err := p.signatures()
	if err != nil {
		return nil, err
	}

	sum := sha256.New()
	//nolint:gosec // signatures has checked it.
	signed := io.NewSectionReader(p, 0, p.blobs+int64(p.signaturesOffset))

	if _, err := io.CopyBuffer(sum, p.counted(ctx, signed), make([]byte, pieceSize)); err != nil {
		return nil, fmt.Errorf("reading %s: %w", p.Name, err)
	}

	var problems []error

	for index, signature := range signatures {
		for _, key := range options.Keys {
			err := rsa.VerifyPKCS1v15(key, crypto.SHA256, sum.Sum(nil), signature)
			if err == nil {
				return []string{fmt.Sprintf("the payload is signed with a given key of %d bits", key.N.BitLen())}, nil
			}

			problems = append(problems, fmt.Errorf("signature %d of %d: %w", index+1, len(signatures), err))
		}
	}

	return nil, &osimage.Error{
		Kind: osimage.ErrWrongDigest, Subject: p.Name, Detail: "none of the keys has signed the payload", Err: errors.Join(problems...),
		Fix: "download it again, or give the key of its publisher",
	}
}

// signatures reads them. They must be the payload's end: what lies behind them is not signed.
func (p *payload) signatures() ([][]byte, error) {
	at, length, rest := p.signaturesOffset, p.signaturesLen, uint64(p.Size-p.blobs) //nolint:gosec // Never negative.

	if length == 0 || length > maxSignatures || at > rest || rest-at != length {
		return nil, p.refuse(headerSize, fmt.Sprintf("the signatures are %d bytes at %d, want the last of %d, at most %d",
			length, at, rest, maxSignatures))
	}

	start := p.blobs + int64(at) //nolint:gosec // Checked above.
	message := make([]byte, length)

	if count, err := p.ReadAt(message, start); count < len(message) {
		return nil, fmt.Errorf("reading the signatures of %s: %w", p.Name, err)
	}

	signatures, err := parseSignatures(message, start)
	if err != nil {
		return nil, refuse(p.Name, "the payload's signatures, "+err.Error(), redownload)
	}

	if len(signatures) == 0 || len(signatures) > maxSigners {
		return nil, p.refuse(start, fmt.Sprintf("there are %d signatures, want 1 to %d", len(signatures), maxSigners))
	}

	return signatures, nil
}
