package install

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// userPrefix and group are what the cluster's roles and admission policy know agents by.
	userPrefix = "stayput:agent:"
	group      = "stayput:agents"

	identityFix = "make it anew, as docs/quickstart.md says under \"The agent's certificate\""
)

var errNoPEM = errors.New("it is not PEM")

// identityFinding looks at the agent's kubeconfig as the agent will.
func identityFinding(path, node string, now time.Time) Finding {
	finding := Finding{Subject: "identity", Found: path, Fix: identityFix}

	if _, err := clientcmd.LoadFromFile(path); err != nil && !errors.As(err, new(*fs.PathError)) {
		// The parser's error may quote the file, which holds secrets.
		finding.Found = path + " is not a kubeconfig"

		return finding
	}

	settings, err := clientcmd.BuildConfigFromFlags("", path)
	if err == nil {
		err = rest.LoadTLSFiles(settings)
	}

	if err != nil {
		finding.Found = fmt.Sprintf("%s cannot be used: %v", path, err)

		return finding
	}

	if len(settings.CertData) == 0 {
		return Finding{Subject: "identity", OK: true, Found: path + ", without a client certificate"}
	}

	certificate, err := parseCertificate(settings.CertData)
	if err != nil {
		finding.Found = fmt.Sprintf("the client certificate of %s cannot be used: %v", path, err)

		return finding
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

func parseCertificate(text []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errNoPEM
	}

	return x509.ParseCertificate(block.Bytes)
}
