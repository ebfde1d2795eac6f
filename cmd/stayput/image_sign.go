package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/trust"
	"github.com/stayput-dev/stayput/osimage/trust/sign"
)

const (
	// passwordVariable is cosign's.
	passwordVariable = "COSIGN_PASSWORD"
	maxPassword      = 4 << 10
)

var (
	errNoPassword = errors.New("there is no terminal to ask for the password: set " + passwordVariable + " or give --password-file")
	errLostRace   = errors.New("the signature is not there any more: somebody else signed at the same moment; sign again")
)

// signFlags say how to sign.
type signFlags struct {
	key, passwordFile, identity string
	bundle                      bool
}

func newImageSignCommand() *cobra.Command {
	var (
		registry registryFlags
		flags    signFlags
	)

	command := &cobra.Command{
		Use:   "sign IMAGE --key FILE",
		Short: "Sign an image with a private key, as cosign does",
		Long: `Sign an image with a private key, as cosign does.

The key is a PEM file: cosign.key of "cosign generate-key-pair", or an ECDSA, RSA or Ed25519 key of "openssl genpkey".
The password of an encrypted key comes from --password-file, from the variable COSIGN_PASSWORD, or is asked for.

The signature goes to the tag sha256-….sig beside the image, which all versions of cosign verify, or with --bundle into a
sigstore bundle that refers to the image, which cosign has made since v3. Signatures of others stay. Where IMAGE means an
index, the index and each image in it are signed, so that an image can be named by its own digest, too. Any other OCI artifact
can be signed, too. Nothing is sent to a transparency log.`,
		Example: `  stayput image sign registry.example/os/node:1.1.0 --key cosign.key
  stayput image sign ./image --key release.pem --identity registry.example/os/node`,
		Args: takes(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			signer, err := sign.LoadKey(flags.key, passwordOf(cmd, flags.passwordFile))
			if err != nil {
				return err
			}

			target, err := registry.signable(cmd, args[0])
			if err != nil {
				return err
			}

			return flags.sign(cmd, signer, target)
		},
	}
	registry.add(command.Flags())
	command.Flags().StringVar(&flags.key, "key", "", "private key `FILE` (PEM)")
	command.Flags().StringVar(&flags.passwordFile, "password-file", "", "`FILE` with the key's password")
	command.Flags().StringVar(&flags.identity, "identity", "",
		"`NAME` that the signature claims for the image (default: its repository, or its title when it is in a folder)")
	command.Flags().BoolVar(&flags.bundle, "bundle", false, "write a sigstore bundle that refers to the image, not the tag sha256-….sig")

	if err := command.MarkFlagRequired("key"); err != nil {
		panic(err) // the flag is above
	}

	return command
}

// signable finds what is to be signed or verified, in a folder or a registry.
func (f *registryFlags) signable(cmd *cobra.Command, image string) (osimage.Signable, error) {
	if dir, tag, isLayout := layoutOf(image); isLayout {
		return osimage.LayoutSignable(cmd.Context(), dir, tag)
	}

	client, err := f.client(cmd)
	if err != nil {
		return osimage.Signable{}, err
	}

	return client.Signable(cmd.Context(), image)
}

// passwordOf says where the password is; a command line is no place for it, since everybody sees those.
func passwordOf(cmd *cobra.Command, file string) sign.Password {
	return func() ([]byte, error) {
		if file != "" {
			return readPassword(file)
		}

		if text, ok := os.LookupEnv(passwordVariable); ok {
			return []byte(text), nil
		}

		if !term.IsTerminal(int(os.Stdin.Fd())) {
			return nil, errNoPassword
		}

		if _, err := fmt.Fprint(cmd.ErrOrStderr(), "Password of the key: "); err != nil {
			return nil, fmt.Errorf("asking for the password: %w", err)
		}

		text, err := term.ReadPassword(int(os.Stdin.Fd()))

		fmt.Fprintln(cmd.ErrOrStderr())

		if err != nil {
			return nil, fmt.Errorf("asking for the password: %w", err)
		}

		return text, nil
	}
}

// readPassword reads the first line of a file: editors end it with a newline that is no part of the password.
func readPassword(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading the password: %w", err)
	}
	defer file.Close()

	data, err := io.ReadAll(io.LimitReader(file, maxPassword))
	if err != nil {
		return nil, fmt.Errorf("reading the password: %w", err)
	}

	line, _, _ := bytes.Cut(data, []byte("\n"))

	return bytes.TrimSuffix(line, []byte("\r")), nil
}

// sign signs the images of an index first: a signed index promises nothing about what is not there yet.
func (f *signFlags) sign(cmd *cobra.Command, signer *sign.Signer, target osimage.Signable) error {
	for _, artifact := range append(target.Images, target.Artifact) {
		done := "signed"

		added, err := f.signOne(cmd.Context(), signer, target, artifact)
		if err != nil {
			return fmt.Errorf("signing %s: %w", artifact.Digest, err)
		}

		if !added {
			done = "signed already"
		}

		if err := printLine(cmd, "%s\t%s\tby the %s", artifact.Digest, done, signer.Key()); err != nil {
			return err
		}
	}

	return printLine(cmd, "%s", target.Reference)
}

// signOne tells whether there was anything to do.
func (f *signFlags) signOne(
	ctx context.Context, signer *sign.Signer, target osimage.Signable, descriptor v1.Descriptor,
) (bool, error) {
	artifact := sign.Artifact{Name: target.Name, Descriptor: descriptor}
	if f.identity != "" {
		artifact.Name = f.identity
	}

	signIn, form := signer.Tag, trust.FormTag
	if f.bundle {
		signIn, form = signer.Bundle, trust.FormBundle
	}

	update, err := signIn(ctx, target.Signatures, artifact)
	if err != nil || update.IsEmpty() {
		return false, err
	}

	if err := target.Signatures.Add(ctx, update); err != nil {
		return false, fmt.Errorf("storing the signature: %w", err)
	}

	policy, err := trust.NewPolicy(trust.ModeRequire, []trust.Key{signer.Key()})
	if err != nil {
		return false, err
	}

	_, err = trust.VerifyForm(ctx, target.Signatures, policy, form, descriptor.Digest.String())
	if err != nil && !errors.Is(err, trust.ErrUnavailable) {
		return false, fmt.Errorf("%w (%w)", errLostRace, err)
	}

	return true, err
}
