package redfish

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/stmcginnis/gofish/common"

	"github.com/stayput-dev/stayput/bmc"
)

// maxDetail bounds what is quoted of a BMC's answer.
const maxDetail = 300

// fail is an error that needs no cause.
func (m *machine) fail(kind bmc.Kind, op, detail string) error {
	return &bmc.Error{
		Kind: kind, Op: m.redact(op), BMC: m.options.Address.HostPort(), Detail: m.redact(detail),
		RetryAfter: m.retryAfter(),
	}
}

// classify turns an error of gofish into ours. action tells whether the request was one that makes the machine do
// something.
func (m *machine) classify(op string, action bool, err error) error {
	var answered *common.Error
	if errors.As(err, &answered) && answered.HTTPReturnedStatusCode != 0 {
		// The cause is left out: its text is the BMC's whole answer, which may echo what was sent.
		return m.fail(kindOfAnswer(answered, action), op, answerText(answered))
	}
	kind, detail := bmc.Transient, err.Error()
	switch {
	case isUntrusted(err):
		kind = bmc.Untrusted
		detail += "; give the BMC a certificate that can be verified, or set spec.bmc.disableCertificateVerification"
	case action && m.transport.current.mayBeSent.Load():
		kind = bmc.Unknown
		detail = "the answer was lost, the BMC may have acted: " + detail
	}
	failed := &bmc.Error{
		Kind: kind, Op: m.redact(op), BMC: m.options.Address.HostPort(), Detail: m.redact(detail),
	}
	// Only a cause that callers test for, and whose text is fixed.
	for _, cause := range []error{context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, cause) {
			failed.Err = cause
		}
	}

	return failed
}

// kindOfAnswer reads an HTTP status other than success. A gateway's or the BMC's own 5xx after an action leaves open
// whether it acted, unless the message says that it was not ready.
func kindOfAnswer(answer *common.Error, action bool) bmc.Kind {
	switch status := answer.HTTPReturnedStatusCode; {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return bmc.Auth
	case status == http.StatusNotFound:
		return bmc.NotFound
	case status == http.StatusMethodNotAllowed, status == http.StatusNotImplemented:
		return bmc.Unsupported
	case status == http.StatusServiceUnavailable, status == http.StatusTooManyRequests, isNotReady(answer):
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

// isNotReady: SYS518 is an iDRAC that cannot reach its data sources, RAC0218 one that has no session left, and
// InvalidOperationForSystemState an iLO in POST.
func isNotReady(answer *common.Error) bool {
	return hasMessage(answer, "SYS518", "RAC0218", "InvalidOperationForSystemState", "ResourceInUse", "ServiceInUnknownState")
}

func isNotSupported(answer *common.Error) bool {
	return hasMessage(answer, "ActionNotSupported", "ActionParameterNotSupported", "ActionParameterValueNotInList")
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
	said = strings.Join(strings.Fields(said), " ")
	if len(said) > maxDetail {
		said = strings.ToValidUTF8(said[:maxDetail], "") + "…"
	}
	status := answer.HTTPReturnedStatusCode
	text := fmt.Sprintf("the BMC answers %d %s", status, http.StatusText(status))
	if said != "" {
		text += ": " + said
	}
	if status == http.StatusUnauthorized || status == http.StatusForbidden {
		text += "; correct the Secret that spec.bmc.credentialsName names"
	}

	return text
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
