package uki

import (
	"strings"
)

// maxVariant bounds a VARIANT_ID; real ones have less than 150 bytes.
const maxVariant = 256

// ParseOSRelease reads the text of an os-release file. Quotes are taken off; escapes inside them are kept as they are,
// because no key that is used here has any.
func ParseOSRelease(text string) map[string]string {
	release := map[string]string{}

	for line := range strings.Lines(text) {
		key, value, found := strings.Cut(strings.TrimSpace(line), "=")
		if !found || strings.HasPrefix(key, "#") {
			continue
		}

		if len(value) > 1 && (value[0] == '"' || value[0] == '\'') && value[len(value)-1] == value[0] {
			value = value[1 : len(value)-1]
		}

		release[key] = value
	}

	return release
}

// SortKey is what systemd-boot sorts an image with that os-release by first: IMAGE_ID, else ID (systemd,
// bootspec-fundamental.c).
func SortKey(osRelease map[string]string) string {
	return firstOf(osRelease, "IMAGE_ID", "ID")
}

// Version is what systemd-boot sorts images of the same key by: the first of IMAGE_VERSION, VERSION, VERSION_ID and
// BUILD_ID.
func Version(osRelease map[string]string) string {
	return firstOf(osRelease, "IMAGE_VERSION", "VERSION", "VERSION_ID", "BUILD_ID")
}

// Variant is the VARIANT_ID, "" when there is none that has the form that os-release(5) gives it: lower-case letters,
// digits, '.', '_' and '-'.
func Variant(osRelease map[string]string) string {
	const form = "abcdefghijklmnopqrstuvwxyz0123456789._-"

	text := osRelease["VARIANT_ID"]
	if len(text) > maxVariant || strings.Trim(text, form) != "" {
		return ""
	}

	return text
}

func firstOf(values map[string]string, keys ...string) string {
	for _, key := range keys {
		if values[key] != "" {
			return values[key]
		}
	}

	return ""
}

// CommandLine is a kernel command line.
type CommandLine string

// RootHash is the dm-verity root hash on a command line (systemd-veritysetup-generator(8)), in lower case.
func (c CommandLine) RootHash() string {
	for _, key := range []string{"usrhash", "roothash"} {
		if hash, found := c.Value(key); found {
			return strings.ToLower(hash)
		}
	}

	return ""
}

// Value returns the last value of a parameter and whether it is there at all, as "key=value" or as "key". Double quotes
// around a value, or around the whole word, are taken off, as the kernel does.
func (c CommandLine) Value(key string) (string, bool) {
	value, found := "", false

	for _, word := range c.words() {
		name, v, _ := strings.Cut(word, "=")
		if name == key {
			value, found = v, true
		}
	}

	return value, found
}

func (c CommandLine) words() []string {
	var (
		words  []string
		word   strings.Builder
		quoted bool
		began  bool
	)

	for _, r := range string(c) {
		switch {
		case r == '"':
			quoted, began = !quoted, true
		case !quoted && (r == ' ' || r == '\t' || r == '\n'):
			if began {
				words = append(words, word.String())
			}

			word.Reset()

			began = false
		default:
			word.WriteRune(r)

			began = true
		}
	}

	if began {
		words = append(words, word.String())
	}

	return words
}
