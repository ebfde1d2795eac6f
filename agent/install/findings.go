package install

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stayput-dev/stayput/agent/config"
	"github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// Finding is one thing that was looked at on the node.
type Finding struct {
	// Subject is what it is about.
	Subject string `json:"subject"`
	// OK tells whether it is as it should be; Found says what was seen, and Fix the next action when it is not OK.
	OK    bool   `json:"ok"`
	Found string `json:"found"`
	Fix   string `json:"fix,omitempty"`
}

// Live is the running node, for Inspect; nil when files are put into an image.
type Live struct {
	Scheme slots.Scheme
	// Rungs looks at the in-OS rungs of the fallback ladder.
	Rungs func(ctx context.Context) []v1alpha1.RungStatus
}

// Inspect says what the node has and what it misses. It changes nothing. Without the running node only files are
// looked at.
func Inspect(ctx context.Context, root string, live *Live) []Finding {
	findings := fileFindings(root, live != nil)

	if live == nil {
		return append(findings, Finding{
			Subject: "machine", OK: true, Found: "not looked at: run `stayput node install` on the running node to see it",
		})
	}

	findings = append(findings, schemeFindings(ctx, live.Scheme)...)

	for _, rung := range live.Rungs(ctx) {
		finding := Finding{Subject: "fallback " + string(rung.Rung), OK: rung.State == v1alpha1.RungReady, Found: "ready"}
		if !finding.OK {
			finding.Found, finding.Fix = splitFix(rung.Message)
		}

		findings = append(findings, finding)
	}

	return findings
}

// splitFix takes the next action off a message of the form "what was found; what to do".
func splitFix(message string) (found, fix string) {
	found, fix, _ = strings.Cut(message, "; ")

	return found, fix
}

// fileFindings looks at the configuration and at what it names. What is in an image's files is for another machine.
func fileFindings(root string, isLive bool) []Finding {
	settings, err := config.Load(filepath.Join(root, config.DefaultPath))
	if err != nil {
		return []Finding{{
			Subject: "configuration", Found: err.Error(), Fix: "correct the file: the agent does not start with it",
		}}
	}

	findings := []Finding{
		fileFinding(root, "configuration", config.DefaultPath, true,
			"absent; the defaults hold, and the node's name is its host name",
			"write "+config.DefaultPath+" when the Node's name differs from the host name or the registry needs settings"),
	}

	identity := fileFinding(root, "identity", settings.Kubeconfig, false, "absent",
		"put a kubeconfig with a client certificate CN=stayput:agent:<node>, O=stayput:agents there")
	if identity.OK && isLive {
		identity = identityFinding(filepath.Join(root, settings.Kubeconfig), settings.NodeName, time.Now())
	}

	findings = append(findings, identity)

	for _, named := range []struct{ field, path string }{
		{"registry.dockerConfig", settings.Registry.DockerConfig}, {"registry.caFile", settings.Registry.CAFile},
	} {
		if named.path != "" {
			findings = append(findings, fileFinding(root, named.field, named.path, false, "absent",
				"put the file there, or take the field out of "+config.DefaultPath))
		}
	}

	return findings
}

func fileFinding(root, subject, path string, optional bool, absent, fix string) Finding {
	if _, err := os.Stat(filepath.Join(root, path)); err != nil {
		return Finding{Subject: subject, OK: optional, Found: path + ": " + absent, Fix: fix}
	}

	return Finding{Subject: subject, OK: true, Found: path}
}

func schemeFindings(ctx context.Context, scheme slots.Scheme) []Finding {
	state, err := scheme.Observe(ctx)
	if err != nil {
		finding := Finding{Subject: "slots", Found: fmt.Sprintf("scheme %s: %v", scheme.Name(), err)}
		if _, refused := slots.AsRefusal(err); refused {
			finding.Fix = "provision the machine from an image that `stayput image disk` has made, or whose disk has two slots"
		}

		return []Finding{finding}
	}

	findings := []Finding{{
		Subject: "slots", OK: true, Found: fmt.Sprintf("scheme %s: slot %s runs version %s, slot %s holds %s",
			scheme.Name(), state.Running.Name, state.Running.Version, state.Spare.Name, orNothing(state.Spare.Version)),
	}}

	for _, problem := range state.Problems {
		found, fix := splitFix(problem)
		findings = append(findings, Finding{Subject: "boot loader", Found: found, Fix: fix})
	}

	return findings
}

func orNothing(version string) string {
	if version == "" {
		return "nothing"
	}

	return "version " + version
}
