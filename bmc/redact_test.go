package bmc_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stayput-dev/stayput/bmc"
)

// disguises are the ways in which a password comes back.
func disguises(password string) map[string]string {
	escaped, err := json.Marshal(map[string]string{"p": password})
	if err != nil {
		panic(err)
	}
	var plain strings.Builder
	encoder := json.NewEncoder(&plain)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(map[string]string{"p": password}); err != nil {
		panic(err)
	}
	userInfo := url.URL{Scheme: "http", User: url.UserPassword("admin", password), Host: "h"}

	return map[string]string{
		"as it is": "it is " + password + " there", "JSON": string(escaped), "JSON, plain": plain.String(),
		"Go": fmt.Sprintf("got %q", password), "Go, ASCII": fmt.Sprintf("got %+q", password), "Go of JSON": fmt.Sprintf("%q", escaped),
		"query": "http://h/?p=" + url.QueryEscape(password), "path": "http://h/" + url.PathEscape(password) + "/x",
		"query, small": "http://h/?p=" + strings.ToLower(url.QueryEscape(password)),
		"user":         userInfo.String(), "HTML": "<p>" + html.EscapeString(password) + "</p>",
		"base64": base64.StdEncoding.EncodeToString([]byte(password)), "Basic": base64.StdEncoding.EncodeToString([]byte("admin:" + password)),
		"collapsed": "it is " + strings.Join(strings.Fields(password), " ") + " there",
	}
}

// survives tells whether what a reader can decode of a text holds the password.
func survives(text, password string) bool {
	return strings.Contains(text, password)
}

func TestNoFormOfAPasswordSurvives(t *testing.T) {
	t.Parallel()
	for _, password := range []string{
		"hunter2hunter2", `a"b\c<d>&e'f`, "two  spaces\tand a tab", "p%2Fq/r?s+t", "ünïcödé€ß", "line\nbreak",
		"bell\a\x1b[31mred", "a{{.}}$(x)`y`",
	} {
		redactor := bmc.NewRedactor(bmc.Credentials{Username: "admin", Password: password}, "token-1234")
		for name, text := range disguises(password) {
			if name == "query, small" && strings.ToLower(password) != password {
				continue
			}
			secret := strings.TrimSuffix(strings.TrimPrefix(text, "it is "), " there")
			for way, got := range map[string]string{"redacted": redactor.Redact(text), "line": redactor.Line(text+" token-1234", 0)} {
				if !strings.Contains(got, "<redacted>") || survives(got, secret) || survives(got, password) || strings.Contains(got, "token-1234") {
					t.Errorf("%q, %s, %s: %q", password, name, way, got)
				}
			}
		}
	}
}

// What is cut is cut after the secrets are out of it.
func TestTheCutLeavesNoPartOfASecret(t *testing.T) {
	t.Parallel()
	redactor := bmc.NewRedactor(bmc.Credentials{Username: "admin", Password: "correct horse battery"})
	for limit := 1; limit < 60; limit++ {
		got := redactor.Line(strings.Repeat("x", 20)+" correct\n horse   battery and more", limit)
		if strings.Contains(got, "correct") || len(got) > limit+len("…") || !utf8.ValidString(got) {
			t.Errorf("%d: %q", limit, got)
		}
	}
}

// A password of one letter is taken out as a word, and leaves texts readable.
func TestAShortPasswordLeavesTextsReadable(t *testing.T) {
	t.Parallel()
	redactor := bmc.NewRedactor(bmc.Credentials{Username: "admin", Password: "a"})
	const text = "sending ForceRestart at BMC a.example.com: a state that lasts, password=a"
	want := "sending ForceRestart at BMC <redacted>.example.com: <redacted> state that lasts, password=<redacted>"
	if got := redactor.Redact(text); got != want {
		t.Errorf("got %q", got)
	}
	if got := bmc.NewRedactor(bmc.Credentials{Username: "admin"}).Redact(text); got != text {
		t.Errorf("got %q", got)
	}
}

func TestOneLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a\x1b[2Jb\x07 c\u009b31md \u202eright": "ab cd right", " a\r\n\tb  c ": "a b c", "\xff": "\uFFFD", "": "",
	} {
		if got := bmc.OneLine(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func FuzzRedact(f *testing.F) {
	f.Add("hunter2hunter2", 0)
	f.Add(`a"b\c<d>&e'f g  h`, 3)
	f.Add("\x00\xff\u202epass", 5)
	mask := "<redacted>"
	f.Fuzz(func(t *testing.T, password string, limit int) {
		if utf8.RuneCountInString(password) < 4 || strings.Contains(mask, password) || len(strings.TrimSpace(password)) < 4 {
			return
		}
		redactor := bmc.NewRedactor(bmc.Credentials{Username: "admin", Password: password})
		for name, text := range disguises(password) {
			if name == "query, small" {
				continue
			}
			if got := redactor.Redact(text); !strings.Contains(got, "<redacted>") {
				t.Errorf("%q, %s: %q", password, name, got)
			}
			if got := redactor.Line(text, limit%400); survives(got, password) || strings.ContainsAny(got, "\x1b\n\x07") {
				t.Errorf("%q, %s: line %q", password, name, got)
			}
		}
	})
}
