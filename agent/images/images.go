// Package images opens the image of an attempt, as the agent's configuration says, once it has the signatures that it needs.
//
// Two may ask for signatures, and neither can take back what the other asks for: the NodeUpdate, with the policy and the
// keys of the HostPool, and the node itself, with its own folder of public keys. The folder always requires one of its
// keys, so that whoever may write to the cluster cannot have a node run what the folder's owner did not sign. The
// signatures are looked for on the digest that is then pulled, and nothing is written before they are there.
package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/stayput-dev/stayput/agent"
	"github.com/stayput-dev/stayput/agent/config"
	"github.com/stayput-dev/stayput/agent/journal"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/gardenlinux"
	"github.com/stayput-dev/stayput/osimage/trust"
)

// Images implements agent.Images. It makes a client for each image and reads the keys each time: credentials, mirrors and
// keys may have changed since the last one.
type Images struct {
	Settings config.Config
	// Log is told which key signed an image, and what is wrong and goes on all the same.
	Log logr.Logger
	// Count is told how many bytes were received from registries.
	Count func(bytes int64)
	// Root is put before the default folders, for tests; "" is the machine's own root.
	Root string
}

var _ agent.Images = (*Images)(nil)

// Image implements agent.Images.
func (i *Images) Image(
	ctx context.Context, reference string, verification *v1alpha1.NodeVerification,
) (agent.Image, error) {
	policies, err := i.policies(verification)
	if err != nil {
		return agent.Image{}, fmt.Errorf("reading the keys to verify image %s with: %w", reference, err)
	}

	var (
		image   *osimage.Image
		results []trust.Result
	)

	// The reference is a digest, so that each policy is asked about the same bytes.
	for _, policy := range policies {
		if image, err = i.open(ctx, reference, policy); err != nil {
			return agent.Image{}, err
		}

		results = append(results, image.Signature())
	}

	return agent.Image{Source: image, Signature: verdict(results)}, nil
}

// verdict sums up what was found with each policy, nil when none looked for anything.
func verdict(results []trust.Result) *journal.Signature {
	var messages []string

	verified := true

	for _, found := range results {
		switch {
		case found.Mode == trust.ModeOff:
			continue
		case found.Verified:
			messages = append(messages, fmt.Sprintf("signed by the key %s of %s (form %s)", found.Key.Fingerprint, found.Key.Source,
				found.Form))
		default:
			verified = false
			messages = append(messages, "staged all the same, since the HostPool's policy is Warn: "+found.Reason)
		}
	}

	if len(messages) == 0 {
		return nil
	}

	return &journal.Signature{Verified: verified, Message: strings.Join(messages, "; ")}
}

// policies are all that the image must fulfil, at least one; the node's own comes first.
func (i *Images) policies(verification *v1alpha1.NodeVerification) ([]trust.Policy, error) {
	var policies []trust.Policy

	own, err := i.ownKeys()
	if err != nil {
		return nil, err
	}

	if len(own) > 0 {
		policy, err := trust.NewPolicy(trust.ModeRequire, own)
		if err != nil {
			return nil, fmt.Errorf("taking the keys of this node: %w", err)
		}

		policies = append(policies, policy)
	}

	if verification != nil {
		policy, err := policyOf(verification)
		if err != nil {
			return nil, fmt.Errorf("taking the keys of the NodeUpdate: %w", err)
		}

		policies = append(policies, policy)
	}

	if len(policies) == 0 {
		policies = append(policies, trust.Policy{})
	}

	return policies, nil
}

// ownKeys are those of the node's folder. A folder that is named in the configuration must have some; the default one may
// be absent or empty.
func (i *Images) ownKeys() ([]trust.Key, error) {
	if i.Settings.Trust.KeyDir != "" {
		return trust.LoadKeyFolder(i.Settings.Trust.KeyDir)
	}

	dir := filepath.Join(i.Root, config.DefaultKeyDir)

	entries, err := os.ReadDir(dir)

	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, &trust.Error{Kind: trust.ErrKey, Subject: "key folder " + dir, Err: err, Fix: "make it readable, or remove it"}
	case !slices.ContainsFunc(entries, isKeyFile):
		return nil, nil
	default:
		return trust.LoadKeyFolder(dir)
	}
}

// isKeyFile tells whether trust.LoadKeyFolder takes the file for one of keys.
func isKeyFile(entry fs.DirEntry) bool {
	name := entry.Name()

	return !strings.HasPrefix(name, ".") && slices.Contains([]string{".pub", ".pem"}, filepath.Ext(name))
}

// policyOf is what the NodeUpdate asks for. A policy that is not known is one of a newer controller's: it is refused.
func policyOf(verification *v1alpha1.NodeVerification) (trust.Policy, error) {
	var keys []trust.Key

	for number, text := range verification.PublicKeys {
		more, err := trust.ParseKeys(fmt.Sprintf("spec.verification.publicKeys[%d]", number), []byte(text))
		if err != nil {
			return trust.Policy{}, err
		}

		keys = append(keys, more...)
	}

	return trust.NewPolicy(trust.Mode(strings.ToLower(string(verification.Policy))), keys)
}

// open opens the image when the policy allows it.
func (i *Images) open(ctx context.Context, reference string, policy trust.Policy) (*osimage.Image, error) {
	options, err := i.options(policy)
	if err != nil {
		return nil, err
	}

	client, err := osimage.NewClient(options...)
	if err != nil {
		return nil, fmt.Errorf("preparing to fetch image %s: %w", reference, err)
	}

	image, err := client.Image(ctx, reference)
	if err != nil {
		return nil, err
	}

	switch found := image.Signature(); {
	case found.Verified:
		i.Log.Info("the image is signed by a trusted key", "image", reference, "key", found.Key.Fingerprint,
			"of", found.Key.Source, "form", found.Form)
	case found.Mode == trust.ModeWarn:
		i.Log.Info("the image is NOT signed by a trusted key; going on, since the HostPool's policy is Warn",
			"image", reference, "found", found.Reason)
	}

	return image, nil
}

func (i *Images) options(policy trust.Policy) ([]osimage.Option, error) {
	settings := i.Settings.Registry

	rate, err := settings.BytesPerSecond()
	if err != nil {
		return nil, err
	}

	return []osimage.Option{
		osimage.WithByteCounter(i.Count), osimage.WithArchitecture(runtime.GOARCH), osimage.WithTrust(policy),
		osimage.WithDockerConfig(settings.DockerConfig), osimage.WithCAFile(settings.CAFile), osimage.WithPlainHTTP(settings.PlainHTTP),
		osimage.WithHostsDir(i.hostsDir()), osimage.WithProxy(settings.Proxy), osimage.WithRateLimit(rate),
		// By digest no flavour needs to be chosen.
		osimage.WithForeign(gardenlinux.OCI{}),
		osimage.WithHostsWarning(func(text string) { i.Log.Info("registry hosts", "warning", text) }),
		osimage.WithRetryNotice(func(cause error, pause time.Duration) {
			i.Log.Info("a transfer failed and is tried again", "pause", pause.String(), "error", cause.Error())
		}),
	}, nil
}

// hostsDir is the folder with the mirrors, "" for none.
func (i *Images) hostsDir() string {
	if dir := i.Settings.Registry.HostsDir; dir != "" {
		return dir
	}

	dir := filepath.Join(i.Root, config.DefaultHostsDir)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return ""
	}

	return dir
}
