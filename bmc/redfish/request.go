package redfish

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/stmcginnis/gofish/common"

	"github.com/stayput-dev/stayput/bmc"
)

// request is one request to the BMC.
type request struct {
	// op is what is being done, for errors.
	op string
	// method is GET, POST, PATCH or DELETE.
	method string
	uri    string
	body   any
	// ifMatch is an ETag; "" leaves the header out.
	ifMatch string
}

// answer is a successful answer of the BMC.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// send sends a request, and once more after logging in when the BMC has forgotten the session: a request that is
// answered with 401 has done nothing. Its errors are those of gofish, for classify, or ours.
func (m *machine) send(r request) (answer, error) {
	got, err := m.sendOnce(r)
	now := m.transport.current
	if statusOf(err) != http.StatusUnauthorized || m.transport.token == "" || now.renewed {
		return got, err
	}
	now.renewed = true
	// The old session is not deleted: the BMC does not know it, and its path may by now be somebody else's.
	m.session = ""
	if err := m.login(); err != nil {
		return answer{}, err
	}

	return m.sendOnce(r)
}

func (m *machine) sendOnce(r request) (answer, error) {
	uri, err := localPath(r.uri)
	if err != nil {
		return answer{}, m.fail(bmc.Unsupported, r.op, err.Error())
	}
	var header map[string]string
	if r.ifMatch != "" {
		header = map[string]string{"If-Match": r.ifMatch}
	}
	var response *http.Response
	switch r.method {
	case http.MethodPost:
		response, err = m.client.PostWithHeaders(uri, r.body, header)
	case http.MethodPatch:
		response, err = m.client.PatchWithHeaders(uri, r.body, header)
	case http.MethodDelete:
		response, err = m.client.DeleteWithHeaders(uri, header)
	default:
		response, err = m.client.GetWithHeaders(uri, header)
	}
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil && r.method == http.MethodGet {
		return answer{}, err
	}
	// The status has said that a write was accepted; a body that is lost after it changes nothing.
	return answer{status: response.StatusCode, header: response.Header, body: body}, nil
}

// act sends a request that changes something, and waits for the task when the BMC makes one of it.
func (m *machine) act(r request) error {
	got, err := m.send(r)
	if err != nil {
		return err
	}
	if got.status == http.StatusAccepted {
		return m.follow(r.op, got)
	}

	return nil
}

// get reads a resource and gives its answer.
func (m *machine) get(op, uri string, into any) (answer, error) {
	got, err := m.send(request{op: op, method: http.MethodGet, uri: uri})
	if err != nil {
		return answer{}, m.classify(op, false, err)
	}
	if err := decode(got.body, into); err != nil {
		return answer{}, m.classify(op, false, err)
	}

	return got, nil
}

var errNull = errors.New("the answer is null, and not a resource")

// decode reads JSON. A property of another type than the schema's is as if it were missing: one odd value must not
// hide the power state.
func decode(body []byte, into any) error {
	if string(bytes.TrimSpace(body)) == "null" {
		return errNull
	}
	err := json.Unmarshal(body, into)
	if odd, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && odd.Field != "" {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the answer is not the JSON of a resource: %w", err)
	}

	return nil
}

// localPath takes the path out of a URI that a BMC gave, which may be absolute: whatever host it names, credentials go
// to the BMC only.
func localPath(uri string) (string, error) {
	parsed, err := url.Parse(uri)
	if err != nil || !strings.HasPrefix(parsed.EscapedPath(), "/") {
		return "", fmt.Errorf("the BMC gives %q where a path is due; update its firmware", uri) //nolint:err113 // becomes ours
	}

	return parsed.RequestURI(), nil
}

// statusOf is the HTTP status of an answer that is an error; 0 when there was none.
func statusOf(err error) int {
	if answered, ok := errors.AsType[*common.Error](err); ok {
		return answered.HTTPReturnedStatusCode
	}

	return 0
}

// says tells whether an answer that is an error holds one of the messages.
func says(err error, ids ...string) bool {
	answered, ok := errors.AsType[*common.Error](err)

	return ok && hasMessage(answered, ids...)
}

// refused tells that the BMC did not like the form of a request, so that it has not acted and another form may be tried.
func refused(err error) bool {
	answered, ok := errors.AsType[*common.Error](err)

	return ok && answered.HTTPReturnedStatusCode == http.StatusBadRequest && !isNotReady(answered)
}

// mentions tells whether an answer that is an error names a property, in its messages or their arguments.
func mentions(err error, property string) bool {
	answered, ok := errors.AsType[*common.Error](err)
	if !ok {
		return false
	}
	texts := []string{answered.Message}
	for _, info := range answered.ExtendedInfos {
		texts = append(append(texts, info.Message), info.MessageArgs...)
	}

	return strings.Contains(strings.Join(texts, "\n"), property)
}

// members reads the first page of a collection: the paths of its members.
func (m *machine) members(op, uri string) ([]string, error) {
	var collection struct {
		Members common.Links `json:"Members"`
		Next    string       `json:"Members@odata.nextLink"`
	}
	if _, err := m.get(op, uri, &collection); err != nil {
		return nil, err
	}
	paths := collection.Members.ToStrings()
	if collection.Next != "" {
		// A page boundary among systems, managers or slots means more of them than any caller chooses from.
		paths = append(paths, collection.Next)
	}

	return paths, nil
}
