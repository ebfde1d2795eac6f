package hosts

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	fileName = "hosts.toml"
	// defaultDir is for all registries that have no folder of their own.
	defaultDir = "_default"
	// maxFile is far more than a file with a hundred mirrors needs.
	maxFile = 1 << 20

	// dockerHub is how containerd names the folder of the registry that other libraries know as index.docker.io; its
	// API is at dockerAPI.
	dockerHub, dockerIndex, dockerAPI = "docker.io", "index.docker.io", "registry-1.docker.io"
)

// Capability is what a host may be asked for.
type Capability uint8

// The capabilities; a host may have several.
const (
	// Pull is fetching by digest: the digest protects the content.
	Pull Capability = 1 << iota
	// Resolve is turning a tag into a digest: the host is trusted to say which image a tag means.
	Resolve
	// Push is for writing.
	Push
)

// Host is one place where the images of a registry can be had.
type Host struct {
	// Scheme is "https" or "http"; Address is the host, with a port when one was given.
	Scheme, Address string
	// Path is where the API begins, such as "/v2" or "/mirror/v2"; it never ends with '/'.
	Path string
	// Capabilities is what the host may be asked for.
	Capabilities Capability
	// CAFiles have the certificate authorities to trust besides the system's, as PEM.
	CAFiles []string
	// Clients are certificates to show when the host asks for one.
	Clients []ClientCertificate
	// SkipVerify accepts any certificate.
	SkipVerify bool
	// Header is sent to the host with each request.
	Header http.Header
	// DialTimeout bounds making a connection; 0 means the client's own bound.
	DialTimeout time.Duration
}

// ClientCertificate names the files of a certificate and its key; they are one file when it holds both.
type ClientCertificate struct {
	Certificate, Key string
}

// May tells whether a host has a capability.
func (h Host) May(capability Capability) bool {
	return h.Capabilities&capability != 0
}

// URL is the host's address as people write it.
func (h Host) URL() string {
	return h.Scheme + "://" + h.Address
}

// Config says where the images of one registry are.
type Config struct {
	// File is where this was read, "" when there is no file for the registry.
	File string
	// Mirrors are asked first, in this order.
	Mirrors []Host
	// Server is asked last: the registry itself, or what the file says instead.
	Server Host
	// Warnings name what the file says and this package does not know.
	Warnings []string
}

// Load reads the configuration of a registry, "host" or "host:port", below a folder. As in containerd, the folder of
// that name is taken, or one where the ':' is "_" with another "_" at the end, or else "_default". When none of them is
// there, the registry itself is all there is. A missing dir is an error; a missing hosts.toml in a folder is not.
func Load(dir, registry string) (Config, error) {
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return Config{}, refused("%s is not a folder (create it, or leave the setting empty)", dir)
	}

	for _, name := range folderNames(registry) {
		folder := filepath.Join(dir, name)
		if _, err := os.Stat(folder); errors.Is(err, fs.ErrNotExist) {
			continue
		}

		return loadFolder(folder, registry)
	}

	return Config{Server: upstream(registry)}, nil
}

// folderNames is in the order of preference.
func folderNames(registry string) []string {
	registry = Name(registry)
	names := []string{registry, defaultDir}

	// A ':' cannot be in the name of a folder everywhere.
	if host, port, ok := cutPort(registry); ok {
		names = append([]string{host + "_" + port + "_"}, names...)
	}

	return names
}

func cutPort(registry string) (host, port string, ok bool) {
	at := strings.LastIndex(registry, ":")
	if at < 1 || strings.HasSuffix(registry, "]") {
		return registry, "", false
	}

	return registry[:at], registry[at+1:], true
}

func loadFolder(folder, registry string) (Config, error) {
	path := filepath.Join(folder, fileName)

	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Config{Server: upstream(registry)}, nil
	}

	if err != nil {
		return Config{}, fmt.Errorf("reading the registry hosts: %w", err)
	}

	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err := errors.Join(err, file.Close()); err != nil {
		return Config{}, fmt.Errorf("reading the registry hosts: %w", err)
	}

	config, err := Parse(data, path, registry)
	if err != nil {
		return Config{}, err
	}

	return config, nil
}

// upstream is the registry itself, when no file says anything else of it.
func upstream(registry string) Host {
	if registry == dockerIndex || registry == dockerHub {
		registry = dockerAPI
	}

	return Host{Scheme: "https", Address: registry, Path: "/v2", Capabilities: Pull | Resolve | Push}
}

// Name is how containerd calls a registry, where other libraries have another name for it.
func Name(registry string) string {
	if registry == dockerIndex {
		return dockerHub
	}

	return registry
}

// IsRegistryItself tells whether a host is the registry of that name, so that the credentials for one are for the other.
func IsRegistryItself(registry string, host Host) bool {
	return upstream(registry).Address == host.Address
}
