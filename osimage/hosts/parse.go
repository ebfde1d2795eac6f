package hosts

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// section is one host's part of a file. What may be a string or a list is any.
type section struct {
	Capabilities []string       `toml:"capabilities"`
	CA           any            `toml:"ca"`
	Client       any            `toml:"client"`
	SkipVerify   bool           `toml:"skip_verify"`
	Header       map[string]any `toml:"header"`
	OverridePath bool           `toml:"override_path"`
	DialTimeout  string         `toml:"dial_timeout"`
}

// document is a whole file: the fields outside of a table are the server's.
type document struct {
	section

	Server string             `toml:"server"`
	Host   map[string]section `toml:"host"`
}

// Parse reads a hosts.toml. Paths in it are relative to the folder of file, and its name is in each error. A field that
// is not known is a warning, since containerd adds some; a known one with a value that makes no sense is an error.
func Parse(data []byte, file, registry string) (Config, error) {
	if len(data) > maxFile {
		return Config{}, refused("%s: the file has more than %d bytes (keep only this registry's hosts in it)", file, maxFile)
	}

	var (
		read    document
		missing *toml.StrictMissingError
	)

	config := Config{File: file, Server: upstream(registry)}

	decoder := toml.NewDecoder(strings.NewReader(string(data))).DisallowUnknownFields()

	switch err := decoder.Decode(&read); {
	case errors.As(err, &missing):
		config.Warnings = unknownFields(missing, file)

		// The strict decoder has stopped nowhere, but only this is documented to give everything else.
		read = document{}
		if err := toml.Unmarshal(data, &read); err != nil {
			return Config{}, syntaxError(file, err)
		}
	case err != nil:
		return Config{}, syntaxError(file, err)
	}

	if read.Server == "" {
		read.Server = config.Server.URL()
		// The path of an address that nobody has written is as it is.
		read.OverridePath = false
	}

	if err := read.apply(&config.Server, read.Server, file); err != nil {
		return Config{}, fmt.Errorf("%s: server: %w", file, err)
	}

	for _, address := range order(data, read.Host) {
		// Writing to a mirror needs to be asked for; containerd allows it by default.
		host := Host{Capabilities: Pull | Resolve}
		if err := read.Host[address].apply(&host, address, file); err != nil {
			return Config{}, fmt.Errorf("%s: host %q: %w", file, address, err)
		}

		config.Mirrors = append(config.Mirrors, host)
	}

	return config, nil
}

// ErrInvalid is returned for a file, or a value in it, that makes no sense; trying again does not help.
var ErrInvalid = errors.New("the registry hosts cannot be used")

func refused(format string, arguments ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, arguments...))
}

func syntaxError(file string, err error) error {
	if decode, ok := errors.AsType[*toml.DecodeError](err); ok {
		row, column := decode.Position()

		return fmt.Errorf("%w: %s: line %d, column %d: %w (see containerd's docs/hosts.md for the format)", ErrInvalid, file, row, column, err)
	}

	return fmt.Errorf("%w: %s: %w (see containerd's docs/hosts.md for the format)", ErrInvalid, file, err)
}

func unknownFields(missing *toml.StrictMissingError, file string) []string {
	warnings := make([]string, 0, len(missing.Errors))

	for _, field := range missing.Errors {
		row, _ := field.Position()
		warnings = append(warnings, fmt.Sprintf("%s: line %d: the field %q is not known and has no effect",
			file, row, strings.Join(field.Key(), ".")))
	}

	return warnings
}

// order lists the hosts as the file does. A decoded table has no order, so the file's expressions are walked.
func order(data []byte, hosts map[string]section) []string {
	result := make([]string, 0, len(hosts))
	seen := map[string]bool{}

	add := func(keys unstable.Iterator) {
		const hostKey = "host"

		if !keys.Next() || string(keys.Node().Data) != hostKey || !keys.Next() {
			return
		}

		address := string(keys.Node().Data)
		if _, ok := hosts[address]; ok && !seen[address] {
			seen[address] = true
			result = append(result, address)
		}
	}

	parser := unstable.Parser{}
	parser.Reset(data)

	for parser.NextExpression() {
		add(parser.Expression().Key())
	}

	// What is written another way, such as an inline table, comes last and sorted, so that it is the same each time.
	for _, address := range sortedKeys(hosts) {
		if !seen[address] {
			result = append(result, address)
		}
	}

	return result
}

