package v1alpha1

import (
	"strings"
	"unicode/utf8"
)

// The limits of texts, in bytes.
const (
	// MaxMessage is that of the messages in a NodeUpdate. The CRD counts characters, of which there are never more.
	MaxMessage = 2048
	// MaxNote is that of an event's note. The API server refuses a longer one, and client-go then drops the event.
	MaxNote = 1024
)

// Cut shortens a text that is longer than limit bytes, between two characters, and marks that. What is not UTF-8 is
// replaced, since it would become longer on its way to the API server. A limit below the mark's 4 bytes gives the mark.
func Cut(text string, limit int) string {
	const mark = " …"
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= limit {
		return text
	}
	end := max(limit-len(mark), 0)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}

	return text[:end] + mark
}
