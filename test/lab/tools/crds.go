package tools

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// CRDs is the folder with the custom resources of a project whose Go module ships none: those that hack/crds.sh knows.
// They are generated into the cache the first time. root is the repository's.
func CRDs(ctx context.Context, root, project string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(root, "hack", "crds.sh"), project)

	var problem strings.Builder

	cmd.Stderr = &problem

	output, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("generating the custom resources of %s: %w: %s", project, err, problem.String())
	}

	return strings.TrimSpace(string(output)), nil
}
