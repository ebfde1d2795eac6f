package registry

import (
	"bufio"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"
)

// Request is one request that the registry has answered.
type Request struct {
	// Start and End are when it came and when the answer was sent in full.
	Start, End time.Time
	// Method and Path are the HTTP request's; UserAgent is who says to have asked.
	Method, Path, UserAgent string
	// Status is the HTTP status, Bytes the size of the body that was sent.
	Status int
	Bytes  int64
}

// Blob tells whether the request fetched content: a GET of a blob that was answered with bytes.
func (r Request) Blob() bool {
	return r.Method == http.MethodGet && strings.Contains(r.Path, "/blobs/") && r.Bytes > 0 && r.Status < 300
}

// requestLine is the part of docker-registry's JSON log that is used here. A request is one line, written at its end.
type requestLine struct {
	Message   string    `json:"msg"`
	Time      time.Time `json:"time"`
	Method    string    `json:"http.request.method"`
	URI       string    `json:"http.request.uri"`
	UserAgent string    `json:"http.request.useragent"`
	Duration  string    `json:"http.response.duration"`
	Status    int       `json:"http.response.status"`
	Written   int64     `json:"http.response.written"`
}

const (
	completed = "response completed"
	maxLine   = 1 << 20
)

var errCA = errors.New("the registry's CA holds no certificate")

// Requests are the requests that ended since then, in the order in which they ended. The requests by which the lab
// itself asks whether the registry is up are among them (GET /v2/).
func (r *Registry) Requests(since time.Time) ([]Request, error) {
	file, err := os.Open(r.file(processName + ".log"))
	if err != nil {
		return nil, fmt.Errorf("opening the registry's log: %w", err)
	}
	defer file.Close()

	var requests []Request

	lines := bufio.NewScanner(file)
	lines.Buffer(nil, maxLine)

	for lines.Scan() {
		request, ok := parseRequest(lines.Bytes())
		if ok && !request.End.Before(since) {
			requests = append(requests, request)
		}
	}

	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading the registry's log: %w", err)
	}

	return requests, nil
}

func parseRequest(line []byte) (Request, bool) {
	var parsed requestLine
	if err := json.Unmarshal(line, &parsed); err != nil || parsed.Message != completed || parsed.Status == 0 {
		return Request{}, false
	}

	took, err := time.ParseDuration(parsed.Duration)
	if err != nil {
		return Request{}, false
	}

	return Request{
		Start: parsed.Time.Add(-took), End: parsed.Time,
		Method: parsed.Method, Path: parsed.URI, UserAgent: parsed.UserAgent,
		Status: parsed.Status, Bytes: parsed.Written,
	}, true
}

func pool(pem []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errCA
	}

	return pool, nil
}
