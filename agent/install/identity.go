package install

import (
	"crypto/tls"
	"fmt"
	"slices"
	"time"

	"github.com/stayput-dev/stayput/agent/kubeconfig"
)

const (
	// userPrefix and group are what the cluster's roles and admission policy know agents by.
	userPrefix = "stayput:agent:"
	group      = "stayput:agents"

	identityFix = "make it anew, as docs/quickstart.md says under \"The agent's certificate\""
)

// identityFinding looks at the agent's kubeconfig as the agent will.
func identityFinding(path, node string, now time.Time) Finding {
	finding := Finding{Subject: "identity", Found: path, Fix: identityFix}

	settings, err := kubeconfig.Load(path)
	if err != nil {
		finding.Found = fmt.Sprintf("cannot be used: %v", err)

		return finding
	}

	certificate, err := kubeconfig.Certificate(settings)
	if err != nil {
		finding.Found = fmt.Sprintf("%s: %v", path, err)

		return finding
	}

	if certificate == nil {
		return Finding{Subject: "identity", OK: true, Found: path + ", without a client certificate"}
	}

	if _, err := tls.X509KeyPair(settings.CertData, settings.KeyData); err != nil {
		finding.Found = fmt.Sprintf("the client key of %s cannot be used: %v", path, err)

		return finding
	}

	until := certificate.NotAfter.UTC().Format(time.RFC3339)

	switch subject := certificate.Subject; {
	case subject.CommonName != userPrefix+node || !slices.Contains(subject.Organization, group):
		finding.Found = fmt.Sprintf("the client certificate of %s is for %q, want CN=%s%s and O=%s", path, subject, userPrefix, node, group)
	case now.Before(certificate.NotBefore):
		finding.Found = fmt.Sprintf("the client certificate of %s is not good before %s, and here it is %s",
			path, certificate.NotBefore.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
		finding.Fix = "set the clock; if it is right, " + identityFix
	case !now.Before(certificate.NotAfter):
		finding.Found = fmt.Sprintf("the client certificate of %s was good until %s", path, until)
	default:
		return Finding{Subject: "identity", OK: true, Found: fmt.Sprintf("%s, good until %s", path, until)}
	}

	return finding
}
