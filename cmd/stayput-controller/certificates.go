package main

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

var errNoPEM = errors.New("it holds no PEM certificate")

// readCA reads the file of --bmc-ca-file; no file is nil, which stands for the system's certificates.
func readCA(file string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading --bmc-ca-file: %w; give it a file of PEM certificates", err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("reading --bmc-ca-file %s: %w; give it the certificate of the authority that signed the BMCs'",
			file, errNoPEM)
	}

	return data, nil
}
