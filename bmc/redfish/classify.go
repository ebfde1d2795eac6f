package redfish

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
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
		Kind: kind, Op: m.line(op, 0), BMC: m.options.Address.HostPort(), Detail: m.line(detail, 0),
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
		if hint := m.wrongScheme(answered.Error()); hint != "" {
			return m.fail(bmc.Unsupported, op, hint)
		}

		return m.fail(kindOfAnswer(answered, action), op, m.answerText(answered))
	}
	kind, detail := bmc.Transient, err.Error()
	switch hint := m.wrongScheme(detail); {
	case hint != "":
		kind, detail = bmc.Unsupported, "nothing was sent: "+hint
	case errors.Is(err, errToHTTPS):
		kind = bmc.Unsupported
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
		Kind: kind, Op: m.line(op, 0), BMC: m.options.Address.HostPort(), Detail: m.line(detail, 0), Err: fixedCause(err),
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

func (m *machine) answerText(answer *common.Error) string {
	said := answer.Message
	for _, info := range answer.ExtendedInfos {
		if info.Message != "" {
			said = info.Message

			break
		}
	}
	said = m.line(said, maxDetail)
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

// wrongScheme is what to use instead, when an error says that HTTP was spoken to HTTPS, or the other way round; "" for others.
// The texts are those of net/http, of its server, and of nginx.
func (m *machine) wrongScheme(text string) string {
	https := m.options.Address.Scheme == "https"
	says := func(texts ...string) bool {
		return slices.ContainsFunc(texts, func(each string) bool { return strings.Contains(text, each) })
	}
	switch {
	case https && says("server gave HTTP response to HTTPS client"):
		return "the BMC speaks HTTP at this port, and the address is one of HTTPS; use redfish+http:// in the address, or its port of HTTPS"
	case !https && says("malformed HTTP response", "HTTP request to an HTTPS server", "plain HTTP request was sent to HTTPS port"):
		return "the BMC speaks HTTPS at this port, and the address is one of HTTP; use redfish:// in the address"
	default:
		return ""
	}
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

// redact takes the credentials and the session's token out of a text.
func (m *machine) redact(text string) string { return m.secrets().Redact(text) }

// line makes a line of a text of the BMC that can be shown; limit bounds it, in bytes, 0 for none.
func (m *machine) line(text string, limit int) string { return m.secrets().Line(text, limit) }

func (m *machine) secrets() bmc.Redactor {
	if m.redactor == nil || m.redactedToken != m.transport.token {
		made := bmc.NewRedactor(m.options.Credentials, m.transport.token)
		m.redactor, m.redactedToken = &made, m.transport.token
	}

	return *m.redactor
}
