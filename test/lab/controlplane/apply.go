package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	cmd := exec.CommandContext(ctx, c.Program("kubectl"), args...)
	cmd.Stdin = bytes.NewReader(input)

	var stdout, stderr bytes.Buffer

	cmd.Stdout, cmd.Stderr = &stdout, &stderr

	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%w: kubectl %s: %w: %s",
			ErrKubectl, strings.Join(args[1:], " "), err, strings.TrimSpace(stderr.String()))
	}

	return stdout.String(), nil
}

// Apply applies manifests (YAML documents). It does not wait; see WaitEstablished.
func (c *Cluster) Apply(ctx context.Context, manifests []byte) error {
	_, err := c.Kubectl(ctx, manifests, applyArgs("-f", "-")...)

	return err
}

// ApplyFolder applies a folder, such as config/rbac: as a kustomization when it is one, else each manifest in it. It
// does not wait; see WaitEstablished.
func (c *Cluster) ApplyFolder(ctx context.Context, dir string) error {
	flag := "-f"
	if _, err := os.Stat(filepath.Join(dir, "kustomization.yaml")); err == nil {
		flag = "-k"
	}

	_, err := c.Kubectl(ctx, nil, applyArgs(flag, dir)...)

	return err
}

func applyArgs(args ...string) []string {
	return append([]string{"apply", "--server-side", "--force-conflicts", "--field-manager=" + applyManager}, args...)
}

// WaitEstablished returns when every CustomResourceDefinition of the cluster is served.
func (c *Cluster) WaitEstablished(ctx context.Context) error {
	_, err := c.Kubectl(ctx, nil, "wait", "--for=condition=Established", "--timeout="+establishedWait.String(),
		"customresourcedefinitions", "--all")
	if err != nil && strings.Contains(err.Error(), "no matching resources found") {
		return nil
	}

	return err
}
