package simulator

import (
	"encoding/json"
	"net/http"
)

type object = map[string]any

// answer is what a request gets.
type answer struct {
	status int
	header map[string]string
	body   any
}

func (a *answer) write(w http.ResponseWriter) {
	for name, value := range a.header {
		w.Header().Set(name, value)
	}
	if a.body == nil {
		w.WriteHeader(a.status)

		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("OData-Version", "4.0")
	w.WriteHeader(a.status)
	if err := json.NewEncoder(w).Encode(a.body); err != nil {
		panic(http.ErrAbortHandler)
	}
}

func show(body object) *answer { return &answer{status: http.StatusOK, body: body} }

func done(status int) *answer { return &answer{status: status} }

func (b *BMC) missing() *answer {
	return b.refuse(http.StatusNotFound, "Base.1.12.ResourceMissingAtURI", "There is no such resource.")
}

func (b *BMC) notAllowed() *answer {
	return b.refuse(http.StatusMethodNotAllowed, "Base.1.12.OperationNotAllowed", "The HTTP method is not allowed.")
}

func (b *BMC) refuse(status int, id, message string) *answer {
	return &answer{status: status, body: object{"error": object{
		"code": "Base.1.12.GeneralError", "message": "A general error has occurred. See ExtendedInfo.",
		"@Message.ExtendedInfo": []any{object{"MessageId": id, "Message": message, "Severity": "Warning"}},
	}}}
}

func link(path string) object { return object{"@odata.id": path} }

func collection(path string, members []any) object {
	return object{"@odata.id": path, "Name": "Collection", "Members": members, "Members@odata.count": len(members)}
}

// decode reads a JSON object; ok is false when it is none.
func decode(r *http.Request) (body object, ok bool) {
	err := json.NewDecoder(r.Body).Decode(&body)

	return body, err == nil && body != nil
}
