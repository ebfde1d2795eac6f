package hosts

import (
	"fmt"
	"strconv"
	"time"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"

	"github.com/stayput-dev/stayput/bmc"
)

// Annotations with which an operator says of a BareMetalHost how its BMC is to be talked to, where the host's spec has no
// field for it. Stayput reads them and never writes them.
const (
	// AnnotationLegacyTLS, "true" or "false": bmc.Options.LegacyTLS.
	AnnotationLegacyTLS = "stayput.dev/bmc-legacy-tls"
	// AnnotationCipherSuite, a number from 1 to 17: bmc.Options.CipherSuite.
	AnnotationCipherSuite = "stayput.dev/ipmi-cipher-suite"
	// AnnotationPause, a duration of at most 10 s: bmc.Options.Pause.
	AnnotationPause = "stayput.dev/ipmi-pause"
)

const (
	// maxCipherSuite is the last one of table 22-20 of IPMI 2.0, errata 7.
	maxCipherSuite = 17
	// maxPause leaves time for what one look at a machine takes (some 6 requests) before what was decided is too old.
	maxPause = 10 * time.Second
)

// BMC is how a host's BMC is reached: its address, and what is said of trust. The credentials are in a Secret. Its errors
// are of kind Unsupported; they name the field and the fix.
func BMC(host *metal3.BareMetalHost) (bmc.Options, error) {
	address, err := bmc.ParseAddress(host.Spec.BMC.Address)
	if err != nil {
		return bmc.Options{}, err
	}
	options := bmc.Options{Address: address, SkipVerify: host.Spec.BMC.DisableCertificateVerification}
	if text, ok := host.Annotations[AnnotationLegacyTLS]; ok {
		if options.LegacyTLS, err = strconv.ParseBool(text); err != nil {
			return bmc.Options{}, annotationError(host, AnnotationLegacyTLS, `"true" or "false"`)
		}
	}
	if text, ok := host.Annotations[AnnotationCipherSuite]; ok {
		if options.CipherSuite, err = strconv.Atoi(text); err != nil || options.CipherSuite < 1 || options.CipherSuite > maxCipherSuite {
			return bmc.Options{}, annotationError(host, AnnotationCipherSuite, "a number from 1 to 17, such as 3 or 17")
		}
	}
	if text, ok := host.Annotations[AnnotationPause]; ok {
		if options.Pause, err = time.ParseDuration(text); err != nil || options.Pause < 0 || options.Pause > maxPause {
			return bmc.Options{}, annotationError(host, AnnotationPause, "a duration from 0s to 10s, such as 5s")
		}
	}

	return options, nil
}

func annotationError(host *metal3.BareMetalHost, name, want string) error {
	return &bmc.Error{Kind: bmc.Unsupported, Op: "reading how the BMC is talked to", Detail: fmt.Sprintf(
		"annotation %s of BareMetalHost %s/%s is %q; give it %s, or remove it", name, host.Namespace, host.Name, host.Annotations[name], want)}
}
