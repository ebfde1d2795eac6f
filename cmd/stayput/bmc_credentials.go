package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
	"golang.org/x/term"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stayput-dev/stayput/bmc"
)

var (
	errNoCredentials = errors.New("no credentials")
	errTwoSources    = errors.New("credentials come from one place")
	errFile          = errors.New("the credentials file cannot be used")
	errSecret        = errors.New("the Secret cannot be used")
)

const (
	keyUsername = "username"
	keyPassword = "password"
	// maxCredentialsFile bounds a file that holds two short texts.
	maxCredentialsFile = 64 << 10
)

// credentials come from the file, the Secret, or a person.
func (f *bmcFlags) credentials(ctx context.Context, out io.Writer, target *bmcTarget, key types.NamespacedName) (err error) {
	switch {
	case f.credentialsFile != "":
		target.source = "--credentials-file " + f.credentialsFile
		target.options.Credentials, err = credentialsOfFile(f.credentialsFile)
	case key.Name != "":
		target.source = fmt.Sprintf("Secret %s, keys %s and %s", key, keyUsername, keyPassword)
		target.options.Credentials, err = f.credentialsOfSecret(ctx, target, key)
	default:
		target.options.Credentials, err = f.askCredentials(ctx, out, *target)
	}

	return err
}

func (f *bmcFlags) credentialsOfSecret(ctx context.Context, target *bmcTarget, key types.NamespacedName) (bmc.Credentials, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	named := "which --credentials-secret names"
	if f.credentialsSecret == "" {
		named = fmt.Sprintf("which spec.bmc.credentialsName of BareMetalHost %s/%s names", target.host.Namespace, target.host.Name)
	}
	var secret corev1.Secret
	err := target.cluster.Get(ctx, key, &secret)
	switch {
	case apierrors.IsNotFound(err):
		return bmc.Credentials{}, fmt.Errorf("reading Secret %s: %w; create it, with keys %s and %s; it is the one %s",
			key, err, keyUsername, keyPassword, named)
	case apierrors.IsForbidden(err):
		return bmc.Credentials{}, fmt.Errorf("reading Secret %s, %s: %w; ask for the right to get secrets in namespace %s, or give "+
			"--credentials-file", key, named, err, key.Namespace)
	case err != nil:
		return bmc.Credentials{}, fmt.Errorf("reading Secret %s: %w", key, err)
	}
	found := trimmed(string(secret.Data[keyUsername]), string(secret.Data[keyPassword]))
	for name, value := range map[string]string{keyUsername: found.Username, keyPassword: found.Password} {
		if value == "" {
			return bmc.Credentials{}, fmt.Errorf("%w: key %s of Secret %s, %s, is missing or empty; set it", errSecret, name, key, named)
		}
	}

	return found, nil
}

// trimmed is how baremetal-operator reads both.
func trimmed(username, password string) bmc.Credentials {
	return bmc.Credentials{Username: strings.TrimSpace(username), Password: strings.TrimSpace(password)}
}

func credentialsOfFile(path string) (bmc.Credentials, error) {
	file, err := os.Open(path)
	if err != nil {
		return bmc.Credentials{}, fmt.Errorf("reading --credentials-file: %w", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxCredentialsFile+1))
	if err != nil {
		return bmc.Credentials{}, fmt.Errorf("reading --credentials-file: %w", err)
	}
	found, err := parseCredentials(data)
	if err != nil {
		return bmc.Credentials{}, fmt.Errorf("%w: --credentials-file %s: %w", errFile, path, err)
	}

	return found, nil
}

var (
	errFields = errors.New(`want YAML with the two fields username and password, once each, both of them text: ` +
		`username: "NAME" and password: "PASSWORD", on a line each`)
	errNotText = errors.New(`is not text for YAML, which would change it in silence; put it in quotes: '...'`)
	errComment = errors.New(`is cut at the "#", where a comment begins for YAML; put it in quotes: '...'`)
	errNothing = errors.New("is empty; give it a value")
)

