package redfish

import (
	"net/http"
	"strings"
)

// patch changes properties of a resource whose ETag is etag ("": it has none). BMCs differ in what they want of If-Match,
// and 412 says that nothing was changed: the ETag is sent as it was given, then made strong, then left out (sushy's
// order). The values that are sent are absolute, so that a change by another in between does no harm.
func (m *machine) patch(op, uri, etag string, body any) error {
	send := func(tag string) error {
		return m.act(request{op: op, method: http.MethodPatch, uri: uri, body: body, ifMatch: tag})
	}
	err := climb(append(tagForms(etag), ""), send)
	if !needsTag(err) {
		return err
	}
	// Some BMCs (AMI's in Lenovo's SR655, gofish issue 171) want one, and give it only with a fresh read.
	got, readErr := m.send(request{op: op, method: http.MethodGet, uri: uri})
	if readErr != nil {
		return m.classify(op, false, readErr)
	}
	forms := tagForms(got.header.Get("ETag"))
	if len(forms) == 0 {
		return err
	}

	return climb(forms, send)
}

// climb tries the forms until one is not answered with 412.
func climb(forms []string, send func(tag string) error) error {
	var err error
	for _, form := range forms {
		if err = send(form); statusOf(err) != http.StatusPreconditionFailed || says(err, preconditionHeaderMissing) {
			return err
		}
	}

	return err
}

const preconditionHeaderMissing = "PreconditionHeaderMissing"

func needsTag(err error) bool {
	return statusOf(err) == http.StatusPreconditionRequired || says(err, preconditionHeaderMissing)
}

// tagForms are the forms of an ETag to try, none when there is none.
func tagForms(etag string) []string {
	strong := strings.TrimPrefix(etag, "W/")
	switch {
	case strings.Trim(strong, `"`) == "":
		return nil
	case strong != etag:
		return []string{etag, strong}
	default:
		return []string{etag}
	}
}
