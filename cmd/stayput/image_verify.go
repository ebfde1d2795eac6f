package main

import (
	"errors"
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/trust"
)

// verifyFlags say whose signatures count.
type verifyFlags struct {
	files []string
	dir   string
}

// verification is what `stayput image verify` prints.
type verification struct {
	Reference string     `json:"reference"`
	Verified  bool       `json:"verified"`
	Results   []verified `json:"results"`
}

// verified is the result for the artifact itself, or for one image of an index.
type verified struct {
	Digest string `json:"digest"`
	// Platform is that of an image of an index, "linux/amd64".
	Platform string     `json:"platform,omitempty"`
	Verified bool       `json:"verified"`
	Form     trust.Form `json:"form,omitempty"`
	Key      *trust.Key `json:"key,omitempty"`
	Reason   string     `json:"reason,omitempty"`
}

func newImageVerifyCommand() *cobra.Command {
	var (
		registry registryFlags
		flags    verifyFlags
		output   outputFormat
	)

	command := &cobra.Command{
		Use:   "verify IMAGE (--key FILE | --key-dir DIR)",
		Short: "Verify that an image is signed by a trusted key",
		Long: `Verify that an image is signed by a trusted key.

Signatures of cosign and of "stayput image sign" are found, in both forms. One good signature by any of the keys suffices.
Where IMAGE means an index, either the index is signed, or each image in it; with --arch, the images for others do not
count. Nothing but the registry or the folder is asked: it works without an internet connection.

It fails, with exit code 1, when the image is not signed as it should be. The message says what was found instead.`,
		Example: `  stayput image verify registry.example/os/node:1.1.0 --key cosign.pub
  stayput image verify ./image --key-dir /etc/stayput/keys -o json`,
		Args: takes(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			policy, err := flags.policy()
			if err != nil {
				return err
			}

			target, err := registry.signable(cmd, args[0])
			if err != nil {
				return err
			}

			result, refusal := verifyAll(cmd, registry.architecture, policy, target)
			if refusal != nil && !errors.Is(refusal, osimage.ErrUntrusted) {
				return refusal // It is not known whether it is signed.
			}

			return errors.Join(printAs(cmd.OutOrStdout(), output, result, result.describe), refusal)
		},
	}
	registry.add(command.Flags())
	registry.addArchitecture(command.Flags())
	addOutputFlag(command.Flags(), &output)
	command.Flags().StringArrayVar(&flags.files, "key", nil, "`FILE` with public keys (PEM); may be given more than once")
	command.Flags().StringVar(&flags.dir, "key-dir", "", "`DIR` whose files *.pub and *.pem have public keys")
	command.MarkFlagsOneRequired("key", "key-dir")

	return command
}

func (f *verifyFlags) policy() (trust.Policy, error) {
	var keys []trust.Key

	for _, file := range f.files {
		more, err := trust.LoadKeys(file)
		if err != nil {
			return trust.Policy{}, err
		}

		keys = append(keys, more...)
	}

	if f.dir != "" {
		more, err := trust.LoadKeyFolder(f.dir)
		if err != nil {
			return trust.Policy{}, err
		}

		keys = append(keys, more...)
	}

	return trust.NewPolicy(trust.ModeRequire, keys)
}

// verifyAll returns the reason why an artifact is not signed as it should be, besides the result.
func verifyAll(
	cmd *cobra.Command, architecture string, policy trust.Policy, target osimage.Signable,
) (verification, error) {
	all := verification{Reference: target.Reference}

	itself, refusal := verifyOne(cmd, policy, target, target.Artifact)
	all.Verified = itself.Verified
	all.Results = append(all.Results, itself)

	if itself.Verified || refusal != nil && !errors.Is(refusal, osimage.ErrUntrusted) {
		return all, refusal
	}

	wanted := 0

	for _, image := range target.Images {
		if architecture != "" && (image.Platform == nil || image.Platform.Architecture != architecture) {
			continue
		}

		result, err := verifyOne(cmd, policy, target, image)
		all.Results = append(all.Results, result)

		if err != nil {
			return all, err
		}

		wanted++
	}

	if wanted == 0 {
		return all, refusal
	}

	all.Verified = true

	return all, nil
}

func verifyOne(
	cmd *cobra.Command, policy trust.Policy, target osimage.Signable, artifact v1.Descriptor,
) (verified, error) {
	result := verified{Digest: artifact.Digest.String()}
	if artifact.Platform != nil {
		result.Platform = artifact.Platform.String()
	}

	found, err := target.Verify(cmd.Context(), policy, result.Digest)
	result.Verified, result.Form, result.Key = found.Verified, found.Form, found.Key

	if refused, ok := errors.AsType[*trust.Error](err); ok {
		result.Reason = refused.Brief()
	}

	return result, err
}

// describe writes tab-separated columns; the table's Flush reports errors.
func (v verification) describe(out io.Writer) {
	fmt.Fprintf(out, "Reference:\t%s\nVerified:\t%s\n\nDIGEST\tPLATFORM\tVERIFIED\tFORM\tKEY\n", v.Reference, yesOrNo(v.Verified))

	for _, result := range v.Results {
		key := ""
		if result.Key != nil {
			key = result.Key.String()
		}

		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\n", result.Digest, result.Platform, yesOrNo(result.Verified), result.Form, key)
	}
}

func yesOrNo(yes bool) string {
	if yes {
		return "yes"
	}

	return "no"
}
