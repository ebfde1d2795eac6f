package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

const (
	// applyManager is the field manager of what the lab installs, so that it is told apart from what is tested.
	applyManager = "stayput-lab"

	establishedWait = 30 * time.Second
)

// ErrKubectl means that kubectl ended with an error.
var ErrKubectl = errors.New("kubectl failed")

// Kubectl runs kubectl as the administrator, with input on its standard input, and returns what it printed.
func (c *Cluster) Kubectl(ctx context.Context, input []byte, args ...string) (string, error) {
	args = append([]string{"--kubeconfig=" + c.KubeconfigFile()}, args...)
	cmd := exec.CommandContext(ctx, c.Program("kubectl"), args...) //nolint:gosec // the lab's own program
	cmd.Stdin = bytes.NewReader(input)

	var stdout, stderr bytes.Buffer

	cmd.Stdout, cmd.Stderr = &stdout, &stderr

	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%w: kubectl %s: %w: %s",
			ErrKubectl, strings.Join(args[1:], " "), err, strings.TrimSpace(stderr.String()))
	}

	return stdout.String(), nil
}

// Apply applies manifests (YAML documents) and waits until the CustomResourceDefinitions among all that exist are
// established.
func (c *Cluster) Apply(ctx context.Context, manifests []byte) error {
	if _, err := c.Kubectl(ctx, manifests, applyArgs("-f", "-")...); err != nil {
		return err
	}

	return c.waitEstablished(ctx)
}

// ApplyKustomization applies a kustomization directory, such as config/default, as `kubectl apply -k` does.
func (c *Cluster) ApplyKustomization(ctx context.Context, dir string) error {
	if _, err := c.Kubectl(ctx, nil, applyArgs("-k", dir)...); err != nil {
		return err
	}

	return c.waitEstablished(ctx)
}

func applyArgs(args ...string) []string {
	return append([]string{"apply", "--server-side", "--force-conflicts", "--field-manager=" + applyManager}, args...)
}

func (c *Cluster) waitEstablished(ctx context.Context) error {
	_, err := c.Kubectl(ctx, nil, "wait", "--for=condition=Established", "--timeout="+establishedWait.String(),
		"customresourcedefinitions", "--all")
	if err != nil && strings.Contains(err.Error(), "no matching resources found") {
		return nil
	}

	return err
}
