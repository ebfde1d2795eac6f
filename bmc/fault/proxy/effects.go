package proxy

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/stayput-dev/stayput/bmc/fault/endpoint"
)

// Answer gives the client this answer. Header may be nil.
func Answer(status int, header http.Header, body string) Effect {
	return func(w http.ResponseWriter, _ *Exchange) {
		w.Header().Set("Content-Type", "application/json")
		maps.Copy(w.Header(), header)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// Refuse gives the client a Redfish error with one message.
func Refuse(status int, messageID, message string) Effect {
	return Answer(status, nil, ErrorBody(messageID, message))
}

// ErrorBody is a Redfish error with one message (DSP0266, 8.6).
func ErrorBody(messageID, message string) string {
	body, err := json.Marshal(map[string]any{"error": map[string]any{
		"code": messageID, "message": message,
		"@Message.ExtendedInfo": []any{map[string]any{"MessageId": messageID, "Message": message}},
	}})
	if err != nil {
		return "{}"
	}

	return string(body)
}

// Hang answers nothing until the client has gone.
func Hang() Effect {
	return func(_ http.ResponseWriter, e *Exchange) { wait(e) }
}

func wait(e *Exchange) {
	select {
	case <-e.Request.Context().Done():
	case <-e.Closing:
	}
}

// Drop ends the connection without an answer.
func Drop() Effect {
	return func(http.ResponseWriter, *Exchange) { panic(http.ErrAbortHandler) }
}

// Reset resets the TCP connection without an answer.
func Reset() Effect {
	return func(w http.ResponseWriter, _ *Exchange) {
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			endpoint.Abort(conn)
		}
	}
}

// Truncate gives the first half of the true answer as if it were all.
func Truncate() Effect {
	return func(w http.ResponseWriter, e *Exchange) {
		replay(w, e.Answer, e.Answer.Body.Bytes()[:e.Answer.Body.Len()/2])
	}
}

// BreakOff announces the true answer's length, and ends the connection in its middle.
func BreakOff() Effect {
	return func(w http.ResponseWriter, e *Exchange) {
		body := e.Answer.Body.Bytes()
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		replay(w, e.Answer, body[:len(body)/2])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// SlowHeaders gives the status line and one header at once, and then a byte of a further header every pause, without end.
func SlowHeaders(pause time.Duration) Effect {
	return func(w http.ResponseWriter, e *Exchange) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Slow: "); err != nil {
			return
		}
		// The server no longer watches a connection that was taken from it: the write fails when the client has gone.
		every(pause, e.Closing, nil, func() bool {
			_, err := conn.Write([]byte("x"))

			return err == nil
		})
	}
}

// SlowBody gives one byte of the true answer every pause.
func SlowBody(pause time.Duration) Effect {
	return func(w http.ResponseWriter, e *Exchange) {
		body := e.Answer.Body.Bytes()
		replay(w, e.Answer, nil)
		every(pause, e.Closing, e.Request.Context().Done(), func() bool {
			if len(body) == 0 {
				return false
			}
			_, err := w.Write(body[:1])
			body = body[1:]
			_ = http.NewResponseController(w).Flush()

			return err == nil
		})
	}
}

// every calls step after each pause until it returns false or one of the channels is closed.
func every(pause time.Duration, closing, gone <-chan struct{}, step func() bool) {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for {
		select {
		case <-closing:
			return
		case <-gone:
			return
		case <-ticker.C:
			if !step() {
				return
			}
		}
	}
}

const chunk = 64 << 10

// Huge puts a string of n bytes before the true answer, which stays valid JSON: a property "Oem".
func Huge(n int) Effect {
	return func(w http.ResponseWriter, e *Exchange) {
		replay(w, e.Answer, []byte(`{"Oem":"`))
		block := bytes.Repeat([]byte("x"), chunk)
		for ; n > 0; n -= chunk {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
		_, _ = w.Write([]byte(`",`))
		_, _ = w.Write(bytes.TrimPrefix(bytes.TrimSpace(e.Answer.Body.Bytes()), []byte("{")))
	}
}

// Endless gives a body in chunks that never ends, as fast as the client reads it.
func Endless() Effect {
	return func(w http.ResponseWriter, e *Exchange) {
		replay(w, e.Answer, []byte(`{"Oem":"`))
		block := bytes.Repeat([]byte("x"), chunk)
		for {
			select {
			case <-e.Closing:
				return
			case <-e.Request.Context().Done():
				return
			default:
			}
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	}
}

// Gzip compresses the true answer, whatever the client asked for, and marks its ETag as some web servers do.
func Gzip() Effect {
	return func(w http.ResponseWriter, e *Exchange) {
		if e.Answer.Body.Len() == 0 {
			replay(w, e.Answer, nil)

			return
		}
		var packed bytes.Buffer
		writer := gzip.NewWriter(&packed)
		_, _ = writer.Write(e.Answer.Body.Bytes())
		_ = writer.Close()
		header := e.Answer.Header()
		header.Set("Content-Encoding", "gzip")
		if tag := header.Get("ETag"); len(tag) > 1 {
			header.Set("ETag", tag[:len(tag)-1]+`-gzip"`)
		}
		replay(w, e.Answer, packed.Bytes())
	}
}

// Edit changes the properties of the true answer when it is a JSON object.
func Edit(change func(map[string]any)) Effect {
	return func(w http.ResponseWriter, e *Exchange) {
		var object map[string]any
		if json.Unmarshal(e.Answer.Body.Bytes(), &object) != nil {
			replay(w, e.Answer, e.Answer.Body.Bytes())

			return
		}
		change(object)
		body, err := json.Marshal(object)
		if err != nil {
			body = e.Answer.Body.Bytes()
		}
		replay(w, e.Answer, body)
	}
}

// OnceAccepted gives true answers, but in place of the first one that accepts the request it plays another effect.
func OnceAccepted(effect Effect) Effect {
	var played atomic.Bool

	return func(w http.ResponseWriter, e *Exchange) {
		if e.Answer.Code < http.StatusMultipleChoices && played.CompareAndSwap(false, true) {
			effect(w, e)

			return
		}
		replay(w, e.Answer, e.Answer.Body.Bytes())
	}
}

// Status gives the true answer under another status.
func Status(status int) Effect {
	return func(w http.ResponseWriter, e *Exchange) {
		e.Answer.Code = status
		replay(w, e.Answer, e.Answer.Body.Bytes())
	}
}

// Redirect sends the client to the same path at another place: a URL without a path, or "" for the same host with a
// query added.
func Redirect(status int, base string) Effect {
	return func(w http.ResponseWriter, e *Exchange) {
		location := base + e.Request.URL.Path
		if base == "" {
			location += "?again"
		}
		w.Header().Set("Location", location)
		w.WriteHeader(status)
	}
}

// Echo answers with an error that quotes all that the client sent: headers, with the credentials, and body.
func Echo(status int) Effect {
	return func(w http.ResponseWriter, e *Exchange) {
		user, password, _ := e.Request.BasicAuth()
		text := fmt.Sprintf("cannot do %s for %s:%s, Authorization %q, X-Auth-Token %q, body %s",
			e.Request.URL.Path, user, password, e.Request.Header.Get("Authorization"),
			e.Request.Header.Get("X-Auth-Token"), e.Body)
		Refuse(status, "Base.1.12.GeneralError", text)(w, e)
	}
}

func replay(w http.ResponseWriter, answer *httptest.ResponseRecorder, body []byte) {
	status := http.StatusOK
	if answer != nil {
		header := answer.Header().Clone()
		// That of the true body; effects that lie about the length set their own.
		header.Del("Content-Length")
		maps.Copy(w.Header(), header)
		status = answer.Code
	}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