// apply checks a section's values and puts them into a host.
func (s section) apply(host *Host, address, file string) error {
	if err := setAddress(host, address, s.OverridePath); err != nil {
		return err
	}

	capabilities, err := parseCapabilities(s.Capabilities)
	if err != nil {
		return err
	}

	if capabilities != 0 {
		host.Capabilities = capabilities
	}

	folder := filepath.Dir(file)

	if host.CAFiles, err = stringList(s.CA, "ca", folder); err != nil {
		return err
	}

	if host.Clients, err = clients(s.Client, folder); err != nil {
		return err
	}

	if host.Header, err = headers(s.Header); err != nil {
		return err
	}

	if s.DialTimeout != "" {
		host.DialTimeout, err = time.ParseDuration(s.DialTimeout)
		if err != nil || host.DialTimeout <= 0 {
			return refused(`dial_timeout is %q, want a duration such as "3s"`, s.DialTimeout)
		}
	}

	host.SkipVerify = s.SkipVerify

	return nil
}

func setAddress(host *Host, address string, overridePath bool) error {
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}

	parsed, err := url.Parse(address)

	switch {
	case err != nil:
		return refused(`the address cannot be read, want one such as "https://mirror.example:5000"`)
	case parsed.Scheme != "https" && parsed.Scheme != "http":
		return refused(`the scheme is %q, want "https" or "http"`, parsed.Scheme)
	case parsed.Host == "":
		return refused(`the address has no host, want one such as "https://mirror.example:5000"`)
	case parsed.User != nil:
		return refused("there are credentials in the address: put them where the registry credentials are")
	case parsed.RawQuery != "" || parsed.Fragment != "":
		return refused("the address has a query or a fragment, want only a host and a path")
	}

	host.Scheme, host.Address = parsed.Scheme, parsed.Host
	host.Path = strings.TrimRight(parsed.Path, "/")

	if !overridePath && !strings.HasSuffix(host.Path, "/v2") {
		host.Path += "/v2"
	}

	return nil
}

func parseCapabilities(names []string) (Capability, error) {
	var result Capability

	for _, name := range names {
		switch strings.ToLower(name) {
		case "pull":
			result |= Pull
		case "resolve":
			result |= Resolve
		case "push":
			result |= Push
		default:
			return 0, refused(`capability %q is unknown, want "pull", "resolve" or "push"`, name)
		}
	}

	return result, nil
}

// stringList reads what may be a string or a list of strings, as paths relative to a folder.
func stringList(value any, field, folder string) ([]string, error) {
	var result []string

	switch value := value.(type) {
	case nil:
	case string:
		result = []string{value}
	case []any:
		for _, entry := range value {
			text, ok := entry.(string)
			if !ok {
				return nil, refused("%s has an entry that is no string, want the path of a file", field)
			}

			result = append(result, text)
		}
	default:
		return nil, refused("%s is neither a string nor a list, want the paths of files", field)
	}

	for index, path := range result {
		if path == "" {
			return nil, refused("%s has an empty path, want the path of a file", field)
		}

		if !filepath.IsAbs(path) {
			result[index] = filepath.Join(folder, path)
		}
	}

	return result, nil
}

// clients reads a path, a list of paths of files that hold both, or a list of pairs.
func clients(value any, folder string) ([]ClientCertificate, error) {
	const field, pairLength = "client", 2

	entries, isList := value.([]any)
	if !isList {
		entries = []any{value}
		if value == nil {
			return nil, nil
		}
	}

	result := make([]ClientCertificate, 0, len(entries))

	for _, entry := range entries {
		paths, err := stringList(entry, field, folder)
		if err != nil {
			return nil, err
		}

		if len(paths) == 0 || len(paths) > pairLength {
			return nil, refused("%s has an entry of %d paths, want a certificate and its key", field, len(paths))
		}

		result = append(result, ClientCertificate{Certificate: paths[0], Key: paths[len(paths)-1]})
	}

	return result, nil
}

func headers(values map[string]any) (http.Header, error) {
	result := http.Header{}

	for _, name := range sortedKeys(values) {
		switch value := values[name].(type) {
		case string:
			result.Add(name, value)
		case []any:
			for _, entry := range value {
				text, ok := entry.(string)
				if !ok {
					return nil, refused("header %q has an entry that is no string", name)
				}

				result.Add(name, text)
			}
		default:
			return nil, refused("header %q is neither a string nor a list of strings", name)
		}
	}

	for name, list := range result {
		if !validHeader(name, list) {
			// The value can be a secret.
			return nil, refused("header %q, or its value, has characters that cannot be sent", name)
		}
	}

	return result, nil
}
