// Package kubeconfig reads the agent's own credentials, without telling them.
package kubeconfig

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

var (
	// ErrNotOne is returned for a file that cannot be parsed. The parser's own error may quote the file, which holds a key.
	ErrNotOne = errors.New("it is not a kubeconfig")
	// ErrNotValidThen is returned for a client certificate that is not valid for as long as it is needed.
	ErrNotValidThen = errors.New("its client certificate is not valid for as long as it is needed")

	errNoPEM          = errors.New("it is not PEM")
	errBadCertificate = errors.New("its client certificate cannot be used")
)

// Load reads the file, and the files of keys and certificates that it names. Its errors name the file and hold nothing
// of what is in it.
func Load(path string) (*rest.Config, error) {
	if _, err := clientcmd.LoadFromFile(path); err != nil {
		if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
			return nil, fmt.Errorf("reading kubeconfig %s: %w", path, pathErr.Err)
		}

		return nil, fmt.Errorf("reading kubeconfig %s: %w", path, ErrNotOne)
	}

	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err == nil {
		err = rest.LoadTLSFiles(config)
	}

	if err != nil {
		return nil, fmt.Errorf("using kubeconfig %s: %w", path, err)
	}

	return config, nil
}

// Certificate is the client certificate of a config that Load has made, nil when it has none.
func Certificate(config *rest.Config) (*x509.Certificate, error) {
	if len(config.CertData) == 0 {
		return nil, nil //nolint:nilnil // "none" is an answer.
	}

	block, _ := pem.Decode(config.CertData)
	if block == nil {
		return nil, fmt.Errorf("%w: %w", errBadCertificate, errNoPEM)
	}

	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBadCertificate, err)
	}

	return certificate, nil
}

// Check tells why a program that starts between now and then could not use the file; nil when it could. The file is read
// anew.
func Check(path string, now, then time.Time) error {
	config, err := Load(path)
	if err != nil {
		return err
	}

	certificate, err := Certificate(config)
	if err != nil {
		return fmt.Errorf("using kubeconfig %s: %w", path, err)
	}

	if certificate == nil {
		return nil
	}

	if from, until := certificate.NotBefore, certificate.NotAfter; now.Before(from) || then.After(until) {
		return fmt.Errorf("using kubeconfig %s: %w: it is from %s to %s", path, ErrNotValidThen,
			from.UTC().Format(time.RFC3339), until.UTC().Format(time.RFC3339))
	}

	return nil
}
