package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/gardenlinux"
)

const (
	outputText = "text"
	outputJSON = "json"
	// layoutPrefix marks an OCI layout folder, as in other tools.
	layoutPrefix = "oci:"
)

func newImageCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "image",
		Short: "Build, push, inspect, pull and write OS images",
		Long: `Build, push, inspect, pull and write OS images.

An OS image is an OCI artifact with the parts that one slot of a machine needs: a root or /usr file system, its
dm-verity hash tree, and a UKI. Where a command takes an IMAGE, that is one of

  registry.example/os/node:1.1.0          a tag in a registry
  registry.example/os/node@sha256:…       exactly one image in a registry
  oci:FOLDER or oci:FOLDER:TAG            an OCI layout folder; "oci:" may be left out when the folder exists
  oci:FOLDER@sha256:…                     exactly one image in a folder, as the commands print it`,
	}

	return group(command, newImageBuildCommand(), newImageImportCommand(), newImagePushCommand(), newImageInspectCommand(),
		newImageDiffCommand(), newImagePullCommand(), newImageCopyCommand(), newImageWriteCommand(), newImageDiskCommand(),
		newImagePublishCommand(), newImageSignCommand(), newImageVerifyCommand())
}

// registryFlags say how to speak to a registry.
type registryFlags struct {
	transferFlags

	dockerConfig, caFile, architecture, cname string
	plainHTTP                                 bool
}

func (f *registryFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.dockerConfig, "docker-config", "",
		"docker config `FILE` with the registry's credentials (default: where docker and podman keep theirs)")
	flags.StringVar(&f.caFile, "ca-file", "", "PEM `FILE` with certificate authorities to trust besides the system's")
	flags.BoolVar(&f.plainHTTP, "plain-http", false, "allow a registry without TLS")
	f.addTransfer(flags)
}

func (f *registryFlags) addArchitecture(flags *pflag.FlagSet) {
	flags.StringVar(&f.architecture, "arch", "",
		"refuse images that are not for this `GOARCH`, and choose by it when a tag has several")
	f.addCname(flags)
}

// addCname is for Garden Linux's own artifacts, which are read as they are.
func (f *registryFlags) addCname(flags *pflag.FlagSet) {
	flags.StringVar(&f.cname, "cname", "",
		"the `FLAVOUR` to choose from the index of a Garden Linux version, such as baremetal-gardener_prod_usi")
}

func (f *registryFlags) client(cmd *cobra.Command, more ...osimage.Option) (*osimage.Client, error) {
	options, err := f.transferOptions(cmd)
	if err != nil {
		return nil, err
	}

	options = append(options,
		osimage.WithCAFile(f.caFile), osimage.WithPlainHTTP(f.plainHTTP), osimage.WithArchitecture(f.architecture),
		osimage.WithForeign(gardenlinux.OCI{Cname: f.cname}))

	if f.dockerConfig == "" {
		options = append(options, osimage.WithKeychain(authn.DefaultKeychain))
	} else {
		options = append(options, osimage.WithDockerConfig(f.dockerConfig))
	}

	client, err := osimage.NewClient(append(options, more...)...)
	if err != nil {
		return nil, fmt.Errorf("setting up the registry client: %w", err)
	}

	return client, nil
}

// withoutFix is an error for somebody who need not do anything yet.
func withoutFix(err error) error {
	if typed, ok := errors.AsType[*osimage.Error](err); ok {
		brief := *typed
		brief.Fix = ""

		return &brief
	}

	return err
}

// open finds an image in a folder or a registry.
func (f *registryFlags) open(cmd *cobra.Command, image string) (*osimage.Image, error) {
	dir, tag, isLayout := layoutOf(image)
	if !isLayout {
		client, err := f.client(cmd)
		if err != nil {
			return nil, err
		}

		return client.Image(cmd.Context(), image)
	}

	if f.architecture != "" && !slices.Contains(osimage.Architectures(), f.architecture) {
		return nil, mistake(fmt.Sprintf("--arch %q", f.architecture), "it is unknown",
			"use one of "+strings.Join(osimage.Architectures(), ", "))
	}

	return osimage.OpenLayoutFor(cmd.Context(), dir, tag, f.architecture)
}

// layoutOf tells whether an image is in a folder, and in which, under which tag or digest.
func layoutOf(image string) (dir, tag string, isLayout bool) {
	path, explicit := strings.CutPrefix(image, layoutPrefix)

	if isLayoutDir(path) {
		return path, "", true
	}

	if at := strings.LastIndex(path, ":"); at > 0 && isLayoutDir(path[:at]) {
		return path[:at], path[at+1:], true
	}

	if at := strings.LastIndex(path, "@sha256:"); at > 0 && (explicit || isLayoutDir(path[:at]) || isPath(path[:at])) {
		return path[:at], path[at+1:], true
	}

	// What is there is meant even when it turns out to be no image.
	_, err := os.Stat(path)

	return path, "", explicit || err == nil || isPath(path)
}

// isPath tells what no reference to a registry begins like.
func isPath(text string) bool { return filepath.IsAbs(text) || strings.HasPrefix(text, ".") }

func isLayoutDir(path string) bool {
	_, err := os.Stat(filepath.Join(path, "index.json"))

	return err == nil
}

func addOutputFlag(flags *pflag.FlagSet, output *outputFormat) {
	*output = outputText
	flags.VarP(output, "output", "o", "output `FORMAT`: text or json")
}

// mistake is an error in how a command was called.
func mistake(subject, detail, fix string) error {
	return &osimage.Error{Kind: osimage.ErrInvalid, Subject: subject, Detail: detail, Fix: fix}
}

// printAs writes a value as JSON or as text.
func printAs(out io.Writer, output outputFormat, value any, text func(out io.Writer)) error {
	if output == outputJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")

		if err := encoder.Encode(value); err != nil {
			return fmt.Errorf("writing the output: %w", err)
		}

		return nil
	}

	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	text(table)

	if err := table.Flush(); err != nil {
		return fmt.Errorf("writing the output: %w", err)
	}

	return nil
}
