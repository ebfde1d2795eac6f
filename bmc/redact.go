package bmc

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"html"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	redacted = "<redacted>"
	// shortSecret is from how many characters on a secret is taken out wherever it stands. A shorter one would make
	// every text unreadable, and by what is left the reader could tell it: it is taken out where it is a word of its own.
	shortSecret = 4
	// nestedForms is how deep encodings are followed: an answer in JSON that holds one, quoted in an error.
	nestedForms = 2
)

// Redactor takes secrets out of texts, in the forms in which they could come back in one: as they are, escaped in JSON, Go,
// HTML or a URL, in base64, without their control characters, and with white space collapsed. Its methods are safe for
// concurrent use.
type Redactor struct {
	// byFirst are the forms by their first byte, the longest first.
	byFirst map[byte][]string
}

// NewRedactor makes a Redactor of the password of credentials and of further secrets; empty ones are none.
func NewRedactor(credentials Credentials, more ...string) Redactor {
	secrets := slices.Clone(more)
	if credentials.Password != "" {
		secrets = append(secrets, credentials.Password)
	}
	forms := map[string]int{}
	for _, secret := range secrets {
		addForms(forms, secret, nestedForms)
	}
	if credentials.Password != "" {
		pair := []byte(credentials.Username + ":" + credentials.Password)
		for _, encoding := range encodings() {
			forms[encoding.EncodeToString(pair)] = 0
		}
	}
	r := Redactor{byFirst: map[byte][]string{}}
	for form := range forms {
		if form != "" {
			r.byFirst[form[0]] = append(r.byFirst[form[0]], form)
		}
	}
	for _, each := range r.byFirst {
		slices.SortFunc(each, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	}

	return r
}

func encodings() []*base64.Encoding {
	return []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding}
}

// addForms adds a secret, and what encodings make of it, depth of them one in another. Of each form it keeps how deep it was
// followed: one way may come to a form with nothing left, and a shorter way later.
func addForms(forms map[string]int, secret string, depth int) {
	if followed, known := forms[secret]; secret == "" || known && followed >= depth {
		return
	}
	forms[secret] = depth
	if depth == 0 {
		return
	}
	for _, form := range encoded(secret) {
		addForms(forms, form, depth-1)
	}
}

func encoded(secret string) []string {
	const most = 28
	forms := append(make([]string, 0, most),
		strings.ToValidUTF8(secret, string(utf8.RuneError)), OneLine(secret), strings.Join(strings.Fields(secret), " "),
		inner(strconv.Quote(secret)), inner(strconv.QuoteToASCII(secret)), html.EscapeString(secret),
		url.QueryEscape(secret), url.PathEscape(secret), strings.TrimPrefix(url.UserPassword("", secret).String(), ":"),
		strings.ReplaceAll(url.QueryEscape(secret), "+", "%20"),
	)
	for _, escape := range []bool{true, false} {
		var text bytes.Buffer
		encoder := json.NewEncoder(&text)
		encoder.SetEscapeHTML(escape)
		if err := encoder.Encode(secret); err == nil { // a string always can be
			forms = append(forms, inner(strings.TrimSuffix(text.String(), "\n")))
		}
	}
	for _, form := range slices.Clone(forms) {
		forms = append(forms, lowerHex(form))
	}
	for _, encoding := range encodings() {
		forms = append(forms, encoding.EncodeToString([]byte(secret)))
	}

	return forms
}

func inner(quoted string) string { return quoted[1 : len(quoted)-1] }

// lowerHex is a URL's escapes with small letters, which are as good.
func lowerHex(text string) string {
	return regexp.MustCompile(`%[0-9A-F]{2}`).ReplaceAllStringFunc(text, strings.ToLower)
}

// Redact takes the secrets out of a text.
func (r Redactor) Redact(text string) string {
	var kept strings.Builder
	for i := 0; i < len(text); {
		if length := r.secretAt(text, i); length > 0 {
			kept.WriteString(redacted)
			i += length

			continue
		}
		kept.WriteByte(text[i])
		i++
	}

	return kept.String()
}

// secretAt is the length of the longest form of a secret that begins at i; 0: there is none.
func (r Redactor) secretAt(text string, i int) int {
	for _, form := range r.byFirst[text[i]] {
		if !strings.HasPrefix(text[i:], form) {
			continue
		}
		if utf8.RuneCountInString(form) >= shortSecret {
			return len(form)
		}
		before, _ := utf8.DecodeLastRuneInString(text[:i])
		after, _ := utf8.DecodeRuneInString(text[i+len(form):])
		if !isWord(before) && !isWord(after) {
			return len(form)
		}
	}

	return 0
}

func isWord(r rune) bool { return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r)) }

// Line makes one line of a text, for people: without the secrets and what OneLine takes out, and cut to limit bytes, 0 for
// none. It is cut last: a part of a secret could not be told.
func (r Redactor) Line(text string, limit int) string {
	text = r.Redact(OneLine(r.Redact(text)))
	if limit > 0 && len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "…"
	}

	return text
}

// OneLine takes out of a text of a BMC what would do something to a terminal or to the reading, as ConsoleLines does, and
// makes one line of it, with one space for any white space.
func OneLine(text string) string {
	text = strings.ToValidUTF8(text, string(utf8.RuneError))
	text = escapes.ReplaceAllLiteralString(text, "")
	text = strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return ' '
		}

		return shown(r)
	}, text)

	return strings.Join(strings.Fields(text), " ")
}

// Redact takes the credentials, in the forms in which they could come back in a text, and further secrets out of it.
func (c Credentials) Redact(text string, more ...string) string {
	return NewRedactor(c, more...).Redact(text)
}