// parseCredentials reads a credentials file. It takes nothing that YAML reads otherwise than it is written: 0777 is 511,
// 1e5 is 100000, and what follows " #" is not there. Its errors quote nothing, not even the parser's, which may.
func parseCredentials(data []byte) (bmc.Credentials, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document, more yaml.Node
	if len(data) > maxCredentialsFile || decoder.Decode(&document) != nil || !errors.Is(decoder.Decode(&more), io.EOF) ||
		len(document.Content) != 1 || document.Content[0].Kind != yaml.MappingNode {
		return bmc.Credentials{}, errFields
	}
	values := map[string]string{}
	pairs := document.Content[0].Content
	for i := 0; i+1 < len(pairs); i += 2 {
		key, value := pairs[i], pairs[i+1]
		if _, twice := values[key.Value]; twice || key.Kind != yaml.ScalarNode || (key.Value != keyUsername && key.Value != keyPassword) {
			return bmc.Credentials{}, errFields
		}
		if err := checkText(value); err != nil {
			return bmc.Credentials{}, fmt.Errorf("line %d: %s %w", value.Line, key.Value, err)
		}
		values[key.Value] = value.Value
	}
	found := trimmed(values[keyUsername], values[keyPassword])
	if len(values) != 2 || found.Username == "" || found.Password == "" {
		return bmc.Credentials{}, errFields
	}

	return found, nil
}

func checkText(value *yaml.Node) error {
	const quoted = yaml.SingleQuotedStyle | yaml.DoubleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	switch {
	case value.Kind == yaml.ScalarNode && value.ShortTag() == "!!null":
		return errNothing
	case value.Kind != yaml.ScalarNode, value.ShortTag() != "!!str", value.Style&yaml.TaggedStyle != 0, value.Anchor != "":
		return errNotText
	case isYAML11(value):
		return errNotText
	case value.Style&quoted == 0 && value.LineComment != "":
		return errComment
	default:
		return nil
	}
}

// isYAML11 knows the plain words that other parsers of YAML, such as that of Kubernetes, take for true or false.
func isYAML11(value *yaml.Node) bool {
	const quoted = yaml.SingleQuotedStyle | yaml.DoubleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	if value.Style&quoted != 0 {
		return false
	}
	switch strings.ToLower(value.Value) {
	case "y", "n", "yes", "no", "on", "off":
		return true
	default:
		return false
	}
}

func (f *bmcFlags) askCredentials(ctx context.Context, out io.Writer, target bmcTarget) (bmc.Credentials, error) {
	terminal, ok := f.outside.in.(*os.File)
	if !ok || !term.IsTerminal(int(terminal.Fd())) {
		missing := ""
		if target.host != nil {
			missing = fmt.Sprintf("BareMetalHost %s/%s has no spec.bmc.credentialsName; set it, or ", target.host.Namespace, target.host.Name)
		}

		return bmc.Credentials{}, fmt.Errorf("%w: %sgive --credentials-file or --credentials-secret; without a terminal "+
			"nobody can be asked", errNoCredentials, missing)
	}
	if err := writeText(out, "User name at the BMC: "); err != nil {
		return bmc.Credentials{}, err
	}
	username, err := asked(ctx, terminal, func() (string, error) { return bufio.NewReader(terminal).ReadString('\n') })
	if err != nil {
		return bmc.Credentials{}, fmt.Errorf("reading the user name: %w", err)
	}
	if err := writeText(out, "Password: "); err != nil {
		return bmc.Credentials{}, err
	}
	password, err := asked(ctx, terminal, func() (string, error) {
		read, err := term.ReadPassword(int(terminal.Fd()))

		return string(read), err
	})
	// The return key was not shown.
	if err := writeText(out, "\n"); err != nil {
		return bmc.Credentials{}, err
	}
	if err != nil {
		return bmc.Credentials{}, fmt.Errorf("reading the password: %w", err)
	}
	found := trimmed(username, password)
	if found.Username == "" || found.Password == "" {
		return bmc.Credentials{}, fmt.Errorf("%w: user name or password is empty; nothing was sent", errNoCredentials)
	}

	return found, nil
}

// asked reads from a terminal until ctx ends, and leaves the terminal as it was. The read itself cannot be ended: it ends
// with the program, or takes one more line.
func asked(ctx context.Context, terminal *os.File, read func() (string, error)) (string, error) {
	before, err := term.GetState(int(terminal.Fd()))
	if err != nil {
		return "", fmt.Errorf("reading the terminal's state: %w", err)
	}
	type answer struct {
		text string
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		text, err := read()
		answers <- answer{text, err}
	}()
	select {
	case got := <-answers:
		return got.text, got.err
	case <-ctx.Done():
		return "", errors.Join(context.Cause(ctx), term.Restore(int(terminal.Fd()), before))
	}
}
