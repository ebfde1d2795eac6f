package redfish

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/stmcginnis/gofish/common"

	"github.com/stayput-dev/stayput/bmc"
)

// maxDetail bounds what is quoted of a BMC's answer.
const maxDetail = 300

// fail is an error that needs no cause.
func (m *machine) fail(kind bmc.Kind, op, detail string) error {
	return &bmc.Error{
		Kind: kind, Op: m.redact(op), BMC: m.options.Address.HostPort(), Detail: m.redact(detail),
		RetryAfter: m.transport.current.retryAfter,
	}
}

// classify turns an error of gofish into ours, and leaves ours as it is. action tells whether the request was one that
// makes the machine do something.
func (m *machine) classify(op string, action bool, err error) error {
	if ours, ok := errors.AsType[*bmc.Error](err); ok {
		return ours
	}
	var answered *common.Error
	if errors.As(err, &answered) && answered.HTTPReturnedStatusCode != 0 {
		// The cause is left out: its text is the BMC's whole answer, which may echo what was sent.
		return m.fail(kindOfAnswer(answered, action), op, answerText(answered))
	}
	kind, detail := bmc.Transient, err.Error()
	switch {
	case isUntrusted(err):
		kind = bmc.Untrusted
		detail = untrustedText(err) + "; give the BMC a certificate that can be verified, or set spec.bmc.disableCertificateVerification"
	case isOldTLS(err):
		kind = bmc.Unsupported
		detail += "; update the BMC's firmware, or allow old TLS ciphers for this host"
	case action && m.transport.current.mayBeSent.Load():
		kind = bmc.Unknown
		detail = "the answer was lost, the BMC may have acted: " + detail
	}

	return &bmc.Error{
		Kind: kind, Op: m.redact(op), BMC: m.options.Address.HostPort(), Detail: m.redact(detail), Err: fixedCause(err),
	}
}

// untrustedText is what is wrong with a certificate. The time at which it was looked at is left out: it would make each look
// another error.
func untrustedText(err error) string {
	invalid, ok := errors.AsType[x509.CertificateInvalidError](err)
	if !ok || invalid.Reason != x509.Expired || invalid.Cert == nil {
		return err.Error()
	}

	return fmt.Sprintf("the BMC's certificate is valid from %s to %s only",
		invalid.Cert.NotBefore.UTC().Format(time.RFC3339), invalid.Cert.NotAfter.UTC().Format(time.RFC3339))
}

// fixedCause is the cause that callers test for, and whose text is fixed.
func fixedCause(err error) error {
	for _, cause := range []error{context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, cause) {
			return cause
		}
	}

	return nil
}

// detailOf is the detail of an error of ours.
func detailOf(err error) string {
	if ours, ok := errors.AsType[*bmc.Error](err); ok {
		return ours.Detail
	}

	return err.Error()
}

// kindOfAnswer reads an HTTP status other than success. A gateway's or the BMC's own 5xx after an action leaves open
// whether it acted, unless the message says that it was not ready.
func kindOfAnswer(answer *common.Error, action bool) bmc.Kind {
	switch status := answer.HTTPReturnedStatusCode; {
	case isNotReady(answer):
		return bmc.Busy
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return bmc.Auth
	case status == http.StatusNotFound:
		return bmc.NotFound
	case status == http.StatusMethodNotAllowed, status == http.StatusNotImplemented:
		return bmc.Unsupported
	case status == http.StatusServiceUnavailable, status == http.StatusTooManyRequests:
		return bmc.Busy
	case status == http.StatusBadRequest && isNotSupported(answer):
		return bmc.Unsupported
	case status == http.StatusConflict, status == http.StatusPreconditionFailed,
		status == http.StatusBadRequest && action:
		return bmc.Conflict
	case action && status >= http.StatusInternalServerError:
		return bmc.Unknown
	default:
		return bmc.Transient
	}
}

// isNotReady knows what BMCs say when they cannot act now: an iDRAC that cannot reach its data sources (SYS518), a
// machine in POST (iLO), and one without a free session.
func isNotReady(answer *common.Error) bool {
	return isSessionLimit(answer) || hasMessage(answer, "SYS518", "InvalidOperationForSystemState",
		"UnableToModifyDuringSystemPOST", "ResourceInUse", "ServiceInUnknownState", "ServiceTemporarilyUnavailable")
}

// isSessionLimit: RAC0218 is an iDRAC's, the others are of the standard registry.
func isSessionLimit(answer *common.Error) bool {
	return hasMessage(answer, "RAC0218", "SessionLimitExceeded", "CreateLimitReachedForResource")
}

func isNotSupported(answer *common.Error) bool {
	return hasMessage(answer, "ActionNotSupported", "ActionParameterNotSupported", "ActionParameterValueNotInList",
		"PropertyNotWritable", "PropertyUnknown", "PropertyValueNotInList")
}

func hasMessage(answer *common.Error, ids ...string) bool {
	texts := make([]string, 1, 1+len(answer.ExtendedInfos))
	texts[0] = answer.Code
	for _, info := range answer.ExtendedInfos {
		texts = append(texts, info.MessageID)
	}
	for _, text := range texts {
		for _, id := range ids {
			if strings.HasSuffix(text, id) {
				return true
			}
		}
	}

	return false
}

func answerText(answer *common.Error) string {
	said := answer.Message
	for _, info := range answer.ExtendedInfos {
		if info.Message != "" {
			said = info.Message

			break
		}
	}
	said = oneLine(said)
	status := answer.HTTPReturnedStatusCode
	text := fmt.Sprintf("the BMC answers %d %s", status, http.StatusText(status))
	if said != "" {
		text += ": " + said
	}
	switch {
	case isSessionLimit(answer):
		text += "; close sessions at the BMC, or wait until idle ones end"
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		text += "; correct the Secret that spec.bmc.credentialsName names"
	}

	return text
}

// oneLine bounds a text of a BMC.
func oneLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxDetail {
		text = strings.ToValidUTF8(text[:maxDetail], "") + "…"
	}

	return text
}

// isOldTLS knows the alerts of a BMC with which there is no common cipher or version of TLS. crypto/tls exports no type
// for an alert of the other side, only its text.
func isOldTLS(err error) bool {
	remote, ok := errors.AsType[*net.OpError](err)
	if !ok || remote.Op != "remote error" {
		return false
	}
	text := remote.Err.Error()

	return strings.HasSuffix(text, "handshake failure") || strings.HasSuffix(text, "protocol version not supported")
}

func isUntrusted(err error) bool {
	var (
		verification *tls.CertificateVerificationError
		unknown      x509.UnknownAuthorityError
		hostname     x509.HostnameError
		invalid      x509.CertificateInvalidError
	)

	return errors.As(err, &verification) || errors.As(err, &unknown) ||
		errors.As(err, &hostname) || errors.As(err, &invalid)
}

func (m *machine) redact(text string) string {
	return m.options.Credentials.Redact(text, m.transport.token)
}
