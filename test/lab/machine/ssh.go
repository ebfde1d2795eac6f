package machine

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

const (
	sshUser        = "root"
	sshDialTimeout = 20 * time.Second
)

// ErrRemote means that a command inside a guest ended with an error.
var ErrRemote = errors.New("command in the guest failed")

// Key is how the lab enters a machine, and how it knows that it is the right one: two Ed25519 keys in OpenSSH's form.
type Key struct {
	// User opens the guest's root account; Host is the guest's host key.
	User string `json:"user"`
	Host string `json:"host"`
}

// NewKey makes both keys.
func NewKey() (Key, error) {
	user, err := newSSHKey("lab")
	if err != nil {
		return Key{}, err
	}

	host, err := newSSHKey("host")

	return Key{User: user, Host: host}, err
}

func newSSHKey(comment string) (string, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", fmt.Errorf("making an SSH key: %w", err)
	}

	block, err := ssh.MarshalPrivateKey(private, comment)
	if err != nil {
		return "", fmt.Errorf("encoding an SSH key: %w", err)
	}

	return string(pem.EncodeToMemory(block)), nil
}

// files are what the guest needs of the keys. A key that cannot be read gives none: the machine is closed then.
func (k Key) files() []File {
	user, err := ssh.ParsePrivateKey([]byte(k.User))
	if err != nil {
		return nil
	}

	return []File{
		{Path: "/root/.ssh/authorized_keys", Mode: fileMode, Data: ssh.MarshalAuthorizedKey(user.PublicKey())},
		{Path: "/etc/ssh/ssh_host_ed25519_key", Mode: fileMode, Data: []byte(k.Host)},
	}
}

// SSH runs a shell command in the guest as root and returns its standard output. It does not wait for the guest to
// be up; see WaitSSH.
func (m *Machine) SSH(ctx context.Context, command string) (string, error) {
	client, err := m.dial(ctx)
	if err != nil {
		return "", err
	}
	defer client.Close()

	// A session has no context: closing the connection ends it.
	stop := context.AfterFunc(ctx, func() { _ = client.Close() })
	defer stop()

	session, err := client.NewSession()
	if err != nil {
		return "", fmt.Errorf("opening a session on %s: %w", m.state.Name, err)
	}
	defer session.Close()

	var stdout, stderr bytes.Buffer

	session.Stdout, session.Stderr = &stdout, &stderr

	if err := session.Run(command); err != nil {
		return stdout.String(), fmt.Errorf("%w: %s: %q: %w: %s", ErrRemote, m.state.Name, command, errors.Join(err, ctx.Err()),
			strings.TrimSpace(stderr.String()))
	}

	return stdout.String(), nil
}

// WaitSSH returns when a login works.
func (m *Machine) WaitSSH(ctx context.Context) error {
	for {
		_, err := m.SSH(ctx, "true")
		if err == nil {
			return nil
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for SSH on %s: %w; last: %w", m.state.Name, ctx.Err(), err)
		case <-time.After(pollInterval):
		}
	}
}

func (m *Machine) dial(ctx context.Context) (*ssh.Client, error) {
	user, err := ssh.ParsePrivateKey([]byte(m.state.Key.User))
	if err != nil {
		return nil, fmt.Errorf("reading the lab's SSH key: %w", err)
	}

	host, err := ssh.ParsePrivateKey([]byte(m.state.Key.Host))
	if err != nil {
		return nil, fmt.Errorf("reading the SSH host key of %s: %w", m.state.Name, err)
	}

	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(m.state.SSHPort))
	dialer := net.Dialer{Timeout: sshDialTimeout}

	connection, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("reaching %s: %w", m.state.Name, err)
	}

	// QEMU accepts at once, whether or not the guest does, so the handshake has a deadline of its own.
	if err := connection.SetDeadline(time.Now().Add(sshDialTimeout)); err != nil {
		return nil, errors.Join(fmt.Errorf("reaching %s: %w", m.state.Name, err), connection.Close())
	}

	secure, channels, requests, err := ssh.NewClientConn(connection, address, &ssh.ClientConfig{
		User: sshUser, Auth: []ssh.AuthMethod{ssh.PublicKeys(user)},
		HostKeyCallback: ssh.FixedHostKey(host.PublicKey()), HostKeyAlgorithms: []string{ssh.KeyAlgoED25519},
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("logging in to %s: %w", m.state.Name, err), connection.Close())
	}

	if err := connection.SetDeadline(time.Time{}); err != nil {
		return nil, errors.Join(fmt.Errorf("reaching %s: %w", m.state.Name, err), secure.Close())
	}

	return ssh.NewClient(secure, channels, requests), nil
}

// KeyFile writes the user key to a file, for ssh(1), and returns its path; SSHArgs are the arguments that go with it.
func (m *Machine) KeyFile() (string, error) {
	path := m.file("id_ed25519")
	if err := os.WriteFile(path, []byte(m.state.Key.User), fileMode); err != nil {
		return "", fmt.Errorf("writing the lab's SSH key: %w", err)
	}

	return path, nil
}

// SSHArgs are the arguments with which ssh(1) enters the machine.
func (m *Machine) SSHArgs() ([]string, error) {
	key, err := m.KeyFile()
	if err != nil {
		return nil, err
	}

	host, err := ssh.ParsePrivateKey([]byte(m.state.Key.Host))
	if err != nil {
		return nil, fmt.Errorf("reading the SSH host key of %s: %w", m.state.Name, err)
	}

	known := m.file("known_hosts")
	line := fmt.Sprintf("[127.0.0.1]:%d %s", m.state.SSHPort, ssh.MarshalAuthorizedKey(host.PublicKey()))

	if err := os.WriteFile(known, []byte(line), fileMode); err != nil {
		return nil, fmt.Errorf("writing the known hosts: %w", err)
	}

	return []string{
		"-i", key, "-o", "IdentitiesOnly=yes", "-o", "UserKnownHostsFile=" + known, "-p", strconv.Itoa(m.state.SSHPort),
		sshUser + "@127.0.0.1",
	}, nil
}
